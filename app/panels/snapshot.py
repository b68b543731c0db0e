"""The live snapshot that every panel reads, and the one shown before the first load."""

from collections.abc import Mapping
from typing import Any

Snapshot = Mapping[str, Any]
State = Mapping[str, Any]

IDLE: dict[str, Any] = {
    "load": None,
    "status": "idle",
    "phase": "planning",
    "model": None,
    "source": None,
    "roles": [],
    "paced": False,
    "paused": False,
    "started_t": None,
    "elapsed_s": 0.0,
    "finished_t": None,
    "bytes_done": 0,
    "bytes_total": 0,
    "rate_bps": None,
    "mean_bps": None,
    "eta_s": None,
    "parameters_total": 0,
    "parameters_full": 0,
    "elements_total": 0,
    "elements_written": 0,
    "tensors_total": 0,
    "tensors_done": 0,
    "steps_total": 0,
    "steps_done": 0,
    "derived_total": 0,
    "derived_done": 0,
    "pairs_total": 0,
    "pairs_closed": 0,
    "pairs_held": [],
    "skips": {},
    "skipped": 0,
    "skips_unexpected": 0,
    "findings": {"error": 0, "warning": 0, "note": 0},
    "verdict": "pending",
    "sentence": "",
    "kernels": {},
    "ranks": [],
    "last": None,
    "failure": None,
    "store": {"state": "empty", "epoch": 0},
}


def blank(load: int | None = None) -> dict[str, Any]:
    """What a page shows until the browser has fetched the load it is about."""
    state = {**IDLE, "load": load}
    return {"v": 0, "load": load, "state": state, "grid": None, "throughput": []}
