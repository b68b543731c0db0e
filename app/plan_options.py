"""The options that shape a plan, declared once for all commands that make one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer

from loadscope.app.options import refuse
from loadscope.loader.plan import Options
from loadscope.loader.topology import Layout


class Platform(StrEnum):
    """PLATFORMS of the plan as typer wants them."""

    cuda = "cuda"
    hip = "hip"
    hip_fnuz = "hip-fnuz"
    npu = "npu"
    xpu = "xpu"
    musa = "musa"
    cpu = "cpu"


TpSize = Annotated[int, typer.Option("--tp-size", help="ranks that share each layer")]
EpSize = Annotated[int, typer.Option("--ep-size", help="expert groups inside the TP group")]
PpSize = Annotated[int, typer.Option("--pp-size", help="pipeline stages")]
PlatformOption = Annotated[
    Platform, typer.Option("--platform", help="whose layout to compute; any works on a CPU")
]
NoIndexerFusion = Annotated[
    bool, typer.Option("--no-indexer-fusion", help="keep the indexer's projections apart")
]
Draft = Annotated[
    bool, typer.Option("--draft", help="the draft (next-token) model instead of the target")
]
FuseSharedExperts = Annotated[
    bool, typer.Option("--fuse-shared-experts", help="the shared expert as the last routed one")
]
DeepgemmBmm = Annotated[
    bool, typer.Option("--deepgemm-bmm", help="keep what is derived from kv_b_proj in fp8")
]
Nvfp4AttentionFp8 = Annotated[
    bool, typer.Option("--nvfp4-attention-fp8", help="NVFP4: turn bf16 q_b_proj into fp8 blocks")
]
NextnMoeFp8 = Annotated[
    bool,
    typer.Option("--nextn-moe-fp8", help="NVFP4: turn the draft's bf16 experts into fp8 blocks"),
]
Quantization = Annotated[
    str | None,
    typer.Option("--quantization", metavar="NAME", help="in place of the config's quant_method"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="override a field of config.json"),
]


@dataclass(frozen=True)
class PlanOptions:
    """As the command line gives them; `layout` and `options` refuse what cannot be."""

    tp_size: TpSize = 1
    ep_size: EpSize = 1
    pp_size: PpSize = 1
    draft: Draft = False
    fuse_shared_experts: FuseSharedExperts = False
    platform: PlatformOption = Platform.cuda
    no_indexer_fusion: NoIndexerFusion = False
    deepgemm_bmm: DeepgemmBmm = False
    nvfp4_attention_fp8: Nvfp4AttentionFp8 = False
    nextn_moe_fp8: NextnMoeFp8 = False
    quantization: Quantization = None
    set_: Set = None

    def layout(self) -> Layout:
        try:
            return Layout(self.tp_size, self.ep_size, self.pp_size)
        except ValueError as error:
            refuse(str(error))

    def options(self) -> Options:
        overrides = tuple(_override(text) for text in self.set_ or ())
        try:
            return Options(
                platform=self.platform.value,
                indexer_fusion=not self.no_indexer_fusion,
                draft=self.draft,
                fuse_shared_experts=self.fuse_shared_experts,
                deepgemm_bmm=self.deepgemm_bmm,
                nvfp4_attention_fp8=self.nvfp4_attention_fp8,
                nextn_moe_fp8=self.nextn_moe_fp8,
                quantization=self.quantization,
                overrides=overrides,
            )
        except ValueError as error:
            refuse(str(error))


def _override(text: str) -> tuple[str, str]:
    """FIELD=VALUE as a pair."""
    field, equals, value = text.partition("=")
    if not equals or not field.strip():
        refuse(f"--set {text!r}; expected FIELD=VALUE, for example num_hidden_layers=4")
    return field.strip(), value


def with_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options behind its own; it gets them as `shape`.

    The signature is what typer reads, so it is put together here.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "shape"]
    shared = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
        )
        for one in fields(PlanOptions)
    ]

    def run(**given: Any) -> None:
        shape = PlanOptions(**{one.name: given.pop(one.name) for one in shared})
        command(shape=shape, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    run.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    return run
