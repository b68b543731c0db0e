"""Example answers for the OpenAPI description: the form of the real ones, with made-up numbers."""

from typing import Any

from loadscope.app.problems import code_of
from loadscope.loader.events import SKIP_MEANINGS

GATE = "model.layers.2.mlp.experts.5.gate_proj.weight"
W13 = "model.layers.2.mlp.experts.w13_weight"
SHARD = "model-00003-of-000008.safetensors"
FINDING = {
    "code": "LS210",
    "level": "note",
    "subject": "model.layers.8.eh_proj.weight",
    "pattern": "model.layers.{layer}.{rest}",
    "count": 41,
    "example": "model.layers.8.eh_proj.weight",
    "message": "layers 8 are the draft layer (41 tensors): not asked for, not loaded",
    "evidence": {},
    "rule": None,
    "fix": "nothing to do for the target model",
}


def _page(item: object) -> dict[str, Any]:
    return {"items": [item], "total": 1, "next": None, "role": "target"}


MAPPING = {
    "query": GATE,
    "direction": "forward",
    "role": "target",
    "name": GATE,
    "file": SHARD,
    "byte_range": [1_204_224, 1_269_760],
    "dtype": "F8_E4M3",
    "shape": [256, 256],
    "steps": [{"rule": "experts.gate_proj", "before": GATE, "after": W13}],
    "outcome": "loaded",
    "reason": None,
    "pair": None,
    "destinations": [
        {
            "rank": 0,
            "param": W13,
            "part": "w1",
            "expert": 5,
            "slot": 5,
            "source_slice": [[0, 256], [0, 256]],
            "target_slice": [[5, 6], [0, 256], [0, 256]],
        }
    ],
    "sources": [],
    "derived": [],
    "events": [17, 1_904],
    "load": 1,
}
SEARCH = _page(
    {
        "name": GATE,
        "kind": "tensor",
        "file": SHARD,
        "dtype": "F8_E4M3",
        "shape": [256, 256],
        "rule": "experts.gate_proj",
        "param": W13,
        "outcome": "loaded",
        "reason": None,
        "bytes": 65_536,
    }
)
PARAMETERS = _page(
    {
        "name": W13,
        "rank": 0,
        "shape": [16, 512, 256],
        "dtype": "F8_E4M3",
        "fill": "checkpoint",
        "elements": 2_097_152,
        "written": 2_097_152,
        "state": "full",
        "layer": 2,
        "module": "experts.w13",
        "sources": 32,
    }
)
SLOTS = _page({"expert": 5, "slot": 5, "total": 131_072, "written": 131_072})
COVERAGE = {
    "rows": ["top", "0", "1"],
    "columns": ["input_norm", "attn.qkv_a"],
    "cells": [
        {"row": 1, "column": 0, "total": 256, "written": 256, "parameters": 1, "unexpected": 0}
    ],
    "load": 1,
    "role": "target",
    "verdict": "pass",
    "sentence": "291 of 291 parameters fully written, 122 pairs closed, 41 tensors skipped, "
    "all expected",
    "parameters_total": 291,
    "parameters_full": 291,
    "shared": [],
}
SKIPS = _page(
    {
        "reason": "beyond_model",
        "expected": True,
        "count": 41,
        "bytes": 3_211_264,
        "rank": None,
        "examples": ["model.layers.8.eh_proj.weight"],
        "meaning": SKIP_MEANINGS["beyond_model"],
    }
)
FUSED = "model.layers.2.self_attn.fused_qkv_a_proj_with_mqa"
QUANT = {
    "format": "modelopt_fp4",
    "method": "modelopt_fp4",
    "fields": {"group_size": 16},
    "entries_total": 2_552,
    "matched": 1_840,
    "never_matched": {"count": 712, "examples": ["language_model.model.layers.61.eh_proj"]},
    "schemes": [{"scheme": "plain", "modules": 1_840, "layers": "0-60"}],
    **_page(
        {
            "module": "model.layers.{layer}.self_attn.fused_qkv_a_proj_with_mqa",
            "layers": "0-60",
            "count": 61,
            "example": FUSED,
            "scheme": "plain",
            "decided_by": "exclude_modules entry 'model.layers.2.self_attn*'",
            "dtypes": ["BF16"],
            "agree": True,
            "disagreements": [],
        }
    ),
    "load": 1,
}
PAIRINGS = _page(
    {
        "param": "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight",
        "rank": 0,
        "have": ["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"],
        "waits_for": ["model.layers.0.self_attn.q_a_proj.weight"],
        "state": "held",
        "axis": 0,
    }
)
FINDINGS = _page(FINDING)
KERNELS = _page(
    {
        "name": "dequantise_block",
        "count": 8,
        "bytes": 3_145_728,
        "seconds": 0.0042,
        "p50_s": 0.00048,
        "p90_s": 0.0007,
        "p99_s": 0.0007,
        "max_s": 0.0007,
        "mean_bps": 748_982_857.1,
        "buckets": [[0.00049, 6], [0.0007, 2]],
    }
)
TIMINGS = _page(
    {"phase": "planning", "name": "resolve", "count": 1, "bytes": None, "seconds": 0.0041}
)
RANKS = _page(
    {
        "rank": 0,
        "pp_rank": 0,
        "tp_rank": 0,
        "ep_rank": 0,
        "layers": "0-7",
        "parameters": 299,
        "parameter_bytes": 92_274_688,
        "read_bytes": 92_274_432,
        "status": "loading",
        "bytes_done": 40_894_464,
        "bytes_total": 92_274_432,
        "seconds": 8.1,
    }
)
EVENTS = _page(
    {
        "seq": 1_904,
        "t": 1_796_076_928.55,
        "load": 1,
        "rank": 0,
        "kind": "copied",
        "tensor": None,
        "param": W13,
        "rule": None,
        "reason": None,
        "bytes": 2_097_152,
        "seconds": 0.0031,
        "detail": {"file": SHARD, "tensors": 32, "elements": 2_097_152, "numel": 2_097_152},
    }
)
PLAN = {
    "verdict": "pass",
    "checkpoint": "demo",
    "role": "target",
    "options": {"platform": "cuda", "indexer_fusion": True, "draft": False},
    "model": {"model_type": "deepseek_v3", "num_hidden_layers": 8},
    "layout": {"tp_size": 8, "ep_size": 1, "pp_size": 1, "ranks": 8},
    "digest": "2eba4ecce5bc6009ea6229a661f40fdb32bcfd8285df135e0439330615d9f4ad",
    "totals": {"tensors": 1_011, "bytes": 100_000_000, "outcomes": {"loaded": 954, "skipped": 41}},
    "ranks": [{"rank": 0, "parameters": 299, "read_bytes": 11_534_336}],
    "findings": [FINDING],
    "seconds": {"resolve": 0.0041},
}
LOAD_ROW = {
    "id": 1,
    "url": "/loads/1",
    "role": "target",
    "update": 1,
    "status": "finished",
    "origin": "demo",
    "source": "demo",
    "digest": "2eba4ecce5bc6009ea6229a661f40fdb32bcfd8285df135e0439330615d9f4ad",
    "started_t": 1_796_076_920.1,
    "finished_t": 1_796_076_940.4,
    "model": "deepseek_v3",
    "verdict": "pass",
    "sentence": COVERAGE["sentence"],
    "bytes": 92_274_432,
    "seconds": 20.3,
}
LOADS = {"items": [LOAD_ROW], "total": 1, "next": None}
LOAD = {
    **LOAD_ROW,
    "state": {"load": 1, "status": "finished", "verdict": "pass"},
    "grid": {"rows": ["top"], "columns": ["embed_tokens"], "cells": []},
    "throughput": [[1_796_076_920.4, 1_048_576]],
    "findings": [FINDING],
}


def problem(status: int, slug: str, detail: str, **extra: object) -> dict[str, Any]:
    """OpenAPI's description of one refusal."""
    document = {
        "type": f"urn:loadscope:{slug}",
        "code": code_of(slug),
        "status": status,
        "detail": detail,
        **extra,
    }
    return {"description": detail, "content": {"application/problem+json": {"example": document}}}
