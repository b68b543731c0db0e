"""What is known of the recorded checkpoints beside their headers: formats, drafts, layouts."""

from typing import NamedTuple

from loadscope.loader.plan import Options
from loadscope.loader.topology import Layout


class Stored(NamedTuple):
    """Which format each group of modules has; a draft may have another than its target."""

    attention: str = "plain"
    linears: str = "plain"
    experts: str = "plain"
    has_kv_scales: bool = False


PLAIN = Stored()
FP8 = Stored("fp8 blocks", "fp8 blocks", "fp8 blocks", has_kv_scales=True)
NVFP4 = Stored("plain", "nvfp4", "nvfp4", has_kv_scales=True)
STORED: dict[str, Stored] = {
    "deepseek-v3": FP8,
    "deepseek-v3.1": FP8,
    "deepseek-v3.2-exp": FP8,
    "deepseek-v2-lite": PLAIN,
    "kimi-k2-instruct": FP8,
    "glm-5": PLAIN,
    "deepseek-r1-0528-fp4": NVFP4,
    "deepseek-r1-awq": Stored("awq", "awq", "awq"),
    "deepseek-r1-w4afp8": Stored("fp8 blocks", "fp8 blocks", "w4afp8"),
    "deepseek-r1-int8-block": Stored("int8 blocks", "int8 blocks", "int8 blocks"),
    "deepseek-r1-int8-channel": Stored("int8 channels", "int8 channels", "int8 channels"),
}
STORED_DRAFTS: dict[str, Stored] = {
    "deepseek-v3": FP8,
    "deepseek-v3.1": FP8,
    "deepseek-v3.2-exp": FP8,
    "glm-5": PLAIN,
    "deepseek-r1-0528-fp4": PLAIN,  # stored and built in bf16
    "deepseek-r1-int8-block": STORED["deepseek-r1-int8-block"],
    "deepseek-r1-int8-channel": STORED["deepseek-r1-int8-channel"],
}
# w4afp8 has no expert layout for them; V2-Lite has two
WITHOUT_FUSED_EXPERTS = ("deepseek-v2-lite", "deepseek-r1-w4afp8")

LAYOUTS = {
    "tp 8": Layout(tp_size=8),
    "tp 16": Layout(tp_size=16),
    "tp 8 ep 8": Layout(tp_size=8, ep_size=8),
    "tp 4 pp 2": Layout(tp_size=4, pp_size=2),
    "tp 1": Layout(),
    "tp 2 pp 4": Layout(tp_size=2, pp_size=4),
}
USUAL = ("tp 8", "tp 16", "tp 8 ep 8", "tp 4 pp 2")
SMALL = ("deepseek-v2-lite",)  # also served by one or two ranks a stage


class Case(NamedTuple):
    """One way to serve a recorded checkpoint."""

    pack: str
    layout_name: str
    is_draft: bool = False
    fuses_shared: bool = False

    def __str__(self) -> str:
        role = "draft" if self.is_draft else "target"
        return f"{self.pack} {self.layout_name} {role}{' fused' if self.fuses_shared else ''}"

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.layout_name]

    @property
    def options(self) -> Options:
        return Options(draft=self.is_draft, fuse_shared_experts=self.fuses_shared)

    @property
    def stored(self) -> Stored:
        return (STORED_DRAFTS if self.is_draft else STORED)[self.pack]


def cases_of(pack: str) -> list[Case]:
    """Target and draft at the usual layouts; shared experts fused where that is allowed."""
    found = [Case(pack, name) for name in (LAYOUTS if pack in SMALL else USUAL)]
    if pack in STORED_DRAFTS:
        found += [Case(pack, name, is_draft=True) for name in USUAL]
    if pack not in WITHOUT_FUSED_EXPERTS:
        found += [Case(pack, name, fuses_shared=True) for name in USUAL]
    if pack in STORED_DRAFTS:
        found.append(Case(pack, "tp 8", is_draft=True, fuses_shared=True))
    return found
