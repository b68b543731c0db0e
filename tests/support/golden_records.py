"""The recorded facts of the reference loader, and how this loader is asked for the same load."""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from loadscope.loader.plan import Options
from loadscope.loader.topology import Layout
from support.golden_configs import VARIANTS

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
Record = Mapping[str, Any]

PLATFORMS: dict[str, dict[str, Any]] = {
    "cuda": {},
    "generic": {"platform": "cpu"},
    "hip": {"platform": "hip"},
    "hipfnuz": {"platform": "hip-fnuz"},
    "musa": {"platform": "musa"},
    "npu": {"platform": "npu"},
    "cudadgbmm": {"deepgemm_bmm": True},
    "cuda+attnfp8": {"nvfp4_attention_fp8": True},
    "cuda+nextnmoefp8": {"nextn_moe_fp8": True},
    "cuda+both": {"nvfp4_attention_fp8": True, "nextn_moe_fp8": True},
    # where the reference's w_scale starts as None; no option, since that is an accident of its
    "cuda+wsnone": {},
}


@cache
def records() -> dict[str, dict[str, Any]]:
    """All records by id."""
    lines = [
        line
        for variant in VARIANTS
        for line in gzip.decompress((GOLDEN / f"{variant}.jsonl.gz").read_bytes()).splitlines()
    ]
    return {record["id"]: record for record in map(json.loads, lines)}


def comparable() -> list[str]:
    """Ids of the records in which the reference did not raise."""
    return sorted(key for key, record in records().items() if record["error"] is None)


def recorded_files() -> dict[str, str]:
    """sha256 of every file of the golden checkpoints, by `variant/file`."""
    lines = (GOLDEN / "checkpoints.sha256").read_text().splitlines()
    return {path: digest for digest, path in (line.split() for line in lines)}


def variant_of(record: Record) -> str:
    return record["id"].partition("__")[0].partition("@")[0]


def config_of(record: Record) -> dict[str, Any]:
    return VARIANTS[variant_of(record)]


def layout_of(record: Record) -> Layout:
    at = record["topology"]
    return Layout(at["tp_size"], at["ep_size"], at["pp_size"])


def rank_of(record: Record) -> int:
    at = record["topology"]
    return at["pp_rank"] * at["tp_size"] + at["tp_rank"]


def options_of(record: Record) -> Options:
    """The options that stand for the record's platform, role and fusion."""
    quantised = config_of(record).get("quantization_config", {})
    return Options(
        **PLATFORMS[record["platform"]],
        draft=record["is_nextn"],
        fuse_shared_experts=record["fused_shared_experts"],
        quantization=quantised.get("sglang_quantization"),
    )


def draft_layer_of(record: Record) -> int:
    """Layer 0 of a checkpoint of the draft alone, else the first after the target's."""
    num_layers = config_of(record)["num_hidden_layers"]
    return 0 if num_layers == 1 else num_layers


def like_awq_marlin(key: str) -> str:
    """The record of the same load of the same bytes under awq_marlin."""
    return key.replace("v3-awq__", "v3-awq-marlin__")
