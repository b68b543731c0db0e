"""fp8 e4m3 weights: one float32 scale per block (value = code x scale), or one per tensor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.tables import WHOLE, Leaf, Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context

BLOCK = (128, 128)
WEIGHT = Leaf("weight", "F8_E4M3")
INPUT_SCALE = Leaf("input_scale", "F32", WHOLE, WHOLE, role="scale", slot="one")
EXCLUDED = ("ignored_layers", "modules_to_not_convert", "ignore")


def block_scheme(block: tuple[int, int] = BLOCK, scale: str = "weight_scale_inv") -> Scheme:
    rows, columns = block
    return Scheme(
        name=f"fp8 blocks {rows}x{columns}",
        leaves=(WEIGHT, Leaf(scale, "F32", rows, columns, role="scale")),
        kv_b="fp8_block",
        dequantise="dequantise_block",
        dequantised_leaves=("weight", scale),
        block=block,
        unused=("input_scale",),
    )


def tensor_scheme(*, is_static: bool) -> Scheme:
    scale = Leaf("weight_scale", "F32", WHOLE, WHOLE, role="scale")
    return Scheme(
        name="fp8 per tensor" + (", static activations" if is_static else ""),
        leaves=(WEIGHT, scale, *((INPUT_SCALE,) if is_static else ())),
        kv_b="fp8_scale",
        dequantise="dequantise_block",
        dequantised_leaves=("weight", "weight_scale"),
        block=(WHOLE, WHOLE),
        rescaled="weight",
        unused=("input_scale",),
    )


def channel_scheme(*, is_static: bool = False) -> Scheme:
    scale = Leaf("weight_scale", "F32", 1, WHOLE, role="scale")
    return Scheme(
        name="fp8 per channel" + (", static activations" if is_static else ""),
        leaves=(WEIGHT, scale, *((INPUT_SCALE,) if is_static else ())),
        kv_b="fp8_scale",
        dequantise="dequantise_block",
        dequantised_leaves=("weight", "weight_scale"),
        block=(1, WHOLE),
        unused=("input_scale",),
    )


def read(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    activation = config.get("activation_scheme", "dynamic")
    if activation not in ("dynamic", "static"):
        raise ValueError(f"fp8 with activation_scheme {activation!r}; expected dynamic or static")
    block = config.get("weight_block_size")
    if block is None:
        scheme = tensor_scheme(is_static=activation == "static")
    elif activation == "static":
        raise ValueError("fp8 blocks with activation_scheme 'static'; expected dynamic")
    else:
        scheme = block_scheme(read_block(block))
    scale_fmt = config.get("scale_fmt")
    if scale_fmt not in (None, "float32", "ue8m0"):
        raise ValueError(f"scale_fmt {scale_fmt!r}; expected float32 or ue8m0")
    powers = ", power-of-two scales" if scale_fmt == "ue8m0" else ""
    return Format(
        name=scheme.name + powers,
        method="fp8",
        plain=plain_scheme(context.dtype),
        rows=(Row(scheme),),
        excluded=read_entries(config, EXCLUDED, "quantization_config"),
        has_kv_scales=True,
        config_entry="quantization_config.quant_method = fp8",
    )


def read_block(block: object) -> tuple[int, int]:
    """weight_block_size as a pair of positive numbers."""
    match block:
        case [int(rows), int(columns)] if type(rows) is type(columns) is int and rows > 0 < columns:
            return rows, columns
    raise ValueError(f"weight_block_size {block!r}; expected two positive sizes")
