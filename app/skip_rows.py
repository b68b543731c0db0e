"""Skips of a load by reason, with examples and what each reason means."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from loadscope.loader.events import SKIP_MEANINGS
from loadscope.loader.outcomes import global_skip_masks, global_skips, rank_skip_masks, rank_skips
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.topology import layers_in
from loadscope.loader.views import is_expected

EXAMPLES = 5


def skip_rows(plan: Plan, ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What no rank loads (rank null), then what each rank leaves to others."""
    masks = [
        (tail, mask, why) for tail in plan.tails for mask, why in global_skip_masks(plan, tail)
    ]
    yield from _rows(None, global_skips(plan), masks)
    for rank in ranks:
        yield from _rows(rank, rank_skips(plan, rank), rank_skip_masks(plan, plan.seats[rank]))


def _rows(
    rank: int | None,
    groups: dict[str, dict[str, int]],
    masks: Iterable[tuple[Tail, int, str]],
) -> Iterator[dict[str, Any]]:
    names: dict[str, list[str]] = {}
    for tail, mask, reason in masks:
        found = names.setdefault(reason, [])
        found += islice((tail.name(layer) for layer in layers_in(mask)), EXAMPLES - len(found))
    for reason, group in sorted(groups.items()):
        yield {
            "reason": reason,
            "expected": is_expected(reason),
            **group,
            "rank": rank,
            "examples": names.get(reason, []),
            "meaning": SKIP_MEANINGS[reason],
        }
