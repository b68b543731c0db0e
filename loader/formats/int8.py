"""int8 weights with one float32 scale per row (w8a8_int8) or per block (blockwise_int8)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.formats.fp8 import EXCLUDED
from loadscope.loader.formats.fp8 import read_block as read_block_size
from loadscope.loader.tables import WHOLE, Leaf, Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context

WEIGHT = Leaf("weight", "I8")
CHANNEL = Scheme(
    name="int8 per channel",
    leaves=(WEIGHT, Leaf("weight_scale", "F32", 1, WHOLE, role="scale")),
    kv_b="int8_channel",
    dequantise="dequantise_block",
    dequantised_leaves=("weight", "weight_scale"),
    block=(1, WHOLE),
    unused=("input_scale",),
)


def read_channel(config: Mapping[str, Any], context: "Context") -> Format:
    return _format(CHANNEL, "w8a8_int8", config, context)


def read_block(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    rows, columns = block = read_block_size(config.get("weight_block_size"))
    scheme = Scheme(
        name=f"int8 blocks {rows}x{columns}",
        leaves=(WEIGHT, Leaf("weight_scale_inv", "F32", rows, columns, role="scale")),
        kv_b="int8_block",
        dequantise="dequantise_block",
        dequantised_leaves=("weight", "weight_scale_inv"),
        block=block,
        unused=("input_scale",),
    )
    return _format(scheme, "blockwise_int8", config, context)


def _format(scheme: Scheme, method: str, config: Mapping[str, Any], context: "Context") -> Format:
    return Format(
        name=scheme.name,
        method=method,
        plain=plain_scheme(context.dtype),
        rows=(Row(scheme),),
        excluded=read_entries(config, EXCLUDED, "quantization_config"),
        config_entry=f"quantization_config.quant_method = {method}",
    )
