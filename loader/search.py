"""Finding names in a plan: by text and outcome, and the n-th tensor of a bulk event."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.outcomes import (
    fill_of,
    global_skip_masks,
    holds,
    outcome,
    rank_outcome,
    rank_skip_masks,
    routed,
)
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.topology import layers_in
from loadscope.loader.views import parameter_places


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search asks for; None means any."""

    text: str = ""
    outcome: str | None = None
    reason: str | None = None
    rule: str | None = None
    layer: int | None = None
    rank: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only the text decides."""
        filters = (self.outcome, self.reason, self.rule, self.layer)
        return all(value is None for value in filters)


Match = tuple[str, str]


def search(plan: Plan, wanted: Wanted) -> list[Match]:
    """(kind, name) of what fits: checkpoint tensors in file order, then parameters."""
    tensors = [n for n in plan.tensors if wanted.text in n] if wanted.text else list(plan.tensors)
    if not wanted.is_plain:
        tensors = [name for name in tensors if _fits(plan, name, wanted)]
    found: list[Match] = [("tensor", name) for name in tensors]
    if wanted.outcome is None and wanted.reason is None and wanted.rule is None:
        found += [("parameter", name) for name in _parameters(plan, wanted)]
    return found


def _fits(plan: Plan, name: str, wanted: Wanted) -> bool:
    place = plan.find(name)
    assert place is not None
    tail, layer = place
    if wanted.layer is not None and (tail.is_top or layer != wanted.layer):
        return False
    source = plan.sources[tail.source] if tail.source is not None else None
    if wanted.rule is not None and (source is None or source.rule != wanted.rule):
        return False
    if wanted.outcome is None and wanted.reason is None:
        return True
    what, reason = _outcome(plan, tail, layer, wanted.rank)
    return wanted.outcome in (None, what) and wanted.reason in (None, reason)


def _outcome(plan: Plan, tail: Tail, layer: int, rank: int | None) -> tuple[str, str | None]:
    if rank is None:
        return outcome(plan, tail, layer)
    return rank_outcome(plan, tail, layer, plan.seats[rank])


def _parameters(plan: Plan, wanted: Wanted) -> Iterator[str]:
    seats = plan.seats if wanted.rank is None else (plan.seats[wanted.rank],)
    for name, (index, layer) in parameter_places(plan).items():
        target = plan.targets[index]
        if wanted.text not in name or name in plan.tensors:
            continue
        if wanted.layer is not None and (target.stage != "layer" or layer != wanted.layer):
            continue
        if any(holds(plan, target, seat) >> layer & 1 for seat in seats):
            yield name


def row(plan: Plan, match: Match, rank: int | None = None) -> dict[str, Any]:
    """What a list shows of one match; the outcome is that on `rank`, if given."""
    kind, name = match
    return _tensor_row(plan, name, rank) if kind == "tensor" else _parameter_row(plan, name)


def _tensor_row(plan: Plan, name: str, rank: int | None) -> dict[str, Any]:
    place = plan.find(name)
    assert place is not None
    tail, layer = place
    what, reason = _outcome(plan, tail, layer, rank)
    rule, param = _rule_and_param(plan, tail, layer)
    tensor = plan.tensors[name]
    return {
        "name": name,
        "kind": "tensor",
        "file": plan.shards[tensor.file].name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "rule": rule,
        "param": param,
        "outcome": what,
        "reason": reason,
        "bytes": tensor.stop - tensor.start,
    }


def _rule_and_param(plan: Plan, tail: Tail, layer: int) -> tuple[str | None, str | None]:
    """The rule that decided a tensor, and the parameter that it fills."""
    source = plan.sources[tail.source] if tail.source is not None else None
    param = None
    if source is not None and source.target is not None and tail.routed >> layer & 1:
        param = plan.targets[source.target].full_name(layer)
    return source.rule if source is not None else None, param


def _parameter_row(plan: Plan, name: str) -> dict[str, Any]:
    index, layer = parameter_places(plan)[name]
    target, shape = plan.targets[index], plan.shapes[index]
    return {
        "name": name,
        "kind": "parameter",
        "file": None,
        "dtype": target.dtype,
        "shape": list(shape),
        "rule": None,
        "param": name,
        "outcome": fill_of(plan, index, layer),
        "reason": None,
        "bytes": prod(shape) * ITEM_BYTES[target.dtype],
    }


_Run = tuple[Tail, int, str | None]


class BulkIndex:
    """The tensors behind a bulk event in its fixed order; made once per kind and rank."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._ends = list(accumulate(mask.bit_count() for _tail, mask, _reason in runs))
        self._by_tail: dict[int, list[int]] = {}
        for number, (tail, _mask, _reason) in enumerate(runs):
            self._by_tail.setdefault(id(tail), []).append(number)

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
        for number in self._by_tail.get(id(tail), ()):
            mask = self._runs[number][1]
            if mask >> layer & 1:
                before = self._ends[number] - mask.bit_count()
                return before + (mask & ((1 << layer) - 1)).bit_count()
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
    rule, param = _rule_and_param(plan, tail, layer)
    return tail.name(layer), rule, reason, param
