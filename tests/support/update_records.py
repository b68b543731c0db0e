"""Records of updates as the server writes them: one that went well, one that is receiving."""

import random
import time
from typing import Any

Record = dict[str, Any]
ATTN = "model.layers.{}.self_attn."
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa"
TOP = ("embed_tokens", "norm", "lm_head")
DENSE = ("mlp.gate_up", "mlp.gate_up.scale", "mlp.down", "mlp.down.scale")
SPARSE = (
    "router", "router.bias", "shared.gate_up", "shared.down",
    "experts.w13", "experts.w13.scale", "experts.w2", "experts.w2.scale",
)  # fmt: skip
EVERY = (
    "input_norm", "attn.qkv_a", "attn.qkv_a.scale", "attn.q_a_norm", "attn.q_b", "attn.kv_a_norm",
    "attn.kv_b", "attn.kv_b.scale", "attn.o", "attn.o.scale", "post_attention_norm",
)  # fmt: skip
LAYERS, DENSE_LAYERS = 12, 3
DIGEST = "5b1e00c2a4f94d1c8a1f5f0d3c2b1a09"


def phases(begun: float, **seconds: float) -> Record:
    """`phases` and `phases_s` of phases one after another; the last of 0 seconds goes on."""
    rows, at = [], begun
    for phase, spent in seconds.items():
        rows.append({"phase": phase, "begun_t": at, "ended_t": at + spent if spent else None})
        at += spent
    told = {name: spent or time.time() - at for name, spent in seconds.items()}
    return {"phases": rows, "phases_s": told}


WHOLE = {
    "receiving": 3.1, "planning": 0.4, "verifying": 0.7, "staging": 2.9,
    "quiescing": 0.2, "switching": 0.06, "finalizing": 0.3, "checking": 0.9,
}  # fmt: skip


def active(number: int = 7, version: str = "128", **changes: Any) -> Record:
    """An upload that came whole, was read back equal, and is served."""
    begun = time.time() - 60 * (40 - number)
    return {
        "id": f"u-{number}", "url": f"/reloads/u-{number}", "origin": "native", "state": "active",
        "weights": "new", "version": version, "previous": str(int(version) - 1),
        "expect_current": None, "source": {"type": "upload", "name": None}, "scope": "full",
        "atomicity": "staged", "atomicity_reason": "a second copy fits", "can_roll_back": False,
        "opened_t": begun, "ended_t": begun + sum(WHOLE.values()), "deadline_t": begun + 600,
        "loads": [12], "roles": {"target": role()},
        "plan": plan(), "buckets": buckets(),
        "delta": delta(), "verify": verify(), **phases(begun, **WHOLE),
        "gbps": {"read": 1.1, "switch": 5.3}, "requests": {"retracted": 0, "aborted": 0},
        "quiesce": "drain", "stopped_serving_s": 0.02, "touched": {"count": 0, "names": {}},
        "warnings": [], "failure": None, "events": f"/reloads/u-{number}/events", **changes,
    }  # fmt: skip


def role(load: int | None = 12, **changes: Any) -> Record:
    return {
        "load": load, "tensors": 170, "parameters": 60, "derived_refreshed": 6, "derived_kept": 0,
        "post_processed": True, "reason": None, **changes,
    }  # fmt: skip


def plan(received: int = 170, *, waiting: int = 0, whole: int = 40, **changes: Any) -> Record:
    """What has come of 170 tensors in 40 groups; `waiting` groups have half of their members."""
    groups = {
        "total": 40, "complete": whole, "split_across_buckets": 3,
        "open": [open_group(layer) for layer in range(waiting)],
    }  # fmt: skip
    return {
        "tensors_expected": 170, "tensors_received": received, "unknown": [], "missing": [],
        "ignored": {"rotary_emb.inv_freq": 2}, "groups": groups, "bytes": 3_421_980, **changes,
    }  # fmt: skip


def open_group(layer: int) -> Record:
    attention = ATTN.format(layer)
    return {
        "group": QKV_A.format(layer),
        "have": [f"{attention}q_a_proj.weight", f"{attention}q_a_proj.weight_scale_inv"],
        "waits_for": [
            f"{attention}kv_a_proj_with_mqa.{leaf}" for leaf in ("weight", "weight_scale_inv")
        ],
        "since_bucket": layer,
    }


def buckets(received: int = 12, repeated: int = 1) -> Record:
    return {
        "received": received, "repeated": repeated, "bytes": 291_004 * received,
        "last": received - 1, "last_t": time.time(),
    }  # fmt: skip


def verify(**changes: Any) -> Record:
    return {
        "level": "loaded", "algorithm": "xxh3-128", "checked": 170, "mismatched": [],
        "overall": DIGEST, "loaded_equal": True, "not_comparable": 4, **changes,
    }  # fmt: skip


NOT_YET: Record = {"checked": 0, "overall": None, "loaded_equal": None, "not_comparable": 0}
NUMBERS = {"max_abs": 0.0156, "rms": 3.1e-06, "nan": 0, "inf": 0}


def delta(role: str = "target", **changes: Any) -> Record:
    kinds = {"experts": 0.91, "mla": 1.42, "router": 3.8, "norm": 7.1, "mlp": 0.004, "head": 0.0}
    return {
        "tensors_changed": 58, "elements": 83_982_376, "elements_changed": 789_434,
        "elements_changed_pct": 0.94, **NUMBERS, "dtype_changed": [],
        "by_kind": {name: kind(percent) for name, percent in kinds.items()},
        "by_layer": {}, "cells": cells(role), **changes,
    }  # fmt: skip


def kind(percent: float) -> Record:
    return {
        "tensors_changed": 9, "elements": 1_000_000, "elements_changed": int(percent * 10_000),
        "elements_changed_pct": percent, **NUMBERS,
    }  # fmt: skip


def cells(role: str = "target", layers: int = LAYERS) -> list[Record]:
    """Norms of three layers are as they were; codes of one have no size; one layer holds NaN."""
    chance = random.Random(7)
    places = [("top", module) for module in TOP]
    for layer in range(layers):
        own = DENSE if layer < DENSE_LAYERS else SPARSE
        places += [(str(layer), module) for module in EVERY + own]
    return [cell(layer, module, role, chance) for layer, module in places]


def cell(layer: str, module: str, role: str, chance: random.Random) -> Record:
    is_same = module.endswith("norm") and layer in ("4", "5", "6")
    is_code = module == "experts.w13" and layer == "9"
    relative = 10 ** (-5.5 + 2.5 * chance.random())
    return {
        "layer": layer, "module": module, "role": role, "elements": 1_048_576,
        "changed": 0 if is_same else 9_857, "rms": None if is_code else relative * 0.02,
        "relative": 0.0 if is_same else None if is_code else relative,
        "max_abs": None if is_code else 0.0156, "nan": 0, "inf": 0,
    }  # fmt: skip


def receiving(number: int = 8, version: str = "129", *, came: int = 4, waiting: int = 2) -> Record:
    """Open; four of some twelve buckets have come, two groups wait."""
    begun = time.time() - 2
    told = {
        "state": "receiving", "weights": "pending", "atomicity": None, "atomicity_reason": "",
        "opened_t": begun, "ended_t": None, "loads": [], "roles": {}, "delta": None,
        "plan": plan(20 * came + 1, waiting=waiting, whole=4 * came, missing=[], bytes=0),
        "buckets": buckets(came, 0), "verify": verify(**NOT_YET, level="bytes"),
        "gbps": {"read": None, "switch": None}, "stopped_serving_s": 0.0,
        **phases(begun, receiving=0.0),
    }  # fmt: skip
    return active(number, version, **told)
