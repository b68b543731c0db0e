"""modelopt's FP8: e4m3 weights with one float32 scale per tensor, and static activation scales."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.formats.fp8 import tensor_scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context


def read(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    algorithm = config.get("quant_algo", "FP8")
    if algorithm != "FP8":
        raise ValueError(f"modelopt_fp8 with quant_algo {algorithm!r}; expected FP8")
    scheme = tensor_scheme(is_static=True)
    kv_cache = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    return Format(
        name=f"{scheme.name} (modelopt)",
        method="modelopt_fp8",
        plain=plain_scheme(context.dtype),
        rows=(Row(scheme),),
        excluded=read_entries(config, ("exclude_modules", "ignore"), "quantization"),
        has_kv_scales=bool(kv_cache),
        config_entry="quant_algo = FP8",
    )
