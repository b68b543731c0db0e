"""The live snapshot that every panel reads, and the one shown before the first load."""

from collections.abc import Mapping, Sequence
from typing import Any

Snapshot = Mapping[str, Any]
State = Mapping[str, Any]

IDLE: dict[str, Any] = {
    "load": None,
    "role": None,
    "because": None,
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
    return {"v": 0, "load": load, "role": None, "state": state, "grid": None, "throughput": []}


def whole(live: Snapshot) -> dict[str, Any]:
    """As panels read it: `loads` in their order, and `state` of all of them as one."""
    loads = [{**one, "state": {**IDLE, **one["state"]}} for one in (live, *live.get("also", ()))]
    as_one = live.get("together")
    state = loads[0]["state"] if as_one is None else {**IDLE, **as_one}
    return {**live, "loads": loads, "state": state, "has_chips": has_chips(loads)}


def has_chips(loads: Sequence[Mapping[str, Any]]) -> bool:
    """A lone target needs no name; a draft, or two roles, do."""
    return [load["role"] for load in loads] not in (["target"], [None])


def chip(live: Snapshot, load: Mapping[str, Any]) -> str:
    """The role that a row names, empty where there is but one."""
    return str(load["role"]) if live["has_chips"] else ""


def only(live: Snapshot, load: int) -> Snapshot | None:
    """The snapshot of one load of the update; None if it is not among them."""
    found = [one for one in (live, *live.get("also", ())) if one["load"] == load]
    return {**live, **found[0], "also": [], "together": None} if found else None
