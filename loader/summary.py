"""What a load is going to do, in numbers: the facts of its `plan_made` and `skipped` events."""

from collections.abc import Sequence
from typing import Any

from loadscope.loader.outcomes import global_skips, rank_skips
from loadscope.loader.plan import Plan
from loadscope.loader.steps import Step
from loadscope.loader.topology import layers_in
from loadscope.loader.views import finding_counts, grid, pairs, parameters, rank_row
from loadscope.loader.writing import WHOLE, Writing, written_elements


def describe_load(plan: Plan, ranks: Sequence[int], writing: Writing = WHOLE) -> dict[str, Any]:
    """Totals over the ranks that will be loaded; elements and parameters filled from files."""
    facts: dict[str, Any] = {
        "digest": plan.digest,
        "verdict": plan.verdict,
        "findings": finding_counts(plan),
        "planned_ranks": plan.layout.world,
    }
    if not plan.shapes:
        return {**facts, "grid": None, "ranks": []}
    if writing.files is not None:
        return {**facts, **_describe_part(plan, ranks, writing)}
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
        "steps_total": sum(len(writing.steps(plan, rank)) for rank in ranks),
        "derived_total": sum(row["derived"] for row in rows),
        "pairs_total": sum(pairs(plan, plan.seats[rank]) for rank in ranks),
        "grid": grid(plan, [(view, view.elements) for view in filled]),
        "ranks": [{"rank": row["rank"], "bytes_total": row["read_bytes"]} for row in rows],
    }


def _describe_part(plan: Plan, ranks: Sequence[int], writing: Writing) -> dict[str, Any]:
    """The same of the files that are read: a parameter counts by what they bring of it."""
    work = {rank: writing.steps(plan, rank) for rank in ranks}
    sizes = {rank: written_elements(plan, chosen) for rank, chosen in work.items()}
    reads = {rank: sum(step.nbytes for step in chosen) for rank, chosen in work.items()}
    written = [
        (view, sizes[rank][view.name])
        for rank in ranks
        for view in parameters(plan, rank)
        if view.name in sizes[rank]
    ]
    return {
        "bytes_total": sum(reads.values()),
        "tensors_total": sum(len(step.pieces) for chosen in work.values() for step in chosen),
        "parameters_total": len(written),
        "parameters_initial": 0,
        "elements_total": sum(count for _view, count in written),
        "steps_total": sum(len(chosen) for chosen in work.values()),
        "derived_total": sum(_derived(plan, rank, set(sizes[rank])) for rank in ranks),
        "pairs_total": sum(_pairs(plan, chosen) for chosen in work.values()),
        "grid": grid(plan, written),
        "ranks": [{"rank": rank, "bytes_total": nbytes} for rank, nbytes in reads.items()],
    }


def _derived(plan: Plan, rank: int, written: set[str]) -> int:
    """Derived tensors with an input among the written parameters."""
    held = plan.stage_masks[plan.seats[rank].pp]
    return sum(
        len(derive.outputs)
        for derive in plan.derives
        for layer in layers_in(derive.layers & held)
        if not written.isdisjoint(n.replace("{layer}", str(layer)) for n in derive.inputs)
    )


def _pairs(plan: Plan, chosen: list[Step]) -> int:
    """Pairs of which a step brings the first half by name."""
    sources = (plan.sources[piece.source] for step in chosen for piece in step.pieces)
    return sum(source.pair is not None and source.name < source.pair for source in sources)


def global_skip_detail(plan: Plan) -> tuple[int, dict[str, Any]]:
    return _skip_detail(global_skips(plan))


def rank_skip_detail(plan: Plan, rank: int) -> tuple[int, dict[str, Any]]:
    return _skip_detail(rank_skips(plan, rank))


def _skip_detail(groups: dict[str, dict[str, int]]) -> tuple[int, dict[str, Any]]:
    return sum(group["count"] for group in groups.values()), {"reasons": groups}
