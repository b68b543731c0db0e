"""What a load is going to do, in numbers: the facts of its `plan_made` and `skipped` events."""

from collections.abc import Sequence
from typing import Any

from loadscope.loader.outcomes import global_skips, rank_skips
from loadscope.loader.plan import Plan
from loadscope.loader.steps import steps
from loadscope.loader.views import finding_counts, grid, pairs, parameters, rank_row


def describe_load(plan: Plan, ranks: Sequence[int]) -> dict[str, Any]:
    """Totals over the ranks that will be loaded; elements and parameters filled from files."""
    facts: dict[str, Any] = {
        "digest": plan.digest,
        "verdict": plan.verdict,
        "findings": finding_counts(plan),
        "planned_ranks": plan.layout.world,
    }
    if not plan.shapes:
        return {**facts, "grid": None, "ranks": []}
    rows = [rank_row(plan, rank) for rank in ranks]
    views = [view for rank in ranks for view in parameters(plan, rank)]
    filled = [view for view in views if view.is_counted]
    return {
        **facts,
        "bytes_total": sum(row["read_bytes"] for row in rows),
        "tensors_total": sum(row["tensors"] for row in rows),
        "parameters_total": len(filled),
        "parameters_initial": len(views) - len(filled),
        "elements_total": sum(view.elements for view in filled),
        "steps_total": sum(len(steps(plan, rank)) for rank in ranks),
        "derived_total": sum(row["derived"] for row in rows),
        "pairs_total": sum(pairs(plan, plan.seats[rank]) for rank in ranks),
        "grid": grid(plan, ranks),
        "ranks": [{"rank": row["rank"], "bytes_total": row["read_bytes"]} for row in rows],
    }


def global_skip_detail(plan: Plan) -> tuple[int, dict[str, Any]]:
    return _skip_detail(global_skips(plan))


def rank_skip_detail(plan: Plan, rank: int) -> tuple[int, dict[str, Any]]:
    return _skip_detail(rank_skips(plan, rank))


def _skip_detail(groups: dict[str, dict[str, int]]) -> tuple[int, dict[str, Any]]:
    return sum(group["count"] for group in groups.values()), {"reasons": groups}
