"""NVFP4: 4-bit floats, two to a byte, an e4m3 scale per 16 columns and a float32 one per tensor.

The draft layer of such checkpoints is stored in bf16. Attention's q_b_proj and the draft's
experts can be quantised to fp8 blocks on their way.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import Entries, read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.tables import WHOLE, Fill, Leaf, Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context

GROUP = 16
SWIZZLED = Fill("later", None, "an engine lays the block scales out for its kernel")


def _scheme(*, is_expert: bool) -> Scheme:
    swizzled = Leaf("blockscale_swizzled", "F8_E4M3", 1, GROUP, role="scale", fill=SWIZZLED)
    return Scheme(
        name="nvfp4 groups of 16",
        leaves=(
            Leaf("weight", "U8", 1, 2),
            Leaf("weight_scale", "F8_E4M3", 1, GROUP, role="scale"),
            Leaf("weight_scale_2", "F32", WHOLE, WHOLE, role="scale"),
            Leaf("input_scale", "F32", WHOLE, WHOLE, role="scale", slot="each", is_global=True),
            *((swizzled,) if is_expert else ()),
        ),
        kv_b="nvfp4",
        dequantise="dequantise_nvfp4",
        dequantised_leaves=("weight", "weight_scale", "weight_scale_2"),
        rescaled="weight_scale",
        tensor_scale="weight_scale_2",
        unused=("input_scale",),
    )


def quantised_on_load(dtype: str) -> Scheme:
    """fp8 blocks with power-of-two scales, made from plain weights on their way."""
    stored = Leaf("weight", dtype)
    return Scheme(
        name="fp8 blocks 128x128, quantised on load",
        leaves=(
            Leaf("weight", "F8_E4M3", stored=stored, convert="quantise_block_ue8m0"),
            Leaf(
                "weight_scale_inv", "F32", 128, 128, role="scale",
                stored=stored, convert="scales_block_ue8m0",
            ),
        ),
        kv_b="fp8_block",
        dequantise="dequantise_block",
        dequantised_leaves=("weight", "weight_scale_inv"),
        block=(128, 128),
    )  # fmt: skip


def read(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    algorithm = config.get("quant_algo", "NVFP4")
    group = config.get("group_size", GROUP)
    if algorithm != "NVFP4" or group != GROUP:
        raise ValueError(
            f"quant_algo {algorithm!r} with group_size {group!r}; expected NVFP4 and 16"
        )
    both = (Row(_scheme(is_expert=True), "expert"), Row(_scheme(is_expert=False), "linear"))
    kv_cache = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    return Format(
        name="nvfp4 groups of 16",
        method="modelopt_fp4",
        plain=plain_scheme(context.dtype),
        rows=() if context.is_draft else both,
        forced=_on_load(context),
        excluded=read_entries(config, ("exclude_modules", "ignore"), "quantization"),
        has_kv_scales=bool(kv_cache) and not context.is_draft,
        config_entry="quant_algo = NVFP4",
    )


def _on_load(context: "Context") -> tuple[Row, ...]:
    rows: tuple[Row, ...] = ()
    if context.nvfp4_attention_fp8:
        entry = Entries(("self_attn.q_b_proj",), "--nvfp4-attention-fp8")
        rows += (Row(quantised_on_load(context.dtype), "linear", entry),)
    if context.nextn_moe_fp8 and context.is_draft:
        entry = Entries(("mlp.experts", "mlp.shared_experts"), "--nextn-moe-fp8")
        rows += (Row(quantised_on_load(context.dtype), "any", entry),)
    return rows
