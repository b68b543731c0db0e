"""Where the time of a load went, and how far each rank is."""

from typing import Any

from loadscope.app.load_view import LoadView
from loadscope.loader.plan import Plan
from loadscope.loader.state import BUCKET_EDGES_S, Durations
from loadscope.loader.views import rank_row


def kernel_rows(view: LoadView) -> list[dict[str, Any]]:
    """Each kind of step; `buckets` are [upper edge in seconds, count], empty ones left out."""
    with view.lock:
        return [_kernel_row(name, each) for name, each in sorted(view.state.durations.items())]


def _kernel_row(name: str, each: Durations) -> dict[str, Any]:
    last = len(BUCKET_EDGES_S) - 1
    return {
        "name": name,
        **each.as_json(),
        "mean_bps": each.bytes / each.seconds if each.seconds else None,
        "buckets": [[BUCKET_EDGES_S[min(i, last)], each.buckets[i]] for i in sorted(each.buckets)],
    }


def timing_rows(view: LoadView) -> list[dict[str, Any]]:
    planning = view.plan.seconds if view.plan is not None else {}
    rows = [_timing("planning", stage, 1, None, seconds) for stage, seconds in planning.items()]
    with view.lock:
        for name, each in sorted(view.state.durations.items()):
            rows.append(_timing("loading", name, each.count, each.bytes, each.seconds))
        for rank in view.state.ranks.values():
            seconds = rank["seconds"]
            rows.append(_timing("rank", str(rank["rank"]), 1, rank["bytes_done"], seconds))
    return rows


def _timing(
    phase: str, name: str, count: int, nbytes: int | None, seconds: float
) -> dict[str, Any]:
    return {"phase": phase, "name": name, "count": count, "bytes": nbytes, "seconds": seconds}


def rank_rows(view: LoadView, plan: Plan) -> list[dict[str, Any]]:
    """Planned facts of every rank, with status `planned` for those that are not loaded here."""
    with view.lock:
        loaded = {number: dict(row) for number, row in view.state.ranks.items()}
    rows = []
    for rank in range(plan.layout.world):
        planned = rank_row(plan, rank) if plan.shapes else {"rank": rank}
        idle = {"status": "planned", "bytes_done": 0, "bytes_total": planned.get("read_bytes", 0)}
        rows.append({**planned, **idle, "seconds": 0.0, **loaded.get(rank, {})})
    return rows
