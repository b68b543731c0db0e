"""compressed-tensors: groups of modules, each with its own scheme, and an ignore list.

Known: 8-bit floats per channel, tensor or block, and 8-bit integers per channel.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadscope.loader.formats.entries import read_entries
from loadscope.loader.formats.format import Format, Row, plain_scheme
from loadscope.loader.formats.fp8 import block_scheme, channel_scheme, read_block, tensor_scheme
from loadscope.loader.formats.int8 import CHANNEL
from loadscope.loader.tables import Scheme

if TYPE_CHECKING:
    from loadscope.loader.formats import Context


def read(config: Mapping[str, Any], context: "Context") -> Format:
    """The format of a config entry; ValueError says what of it is not supported."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(f"compressed-tensors with config_groups {groups!r}; expected one or more")
    rows = tuple(_row(name, group) for name, group in groups.items())
    return Format(
        name="compressed-tensors: " + ", ".join(dict.fromkeys(row.scheme.name for row in rows)),
        method="compressed-tensors",
        plain=plain_scheme(context.dtype),
        rows=rows,
        excluded=read_entries(config, ("ignore",), "quantization_config"),
        has_kv_scales=bool(config.get("kv_cache_scheme")),
        config_entry="quantization_config.quant_method = compressed-tensors",
    )


def _row(name: str, group: Any) -> Row:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise ValueError(f"config_groups.{name} without weights; expected an object of that name")
    targets = read_entries(group, ("targets",), f"quantization_config.config_groups.{name}")
    scheme = _scheme(name, group["weights"], group.get("input_activations") or {})
    return Row(scheme, included=targets)


def _scheme(name: str, weights: Mapping[str, Any], activations: Mapping[str, Any]) -> Scheme:
    bits, kind, strategy = (weights.get(key) for key in ("num_bits", "type", "strategy"))
    is_static = bool(activations) and activations.get("dynamic") is False
    if (bits, kind, strategy) == (8, "float", "channel"):
        return channel_scheme(is_static=is_static)
    if (bits, kind, strategy) == (8, "float", "tensor"):
        return tensor_scheme(is_static=is_static)
    if (bits, kind, strategy) == (8, "float", "block") and not is_static:
        return block_scheme(read_block(weights.get("block_structure")), "weight_scale")
    if (bits, kind, strategy) == (8, "int", "channel") and not is_static:
        return CHANNEL
    state = "static" if is_static else "dynamic"
    raise ValueError(
        f"config_groups.{name} with {bits} bits, type {kind!r}, strategy {strategy!r}, "
        f"{state} activations; expected 8-bit floats per channel, tensor or block (blocks with "
        f"dynamic activations), or 8-bit integers per channel"
    )
