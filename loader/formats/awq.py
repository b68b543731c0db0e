"""AWQ: 4-bit codes, eight to an int32 along the rows' axis, stored [columns, rows].

Linear layers keep the files' layout. Experts keep it too (awq_marlin), or are repacked two codes
to a byte (moe_wna16).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.tables import Leaf, Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context

PACKED = 8  # codes in an int32
SMALLEST_GROUP = 32


def read_marlin(config: Mapping[str, Any], context: "Context") -> Format:
    scheme = _linear(_group_size(config), context.dtype)
    return _format("awq_marlin", (Row(scheme),), config, context)


def read_wna16(config: Mapping[str, Any], context: "Context") -> Format:
    group = _group_size(config)
    rows = (
        Row(_wna16_experts(group, context), "expert"),
        Row(_linear(group, context.dtype), "linear"),
    )
    return _format("moe_wna16", rows, config, context)


def _format(
    method: str, rows: tuple[Row, ...], config: Mapping[str, Any], context: "Context"
) -> Format:
    return Format(
        name=f"awq 4 bit, groups of {_group_size(config)} ({method})",
        method=method,
        plain=plain_scheme(context.dtype),
        rows=rows,
        excluded=read_entries(config, ("modules_to_not_convert",), "quantization_config"),
        config_entry="quantization_config.quant_method = awq",
    )


def _group_size(config: Mapping[str, Any]) -> int:
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    if bits != 4:
        raise ValueError(f"awq with bits {bits!r}; expected 4")
    if config.get("zero_point", True) is not True:
        raise ValueError("awq without zero points; expected zero_point true")
    if str(config.get("version", "gemm")).lower() != "gemm":
        raise ValueError(f"awq version {config['version']!r}; expected gemm")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise ValueError(f"awq with group_size {group!r}; expected a positive whole number")
    return group


def _leaves(group: int, dtype: str) -> tuple[Leaf, Leaf, Leaf]:
    return (
        Leaf("qweight", "I32", PACKED, 1, is_transposed=True),
        Leaf("qzeros", "I32", PACKED, group, role="scale", is_transposed=True),
        Leaf("scales", dtype, 1, group, role="scale", is_transposed=True),
    )


def _linear(group: int, dtype: str) -> Scheme:
    return Scheme(
        name=f"awq groups of {group}",
        leaves=_leaves(group, dtype),
        kv_b="awq",
        dequantise="dequantise_awq",
        dequantised_leaves=("qweight", "scales", "qzeros"),
    )


def _wna16_experts(group: int, context: "Context") -> Scheme:
    """Groups are halved until they divide both sides of an expert, never below 32."""
    small = group
    while small > SMALLEST_GROUP and (context.expert_width % small or context.hidden_size % small):
        small //= 2
    codes, zeros, scales = _leaves(group, context.dtype)
    repeat = (group // small,)
    return Scheme(
        name=f"wna16 groups of {small}",
        leaves=(
            Leaf("qweight", "U8", 1, 2, stored=codes, convert="repack_awq_codes"),
            Leaf(
                "qzeros", "U8", 2, small, role="scale",
                stored=zeros, convert="repack_awq_zeros", arguments=repeat,
            ),
            Leaf(
                "scales", context.dtype, 1, small, role="scale",
                stored=scales, convert="transpose_scales", arguments=repeat,
            ),
        ),
        kv_b="awq",
        dequantise="dequantise_awq",
        dequantised_leaves=("qweight", "scales", "qzeros"),
    )  # fmt: skip
