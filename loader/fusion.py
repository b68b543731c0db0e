"""Whether the shared expert may become the last of the stacked experts."""

from loadscope.loader.findings import Finding, finding
from loadscope.loader.formats.format import Format
from loadscope.loader.model import Model

USUAL_COUNTS = (256, 384)


def check_fusion(model: Model, form: Format, *, is_asked: bool, is_draft: bool) -> list[Finding]:
    """An order is obeyed if it can be; where the reference would not fuse by itself, a note."""
    if not is_asked:
        return []
    has_experts = model.n_routed_experts > 0 if is_draft else model.moe_layers > 0
    if not has_experts:
        return [_refuse("no layer has experts", model)]
    if model.n_shared_experts != 1:
        return [_refuse(f"n_shared_experts is {model.n_shared_experts}; expected 1", model)]
    if form.method == "w4afp8":
        return [_refuse("w4afp8 stores shared experts in fp8 and routed ones in int4", model)]
    if model.n_routed_experts in USUAL_COUNTS:
        return []
    return [
        finding(
            "LS215",
            "--fuse-shared-experts",
            f"the shared expert is fused as asked; the reference loader does so only with "
            f"{' or '.join(map(str, USUAL_COUNTS))} routed experts, here are "
            f"{model.n_routed_experts}",
            fix="nothing to do if the engine expects it",
            level="note",
            evidence={"n_routed_experts": model.n_routed_experts},
        )
    ]


def _refuse(found: str, model: Model) -> Finding:
    return finding(
        "LS215",
        "--fuse-shared-experts",
        f"the shared expert cannot be fused with the routed ones: {found}",
        fix="leave --fuse-shared-experts out",
        evidence={"n_shared_experts": model.n_shared_experts},
    )
