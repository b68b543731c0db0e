"""The recorded facts of the reference loader, and what each means in this loader's words."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadscope.loader.topology import Layout
from support.golden_checkpoint import VARIANTS
from support.names import is_draft, layer_of

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
Event = Mapping[str, Any]

LOADED = ["stacked", "expert", "plain", "indexer_wk_copy", "indexer_weights_proj"]
FUSED = ["fused_qkv_a", "fused_qkv_a_pending", "indexer_wk_pending", "indexer_wk_dequant"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where this loader is right to differ from the reference, and how often it is met."""

    name: str
    kind: str
    instead: tuple[str, str | None]
    why: str
    count: int


DIFFERENCES = (
    Difference(
        name="lm_head.weight",
        kind="warn",
        instead=("skipped", "pp_edge"),
        why="the reference warns on every stage but the last that it knows no such parameter",
        count=5,
    ),
)


@cache
def records() -> dict[str, dict[str, Any]]:
    """All records by id."""
    lines = [
        line
        for variant in VARIANTS
        for line in gzip.decompress((GOLDEN / f"{variant}.jsonl.gz").read_bytes()).splitlines()
    ]
    return {record["id"]: record for record in map(json.loads, lines)}


def variant_of(record: Mapping[str, Any]) -> str:
    return record["id"].partition("__")[0]


def layout_of(record: Mapping[str, Any]) -> Layout:
    at = record["topology"]
    return Layout(at["tp_size"], at["ep_size"], at["pp_size"])


def rank_of(record: Mapping[str, Any]) -> int:
    at = record["topology"]
    return at["pp_rank"] * at["tp_size"] + at["tp_rank"]


def recorded_files() -> dict[str, str]:
    """sha256 of every file of the golden checkpoints, by `variant/file`."""
    lines = (GOLDEN / "checkpoints.sha256").read_text().splitlines()
    return {path: digest for digest, path in (line.split() for line in lines)}


def difference(name: str, event: Event) -> Difference | None:
    for row in DIFFERENCES:
        if (row.name, row.kind) == (name, event["kind"]):
            return row
    return None


def expected_outcome(name: str, event: Event, num_layers: int) -> tuple[str, str | None]:
    """Outcome and reason that the recorded event stands for."""
    row = difference(name, event)
    if row is not None:
        return row.instead
    if event["kind"] == "no_call":
        return "skipped", _reason(name, num_layers)
    if event["kind"] == "expert" and event["local"] is None:
        return "skipped", "ep_nonlocal"
    if event["kind"] == "warn":
        return "skipped", "no_destination"
    return {**dict.fromkeys(LOADED, "loaded"), **dict.fromkeys(FUSED, "fused")}[event["kind"]], None


def expected_destination(name: str, event: Event) -> dict[str, Any] | None:
    """Parameter, part and expert that the recorded event names; None where nothing was written."""
    if event.get("dest") is None or (event["kind"] == "expert" and event["local"] is None):
        return None
    return {"param": event["dest"], "part": _part(name, event), "expert": event.get("expert")}


def _part(name: str, event: Event) -> str | None:
    if "shard" in event:
        return str(event["shard"])
    module = name.split(".")[-2]
    return _PARTS.get(module) if event["dest"].split(".")[-2] != module else None


_PARTS = {
    "q_a_proj": "q_a",
    "kv_a_proj_with_mqa": "kv_a",
    "wk": "wk",
    "weights_proj": "weights_proj",
}


def _reason(name: str, num_layers: int) -> str:
    if is_draft(name, num_layers):
        return "beyond_model"
    return "pp_edge" if layer_of(name) is None else "pp_range"
