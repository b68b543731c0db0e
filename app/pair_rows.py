"""Pairs that a load has to close: which halves are there, which are awaited."""

from collections.abc import Iterator, Sequence
from typing import Any

from loadscope.app.load_view import LoadView
from loadscope.loader.outcomes import holds, routed
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source, Target
from loadscope.loader.topology import layers_in


def pair_rows(view: LoadView, plan: Plan, ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One row per pair and rank; state open, held (one half is there) or closed."""
    for rank in ranks:
        for tail, source, target in routed(plan):
            if source.pair is None:
                continue
            for layer in layers_in(_told_by(plan, rank, tail, source, target)):
                yield _row(view, rank, source, target, layer, tail.name(layer))


def _told_by(plan: Plan, rank: int, tail: Tail, source: Source, target: Target) -> int:
    """Layers in which this half tells of the pair: the first by name, or the only one there."""
    here = tail.routed & holds(plan, target, plan.seats[rank])
    alone = here & ~plan.partner_mask(tail)
    return here if source.name < str(source.pair) else alone


def _row(
    view: LoadView, rank: int, source: Source, target: Target, layer: int, name: str
) -> dict[str, Any]:
    assert source.pair is not None
    param = target.full_name(layer)
    partner = source.pair.replace("{layer}", str(layer))
    key = f"{param}|{min(source.name, source.pair)}"
    with view.lock:
        held = view.state.held.get((rank, key))
    is_closed = view.index.pairs.get((rank, key))
    have = [name, partner] if is_closed else [held["have"]] if held else []
    waits_for = [] if is_closed else [held["waits_for"]] if held else [name, partner]
    return {
        "param": param,
        "rank": rank,
        "have": have,
        "waits_for": waits_for,
        "state": "closed" if is_closed else "held" if held else "open",
        # a scale is used up by its weight's conversion; other halves lie side by side
        "axis": None if source.convert is not None or source.feeds else target.part_dim,
    }
