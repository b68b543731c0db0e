"""Which derived tensors a model has: per scheme of kv_b_proj and platform, a table.

w_kc and w_vc are the two halves of kv_b_proj per head, in the layout of absorbed attention; the
reference loader's rules for them are its sections 5.2, 5.3 and 5.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadscope.loader.findings import Finding, finding
from loadscope.loader.model import Model
from loadscope.loader.schema import Schema, Target
from loadscope.loader.tables import Derive, Output, Scheme
from loadscope.loader.topology import compact, layers_in

BLOCK = 128
KV_B = "self_attn.kv_b_proj.{leaf}"
# platforms whose kernels take bf16 of blocks of 128
DEQUANTISING = ("cuda", "xpu", "musa")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How kv_b's values are obtained: operation, dtype of the result, whether a scale is left."""

    op: str
    dtype: str
    has_scale: bool = False


Key = tuple[str, str]
# (scheme's row, platform or "*") to recipe; blocks of 128 on platforms that dequantise first
DEQUANTISED = Recipe("dequantise_block", "BF16")
RECIPES: dict[Key, Recipe] = {
    ("awq", "*"): Recipe("dequantise_awq", ""),
    ("plain", "*"): Recipe("copy", ""),
    ("nvfp4", "*"): Recipe("dequantise_nvfp4", "BF16"),
    ("int8_block", "*"): DEQUANTISED,
    ("int8_channel", "*"): Recipe("dequantise_channel_int8", "BF16"),
    ("fp8_block", "hip-fnuz"): Recipe("block_to_tensor_fnuz", "F8_E4M3FNUZ", has_scale=True),
    ("fp8_block", "musa"): Recipe("block_to_tensor_expanded", "BF16", has_scale=True),
    ("fp8_block", "*"): Recipe("block_to_tensor", "F8_E4M3", has_scale=True),
    ("fp8_scale", "hip-fnuz"): Recipe("channel_to_tensor_fnuz", "F8_E4M3FNUZ", has_scale=True),
    ("fp8_scale", "musa"): Recipe("channel_to_tensor_expanded", "BF16", has_scale=True),
    ("fp8_scale", "*"): Recipe("channel_to_tensor", "F8_E4M3", has_scale=True),
}


def derives(
    model: Model, schema: Schema, platform: str, *, deepgemm_bmm: bool
) -> tuple[tuple[Derive, ...], list[Finding]]:
    """A derive step per scheme of kv_b_proj, and why one cannot be made."""
    by_scheme: dict[str, list[Target]] = {}
    for target in schema.targets:
        if target.table.endswith(KV_B):
            by_scheme.setdefault(target.scheme, []).append(target)
    found: list[Derive] = []
    findings: list[Finding] = []
    for name, targets in by_scheme.items():
        scheme = schema.schemes[name]
        is_128 = scheme.kv_b == "fp8_block" and scheme.block == (BLOCK, BLOCK)
        if deepgemm_bmm and is_128 and platform == "cuda":
            refused = _refuse_blocks(model, targets[0])
            findings += refused
            found += [] if refused else [_kept_blocks(model, targets, scheme)]
            continue
        recipe = DEQUANTISED if is_128 and platform in DEQUANTISING else _recipe(scheme, platform)
        if recipe is None:
            findings.append(_no_recipe(scheme, targets[0]))
        else:
            found.append(_split(model, targets, scheme, recipe, platform))
    return tuple(found), findings


def _recipe(scheme: Scheme, platform: str) -> Recipe | None:
    return RECIPES.get((scheme.kv_b, platform)) or RECIPES.get((scheme.kv_b, "*"))


def _split(
    model: Model, targets: Sequence[Target], scheme: Scheme, recipe: Recipe, platform: str
) -> Derive:
    heads, kv = model.num_attention_heads, model.kv_lora_rank
    dtype = recipe.dtype or model.dtype
    swapped = (0, 2, 1)
    order = (0, 1, 2) if platform == "npu" else swapped
    outputs = [
        Output("w_kc", (heads, model.qk_nope_head_dim, kv), swapped, dtype),
        Output("w_vc", (heads, kv, model.v_head_dim), order, dtype),
    ]
    if recipe.has_scale:
        outputs.append(Output("w_scale", (), (), "F32", split_dim=None))
    return Derive(
        op=recipe.op,
        module=_module(targets[0]),
        table=targets[0].table,
        inputs=_inputs(targets, scheme),
        outputs=tuple(outputs),
        layers=targets[0].layers,
        block=scheme.block,
        scalars=() if recipe.has_scale else (("w_scale", 1.0),),
        flags=(("use_deep_gemm_bmm", False),),
    )


def _kept_blocks(model: Model, targets: Sequence[Target], scheme: Scheme) -> Derive:
    """fp8 and its block scales as they are, for a batched product that takes both."""
    heads, kv = model.num_attention_heads, model.kv_lora_rank
    nope, v = model.qk_nope_head_dim, model.v_head_dim
    order = (0, 1, 2)
    return Derive(
        op="keep_blocks",
        module=_module(targets[0]),
        table=targets[0].table,
        inputs=_inputs(targets, scheme),
        outputs=(
            Output("w_kc", (heads, kv, nope), order, "F8_E4M3"),
            Output("w_vc", (heads, v, kv), order, "F8_E4M3"),
            Output("w_scale_k", (heads, kv // BLOCK, nope // BLOCK), order, "F32"),
            Output("w_scale_v", (heads, v // BLOCK, kv // BLOCK), order, "F32"),
        ),
        layers=targets[0].layers,
        block=scheme.block,
        scalars=(("w_scale", 1.0),),
        flags=(("use_deep_gemm_bmm", True),),
    )


def _module(target: Target) -> str:
    return target.table.removesuffix(".kv_b_proj.{leaf}")


def _inputs(targets: Sequence[Target], scheme: Scheme) -> tuple[str, ...]:
    """The parameters that the operation takes, in its order."""
    names = scheme.dequantised_leaves or ("weight",)
    by_leaf = {target.name.rpartition(".")[2]: target.name for target in targets}
    return tuple(by_leaf[name] for name in names)


def _refuse_blocks(model: Model, target: Target) -> list[Finding]:
    sizes = {
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "v_head_dim": model.v_head_dim,
        "kv_lora_rank": model.kv_lora_rank,
    }
    odd = {name: size for name, size in sizes.items() if size % BLOCK}
    if not odd:
        return []
    said = ", ".join(f"{name} {size}" for name, size in odd.items())
    return [
        finding(
            "LS216",
            "--deepgemm-bmm",
            f"kv_b_proj cannot keep its blocks: {said}; expected multiples of {BLOCK}, or a head "
            f"begins inside a block",
            fix="leave --deepgemm-bmm out",
            pattern=target.name,
            evidence=dict(sizes),
        )
    ]


def _no_recipe(scheme: Scheme, target: Target) -> Finding:
    return finding(
        "LS216",
        target.name,
        f"{target.name} is stored as {scheme.name}: there is no operation that splits it into w_kc "
        f"and w_vc (layers {compact(layers_in(target.layers))})",
        fix="leave kv_b_proj unquantised, or use a format with scales per block, row or tensor",
        pattern=target.name,
        evidence={"scheme": scheme.name, "decided_by": target.decided_by},
    )
