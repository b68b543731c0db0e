"""w8a8_fp8: fp8 weights with one float32 scale per row; activations are quantised on the fly."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.formats.fp8 import EXCLUDED, channel_scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context


def read(config: Mapping[str, Any], context: "Context") -> Format:
    scheme = channel_scheme()
    return Format(
        name=scheme.name,
        method="w8a8_fp8",
        plain=plain_scheme(context.dtype),
        rows=(Row(scheme),),
        excluded=read_entries(config, EXCLUDED, "quantization_config"),
        config_entry="quantization_config.quant_method = w8a8_fp8",
    )
