"""Finding names in a plan: by text and outcome, and the n-th tensor of a bulk event."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.topology import layers_in
from loadscope.loader.views import (
    global_skip_masks,
    outcome,
    parameters,
    rank_outcome,
    rank_skip_masks,
    routed,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search asks for; None means any. `after` is the last name of the page before."""

    text: str = ""
    outcome: str | None = None
    reason: str | None = None
    rule: str | None = None
    layer: int | None = None
    rank: int | None = None


def search(plan: Plan, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Checkpoint names in file order, then parameter names, that fit; rows for /mapping/search."""
    for name in plan.tensors:
        if wanted.text in name and (row := _tensor_row(plan, name, wanted)) is not None:
            yield row
    if wanted.outcome is None and wanted.reason is None and wanted.rule is None:
        yield from _parameter_rows(plan, wanted)


def _tensor_row(plan: Plan, name: str, wanted: Wanted) -> dict[str, Any] | None:
    place = plan.find(name)
    assert place is not None
    tail, layer = place
    if wanted.layer is not None and (tail.is_top or layer != wanted.layer):
        return None
    what, reason = (
        outcome(plan, tail, layer)
        if wanted.rank is None
        else rank_outcome(plan, tail, layer, plan.seats[wanted.rank])
    )
    source = plan.sources[tail.source] if tail.source is not None else None
    rule = source.rule if source is not None else None
    for asked, found in ((wanted.outcome, what), (wanted.reason, reason), (wanted.rule, rule)):
        if asked is not None and asked != found:
            return None
    tensor = plan.tensors[name]
    has_target = source is not None and source.target is not None and tail.routed >> layer & 1
    return {
        "name": name,
        "kind": "tensor",
        "file": plan.shards[tensor.file].name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "rule": rule,
        "param": plan.targets[source.target].full_name(layer)
        if source is not None and source.target is not None and has_target
        else None,
        "outcome": what,
        "reason": reason,
        "bytes": tensor.stop - tensor.start,
    }


def _parameter_rows(plan: Plan, wanted: Wanted) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for rank in range(plan.layout.world) if wanted.rank is None else (wanted.rank,):
        for view in parameters(plan, rank):
            if view.name in seen or wanted.text not in view.name or view.name in plan.tensors:
                continue
            if wanted.layer is not None and view.layer != wanted.layer:
                continue
            seen.add(view.name)
            yield {
                "name": view.name,
                "kind": "parameter",
                "file": None,
                "dtype": view.dtype,
                "shape": list(view.shape),
                "rule": None,
                "param": view.name,
                "outcome": view.fill,
                "reason": None,
                "bytes": prod(view.shape) * ITEM_BYTES[view.dtype],
            }


_Run = tuple[Tail, int, str | None]


class BulkIndex:
    """The tensors behind a bulk event in its fixed order; made once per kind and rank."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._ends = list(accumulate(mask.bit_count() for _tail, mask, _reason in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, i: int) -> tuple[Tail, int, str | None]:
        """Tail, layer and reason of the i-th tensor."""
        run = bisect.bisect_right(self._ends, i)
        tail, mask, reason = self._runs[run]
        before = self._ends[run - 1] if run else 0
        return tail, layers_in(mask)[i - before], reason

    def position(self, tail: Tail, layer: int) -> int | None:
        """Where a tensor stands in the order; None if the event is not about it."""
        before = 0
        for (other, mask, _reason), end in zip(self._runs, self._ends, strict=True):
            if other is tail and mask >> layer & 1:
                return before + (mask & ((1 << layer) - 1)).bit_count()
            before = end
        return None


def bulk_index(plan: Plan, kind: str, rank: int | None) -> BulkIndex:
    """The order of a `renamed` or `skipped` record (per rank: what only this rank skips)."""
    cache: dict[tuple[str, int | None], BulkIndex] = plan.cache
    key = (kind, rank)
    if key not in cache:
        cache[key] = BulkIndex(list(_runs(plan, kind, rank)))
    return cache[key]


def _runs(plan: Plan, kind: str, rank: int | None) -> Iterator[_Run]:
    if kind == "renamed":
        yield from ((tail, tail.routed, None) for tail, _source, _target in routed(plan))
    elif rank is None:
        for tail in plan.tails:
            yield from (
                (tail, mask, reason) for mask, reason in global_skip_masks(plan, tail) if mask
            )
    else:
        yield from rank_skip_masks(plan, plan.seats[rank])


def bulk_tensor(
    plan: Plan, kind: str, rank: int | None, i: int
) -> tuple[str, str | None, str | None, str | None]:
    """The i-th tensor of a bulk record: name, rule, reason, parameter."""
    tail, layer, reason = bulk_index(plan, kind, rank).at(i)
    source = plan.sources[tail.source] if tail.source is not None else None
    param = None
    if source is not None and source.target is not None and tail.routed >> layer & 1:
        param = plan.targets[source.target].full_name(layer)
    return tail.name(layer), source.rule if source is not None else None, reason, param
