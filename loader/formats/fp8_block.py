"""fp8 e4m3 weights with one float32 scale per 128 x 128 block; value = code x scale."""

from collections.abc import Mapping
from typing import Any

from loadscope.loader.tables import Format, Leaf

BLOCK = 128


def read(quantization: Mapping[str, Any]) -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    block = quantization.get("weight_block_size")
    if block != [BLOCK, BLOCK]:
        raise ValueError(f"quant_method 'fp8' with weight_block_size {block!r}")
    scheme = quantization.get("activation_scheme", "dynamic")
    if scheme != "dynamic":
        raise ValueError(f"fp8 blocks with activation_scheme {scheme!r}")
    return Format(
        name="fp8 blocks 128x128",
        leaves=(
            Leaf("weight", "F8_E4M3"),
            Leaf("weight_scale_inv", "F32", BLOCK, BLOCK, role="scale"),
        ),
        excluded=_excluded(quantization),
        has_kv_scales=True,
        config_entry="quantization_config.quant_method = fp8",
    )


def _excluded(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    entries = quantization.get("ignored_layers")
    if entries is None:
        entries = quantization.get("modules_to_not_convert")
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(e, str) and e for e in entries):
        raise ValueError(f"ignored_layers {entries!r}, which is no list of module names")
    return tuple(entries)
