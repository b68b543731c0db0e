"""Loads as the history lists them: from their stored summary, the running one from memory."""

from collections.abc import Iterable
from typing import Any

from loadscope.app.load_view import LoadView

SUMMARY = (
    "model", "verdict", "sentence", "bytes_done", "bytes_total", "elapsed_s", "mean_bps",
    "parameters_full", "parameters_total", "skipped", "findings", "layout",
)  # fmt: skip


def summary_of(state: dict[str, Any]) -> dict[str, Any]:
    """What the history keeps of a load's last state."""
    return {key: state.get(key) for key in SUMMARY}


def live_state(
    stored: dict[str, Any], live: Iterable[LoadView], now: float
) -> dict[str, Any] | None:
    """Where a load stands that runs in this process; None for the others."""
    if stored["finished_t"] is not None:
        return None
    return next((view.document(now) for view in live if view.load == stored["id"]), None)


def load_row(stored: dict[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
    """One line of the history, from the load's state if that is at hand."""
    summary = summary_of(state) if state is not None else stored["summary"]
    return {
        "id": stored["id"],
        "url": f"/loads/{stored['id']}",
        "role": stored["role"],
        "update": stored["update_id"],
        "status": state["status"] if state is not None else stored["status"],
        "origin": stored["origin"],
        "source": stored["source"],
        "digest": stored["digest"],
        "started_t": stored["started_t"],
        "finished_t": stored["finished_t"],
        **{key: summary.get(key) for key in SUMMARY},
        "bytes": summary.get("bytes_done"),
        "seconds": _seconds(stored, summary),
        "events_dropped": stored["events_dropped"],
    }


def _seconds(stored: dict[str, Any], summary: dict[str, Any]) -> float | None:
    if stored["finished_t"] is not None:
        seconds: float = stored["finished_t"] - stored["started_t"]
        return seconds
    return summary.get("elapsed_s")
