"""Random small models in any format, with a layout that is legal for them and options."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
from hypothesis import strategies as st

from support.expected_rank import Asked
from support.golden_configs import BASE, V2_LITE, V3, V32
from support.made_model import MadeModel, Wishes, make_model
from support.quantised_formats import FORMS, Form
from support.stored import Storage

LAYOUTS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4))
NO_INDEX = {"index_topk": None}
PLATFORMS = ("cuda", "hip", "hip-fnuz", "npu", "xpu", "musa", "cpu")


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that one load is decided by; short to print, for failures."""

    form_name: str
    config: Mapping[str, Any]
    asked: Asked
    excluded: tuple[str, ...] = ()
    spelling: int = 0
    platform: str = "cuda"
    seed: int = 0
    has_cache_scales: bool = False
    router_dtype: str | None = None
    quantises_weights_proj: bool = False

    @property
    def form(self) -> Form:
        return FORMS[self.form_name]

    def storage(self, module: str) -> Storage:
        """How the files have a module: what the config excludes is plain."""
        form = self.form
        chosen = form.expert if ".mlp.experts." in module else form.linear
        is_plain = any(holds(name, module) for name in self.excluded)
        return chosen.plain if is_plain or self.is_plain_draft(module) else chosen

    def is_plain_draft(self, module: str) -> bool:
        """Drafts of NVFP4 models are stored and built in floats, whatever the config lists."""
        draft = f"model.layers.{self.config['num_hidden_layers']}."
        return self.form.linear.kind == "nvfp4" and module.startswith(draft)

    def model(self) -> MadeModel:
        router = None if self.router_dtype is None else getattr(torch, self.router_dtype)
        wishes = Wishes(
            self.storage, self.seed, self.has_cache_scales, router, self.quantises_weights_proj
        )
        return make_model(dict(self.config), wishes)


def holds(name: str, module: str) -> bool:
    """Whether a listed module is this one, or one around it; a bare one is meant in any layer."""
    return f".{name}." in f".{module}."


@st.composite
def loads(
    draw: st.DrawFn,
    names: tuple[str, ...] = tuple(FORMS),
    *,
    is_draft: bool | None = None,
    max_pp: int = 2,
) -> Load:
    """A format of these, a family, a legal layout; roles, fusions and lists as they may be."""
    form = FORMS[draw(st.sampled_from(names))]
    tp, ep = draw(st.sampled_from(LAYOUTS))
    draft = draw(st.booleans()) if is_draft is None else is_draft
    pp = 1 if draft else draw(st.integers(1, max_pp))
    family = draw(st.sampled_from([V3, V2_LITE, V32, {**V32, "model_type": "glm_moe_dsa",
                                   "architectures": ["GlmMoeDsaForCausalLM"]}]))
    config = {**BASE, **family, **draw(_sizes(form, tp, ep)), **draw(_layers(pp, draft))}
    config["torch_dtype"] = str(form.linear.floats).removeprefix("torch.")
    if config.get("index_topk") is not None:
        config |= draw(_indexer(form, config))
    fuses_shared = config["n_shared_experts"] == 1 and draw(st.booleans())
    fuses_shared = fuses_shared and not form.name.startswith("w4afp8")
    fuses_shared = fuses_shared and config["first_k_dense_replace"] < config["num_hidden_layers"]
    excluded = draw(_excluded(form, config, fuses_shared))
    has_cache = form.has_cache_scales and not (draft and form.linear.kind == "nvfp4")
    asked = Asked(
        tp, ep, pp, is_draft=draft, fuses_indexer=draw(st.booleans()), fuses_shared=fuses_shared,
        has_cache_scales=has_cache, is_wna16=form.is_wna16,
    )  # fmt: skip
    if form.entry:
        listed = draw(_spelled(excluded, form.excluding))
        config["quantization_config"] = {**form.entry, **listed}
    return Load(
        form.name, config, asked, excluded,
        platform=draw(st.sampled_from(("cuda", *PLATFORMS))),
        seed=draw(st.integers(0, 9)),
        has_cache_scales=has_cache and draw(st.booleans()),
        router_dtype=draw(st.sampled_from([None, "float32"])),
    )  # fmt: skip


@st.composite
def _sizes(draw: st.DrawFn, form: Form, tp: int, ep: int) -> dict[str, Any]:
    """Cuts fall between blocks and groups; sizes that nothing cuts may end inside one."""
    ways, both = tp // ep, lcm(form.rows, form.columns, 8)
    local_heads = draw(st.integers(1, 2))
    nope, rope, value = draw(st.sampled_from(head_sizes(form, local_heads)))
    shared, width = draw(_widths(form, tp, ways))
    return {
        "hidden_size": draw(st.sampled_from(_even(form, (96, 128, 40), lcm(8, form.columns)))),
        "q_lora_rank": draw(st.sampled_from([lcm(both, 64), None])),
        "kv_lora_rank": draw(st.sampled_from(_even(form, (72, 96), form.columns))),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp * local_heads,
        "intermediate_size": both * tp * draw(st.integers(1, max(1, 128 // both))),
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "n_routed_experts": ep * max(ways, draw(st.integers(1, 2))),
        "vocab_size": draw(st.sampled_from([1, 64, 130, 200])),
    }


def _even(form: Form, free: tuple[int, ...], unit: int) -> list[int]:
    """Free sizes, or multiples of the unit where groups must not be ragged."""
    if form.rows == form.columns == 1:
        return list(free)
    if not form.is_even and unit == form.columns:
        return list(free)
    return sorted({max(1, size // unit) * unit for size in free})


@st.composite
def _widths(draw: st.DrawFn, form: Form, tp: int, ways: int) -> tuple[int, int]:
    """(shared experts, width of one expert)."""
    both = lcm(form.rows, form.columns, 8)
    group = form.expert.group
    if form.is_wna16 and group > 32 and ways == tp and tp * 32 % group == 0 and draw(st.booleans()):
        # one expert's piece is half a group or less: the groups are made smaller
        return group // 32, 32 * tp
    return draw(st.integers(1, 2)), both * tp


def head_sizes(form: Form, heads: int) -> list[tuple[int, int, int]]:
    """(nope, rope, value) that local heads can cut, nope never value; the smallest few."""
    unit = 8 if form.rows == form.columns == 1 else 16
    sizes = [unit * n for n in range(1, 26)]
    found = [
        (nope, rope, value)
        for nope in sizes
        for rope in (8, 16, 32, 64, 128)
        for value in sizes
        if nope != value and _fits(form, heads, nope, rope, value)
    ]
    return sorted(found, key=sum)[:6]


def _fits(form: Form, heads: int, nope: int, rope: int, value: int) -> bool:
    rows = (heads * (nope + rope), heads * (nope + value))
    return all(n % form.rows == 0 for n in rows) and heads * value % form.columns == 0


@st.composite
def _layers(draw: st.DrawFn, pp: int, draft: bool) -> dict[str, Any]:
    layers = draw(st.integers(max(1 if draft else 2, pp), 3))
    return {
        "num_hidden_layers": layers,
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "num_nextn_predict_layers": 1 if draft else draw(st.integers(0, 1)),
    }


@st.composite
def _indexer(draw: st.DrawFn, form: Form, config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = st.lists(
        st.sampled_from(["full", "shared"]),
        min_size=config["num_hidden_layers"],
        max_size=config["num_hidden_layers"],
    )
    return {
        "index_n_heads": draw(st.sampled_from([2, 3] if form.rows == 1 else [2, 4])),
        "index_head_dim": draw(st.sampled_from([24, 64] if form.rows == 1 else [64, 128])),
        **draw(st.sampled_from([{}, {"indexer_types": draw(kinds)}])),
    }


@st.composite
def _excluded(
    draw: st.DrawFn, form: Form, config: Mapping[str, Any], fuses_shared: bool
) -> tuple[str, ...]:
    """Modules that stay plain: whole groups, so that parts of one parameter never disagree."""
    if not form.entry:
        return ()
    layers = range(config["num_hidden_layers"] + 1)
    groups = ["self_attn", "self_attn.kv_b_proj", "self_attn.o_proj", "self_attn.q_b_proj"]
    if not fuses_shared:
        groups += ["mlp.shared_experts", "mlp.experts"]
    groups += [f"layers.{n}.self_attn" for n in layers]
    groups += [f"layers.{n}.mlp" for n in layers]
    if config.get("index_topk") is not None:
        groups.append("self_attn.indexer.wk")
    return tuple(draw(st.lists(st.sampled_from(groups), max_size=3, unique=True)))


def small_load(form: Form, *, tp: int, ep: int = 1, **more: Any) -> Load:
    """The smallest legal model of a format: a dense and an expert layer, two experts a group."""
    both = lcm(form.rows, form.columns, 8)
    nope, rope, value = head_sizes(form, 1)[0]
    config = {
        **BASE,
        **V3,
        "torch_dtype": str(form.linear.floats).removeprefix("torch."),
        "hidden_size": lcm(8, form.columns),
        "q_lora_rank": both,
        "kv_lora_rank": 2 * form.columns if form.is_even else 24,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp,
        "intermediate_size": both * tp,
        "moe_intermediate_size": both * tp,
        "n_routed_experts": 2 * tp,
        "vocab_size": 100,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 0,
        **more.pop("config", {}),
    }
    if form.entry:
        config["quantization_config"] = dict(form.entry)
    asked = Asked(
        tp, ep, has_cache_scales=form.has_cache_scales, is_wna16=form.is_wna16,
        **more.pop("asked", {}),
    )  # fmt: skip
    return Load(form.name, config, asked, **more)


SPELLINGS = (
    lambda name: [name],
    lambda name: [f"*{name}*"],
    lambda name: ["re:.*" + name.replace(".", r"\.") + r"(\..*)?$"],
    lambda name: [f"model.{name}" if name.startswith("layers.") else name],
    lambda name: [f"*.{name}.*", f"*.{name}"],
    lambda name: [name + "."],
)


@st.composite
def _spelled(draw: st.DrawFn, excluded: tuple[str, ...], field: str) -> dict[str, Any]:
    entries: list[str] = []
    for name in excluded:
        entries += draw(st.sampled_from(SPELLINGS))(name)
    return {field: entries} if entries or draw(st.booleans()) else {}
