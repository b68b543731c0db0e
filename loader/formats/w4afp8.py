"""W4AFP8: linear layers as fp8 blocks; experts as 4-bit codes, two to a byte, in groups of 128.

Activation scales of experts stand under the names w1, w2, w3.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.formats.fp8 import EXCLUDED, block_scheme
from loadscope.loader.tables import WHOLE, Fill, Leaf, Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context

GROUP = 128
UNSET = Fill("initial", 1.0, "the checkpoint has no activation scales: 1.0 means none")
EXPERTS = Scheme(
    name=f"int4 groups of {GROUP}",
    leaves=(
        Leaf("weight", "I8", 1, 2),
        Leaf("weight_scale_inv", "F32", 1, GROUP, role="scale"),
        Leaf(
            "input_scale", "BF16", WHOLE, WHOLE, role="scale",
            slot="each", is_mixtral=True, fill=UNSET,
        ),
    ),
    kv_b="int4",
)  # fmt: skip


def read(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    layers = config.get("quantized_layers") or {}
    if any("NVFP4" in str(entry) for entry in _values(layers)):
        raise ValueError(
            "quantized_layers with NVFP4 (modelopt_mixed); expected int4 experts alone"
        )
    return Format(
        name=f"w4afp8: {EXPERTS.name}, fp8 blocks 128x128",
        method="w4afp8",
        plain=plain_scheme(context.dtype),
        rows=(Row(EXPERTS, "expert"), Row(block_scheme(), "linear")),
        excluded=read_entries(config, EXCLUDED, "quantization_config"),
        config_entry="quant_algo = MIXED_PRECISION (w4afp8)",
    )


def _values(layers: object) -> list[object]:
    return list(layers.values()) if isinstance(layers, Mapping) else []
