"""The loads of one update as one: sums, the most urgent status, the first cause of a failure."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadscope.loader.state import STORES_WORST_FIRST

State = Mapping[str, Any]

SUMMED = (
    "bytes_done", "bytes_total", "parameters_total", "parameters_full", "elements_total",
    "elements_written", "tensors_total", "tensors_done", "steps_total", "steps_done",
    "derived_total", "derived_done", "pairs_total", "pairs_closed", "skipped", "skips_unexpected",
)  # fmt: skip
# what runs comes before what has ended, and what ended badly before the rest
STATUSES = (
    "paused", "loading", "planning", "waiting", "idle",
    "failed", "refused", "interrupted", "finished",
)  # fmt: skip
RUNNING = STATUSES[:5]
ETA_AFTER_S = 2.0


def together(states: Sequence[State]) -> dict[str, Any] | None:
    """One STATE for an update of several loads; None for one load, which speaks for itself.

    Lists that differ by role (kernels, skips, ranks, pairs that wait) stay with the loads.
    """
    if len(states) < 2:
        return None
    first = states[0]
    chief = min(states, key=lambda state: STATUSES.index(state["status"]))
    cause = cause_of(states)
    return {
        **{key: first[key] for key in ("load", "model", "source", "layout", "device", "paced")},
        "roles": [state["role"] for state in states],
        "status": chief["status"],
        "phase": chief["phase"],
        "paused": chief["paused"],
        "started_t": first["started_t"],
        "finished_t": None if chief["status"] in RUNNING else latest(states, "finished_t"),
        "elapsed_s": latest(states, "elapsed_s"),
        **{key: sum(state[key] for state in states) for key in SUMMED},
        **_speed(states),
        "findings": {
            level: sum(state["findings"][level] for state in states) for level in first["findings"]
        },
        "verdict": _verdict(states),
        "sentence": f"{cause['role']}: {cause['sentence']}" if cause else sentence(states),
        "ranks": first["ranks"],
        "last": max((s["last"] for s in states if s["last"]), key=_time, default=None),
        "failure": _failure(cause),
        "store": min((s["store"] for s in states), key=_store_order),
        "events_dropped": latest(states, "events_dropped"),
    }


def cause_of(states: Sequence[State]) -> State | None:
    """The load that ended badly by itself, not because another one did."""
    bad = [state for state in states if state["status"] in ("failed", "refused", "interrupted")]
    return next((state for state in bad if state["because"] is None), bad[0] if bad else None)


def _failure(cause: State | None) -> dict[str, Any] | None:
    """With the role that its tensor and parameter belong to."""
    failure = cause["failure"] if cause is not None else None
    return {**failure, "role": cause["role"]} if cause is not None and failure else None


def latest(states: Sequence[State], key: str) -> float | None:
    return max((state[key] for state in states if state[key] is not None), default=None)


def _store_order(store: State) -> int:
    return STORES_WORST_FIRST.index(store["state"])


def _time(last: State) -> float:
    return float(last["t"])


def _speed(states: Sequence[State]) -> dict[str, float | None]:
    """The rate of the load that runs, time left for all, the mean over the time bytes moved."""
    rate = next((state["rate_bps"] for state in states if state["rate_bps"]), None)
    left = sum(state["bytes_total"] - state["bytes_done"] for state in states)
    is_known = rate is not None and (latest(states, "elapsed_s") or 0.0) > ETA_AFTER_S
    means = [(state["bytes_done"], state["mean_bps"]) for state in states if state["mean_bps"]]
    moving_s = sum(nbytes / mean for nbytes, mean in means)
    is_over = len(means) == len(states)
    return {
        "rate_bps": rate,
        "eta_s": left / rate if rate is not None and is_known else None,
        "mean_bps": sum(nbytes for nbytes, _mean in means) / moving_s if is_over else None,
    }


def _verdict(states: Sequence[State]) -> str:
    verdicts = {state["verdict"] for state in states}
    return next(verdict for verdict in ("fail", "pending", "pass") if verdict in verdicts)


def sentence(states: Sequence[State]) -> str:
    """What was written of all roles; their own sentences say the rest."""
    full, total, pairs, skipped, unexpected = (
        sum(state[key] for state in states)
        for key in (
            "parameters_full", "parameters_total", "pairs_closed", "skipped", "skips_unexpected",
        )
    )  # fmt: skip
    roles = " and ".join(state["role"] for state in states)
    tail = "all skips expected" if not unexpected else f"{unexpected:,} skips unexpected"
    return f"{full:,} of {total:,} parameters of {roles} fully written, {pairs:,} pairs closed" + (
        f", {tail}" if skipped else ""
    )
