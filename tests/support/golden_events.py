"""What a recorded event of the reference means in this loader's words."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from support.golden_checkpoint import golden_specs
from support.golden_records import Record, config_of, draft_layer_of, records, variant_of
from support.names import layer_of, pattern_of

Event = Mapping[str, Any]

LOADED = ["stacked", "expert", "plain", "indexer_wk_copy", "indexer_weights_proj"]
FUSED = ["fused_qkv_a", "fused_qkv_a_pending", "indexer_wk_pending", "indexer_wk_dequant"]
OUTCOMES = {**dict.fromkeys(LOADED, "loaded"), **dict.fromkeys(FUSED, "fused")}
PARTS = {
    "q_a_proj": "q_a",
    "kv_a_proj_with_mqa": "kv_a",
    "wk": "wk",
    "weights_proj": "weights_proj",
}
# the scale that the reference makes of a weight before it loads; no checkpoint has it
MADE_SUFFIX = "_scale_inv"


def expected_outcome(record: Record, name: str) -> tuple[str, str | None]:
    """Outcome and reason that the last recorded event of a checkpoint tensor stands for."""
    event = record["outcomes"][name][-1]
    if event["kind"] == "no_call":
        return "skipped", _reason(record, name)
    if event["kind"] == "warn":
        return "skipped", "no_destination"
    if event["kind"] == "expert" and event["local"] is None:
        return "skipped", "ep_nonlocal"
    return OUTCOMES[event["kind"]], None


def expected_destinations(record: Record, name: str) -> list[dict[str, Any]]:
    """Where a checkpoint tensor was written, the scale that was made of it included."""
    made = name + MADE_SUFFIX if name.endswith(".weight") else name
    sources = [name] + ([made] if made in made_names(record) else [])
    return [place for source in sources for place in _destination(record, source)]


@cache
def _file_names(variant: str) -> frozenset[str]:
    return frozenset(spec.name for spec in golden_specs(variant))


def made_names(record: Record) -> frozenset[str]:
    """Names that the reference made itself before it loaded."""
    return frozenset(record["outcomes"]) - _file_names(variant_of(record))


@cache
def unknown_patterns(variant: str) -> frozenset[str]:
    """Patterns of the names that the reference itself warns about."""
    return frozenset(
        pattern_of(name)
        for record in records().values()
        if variant_of(record) == variant and record["error"] is None
        for name, events in record["outcomes"].items()
        if events[-1]["kind"] == "warn"
    )


def _destination(record: Record, name: str) -> Iterator[dict[str, Any]]:
    event = record["outcomes"][name][-1]
    is_elsewhere = event["kind"] == "expert" and event["local"] is None
    if event.get("dest") is not None and not is_elsewhere:
        yield {"param": event["dest"], "part": _part(name, event), "expert": event.get("expert")}


def _part(name: str, event: Event) -> str | None:
    if "shard" in event:
        return str(event["shard"])
    module = name.split(".")[-2]
    return PARTS.get(module) if event["dest"].split(".")[-2] != module else None


def _reason(record: Record, name: str) -> str:
    """Why the reference passed a name over in silence, by the first of its rules that does."""
    layer = layer_of(name)
    if record["is_nextn"] and layer != draft_layer_of(record):
        return "not_draft_layer"
    if record["is_nextn"] and ("embed_tokens" in name or "shared_head.head" in name):
        return "shared_with_target"
    if layer is not None and not record["is_nextn"] and layer not in range(*record["stage"]):
        return "pp_range" if layer < config_of(record)["num_hidden_layers"] else "beyond_model"
    if "rotary_emb.inv_freq" in name:
        return "rotary"
    return "bias_absent" if name.endswith(".bias") else "pp_edge"
