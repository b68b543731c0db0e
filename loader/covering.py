"""What a tensor that arrives stands for: which tensors of the loaded checkpoint it replaces.

An exporter may send gate and up where the files hold both as one, or the other way round. What
both fill is cut into slots: one part of one expert of one parameter kind in one layer.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from loadscope.loader.findings import Finding
from loadscope.loader.incoming import Names
from loadscope.loader.outcomes import routed, uses_of
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source


class Slot(NamedTuple):
    """A part of a target in one layer; `part` and `expert` are None where it has none."""

    role: str
    target: int
    layer: int
    part: str | None
    expert: int | None


class Answer(NamedTuple):
    """What one role says to a tensor: something is `wrong` with it, skipped for a `reason`, or
    taken (both None).
    """

    tail: Tail
    layer: int
    wrong: Finding | None
    reason: str | None

    @property
    def is_taken(self) -> bool:
        return self.wrong is None and self.reason is None


class Covering:
    """One role's plan, asked for names that it may never have seen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.role = plan.role
        self.names = Names(plan)
        self._units = cache(self._units_of)
        self._holders = cache(self._holders_of)
        self._kinds: dict[tuple[str, int], list[Tail]] = {}
        for tail, source, _target in routed(plan):
            self._kinds.setdefault((source.name, tail.expert), []).append(tail)

    def ask(self, name: str, dtype: str, shape: tuple[int, ...]) -> Answer:
        tail, layer, wrong = self.names.find(name, dtype, shape)
        reason = None if wrong is not None else self.names.reason(tail, layer)
        return Answer(tail, layer, wrong, reason)

    def same(self, tail: Tail, layer: int) -> str | None:
        """The loaded tensor of the same kind, however it is spelled."""
        assert tail.source is not None
        for base in self._kinds.get((self.plan.sources[tail.source].name, tail.expert), ()):
            if base.routed >> layer & 1:
                return base.name(layer)
        return None

    def supplies(self, tail: Tail, layer: int) -> frozenset[Slot]:
        """Slots that a tensor fills."""
        sources = (source for source in self._uses(tail) if _fills(source))
        return frozenset(self._slots(sources, tail.expert, layer))

    def needs(self, name: str) -> frozenset[Slot]:
        """Slots that a loaded tensor fills or feeds: it is of no use once others fill them all."""
        tail, layer = self._find(name)
        return frozenset(self._slots(self._uses(tail), tail.expert, layer))

    def fills(self, name: str) -> frozenset[Slot]:
        """Slots that a loaded tensor fills."""
        return self.supplies(*self._find(name))

    def holders(self, slot: Slot) -> list[str]:
        """Loaded tensors that fill or feed a slot."""
        tails = self._holders(slot.target).get((slot.part, slot.expert), ())
        return [tail.name(slot.layer) for tail in tails if tail.routed >> slot.layer & 1]

    def _find(self, name: str) -> tuple[Tail, int]:
        place = self.plan.find(name)
        assert place is not None, name
        return place

    def _uses(self, tail: Tail) -> list[Source]:
        assert tail.source is not None
        return [self.plan.sources[index] for index in self.plan.uses(tail.source)]

    def _slots(self, sources: Iterable[Source], expert: int, layer: int) -> Iterator[Slot]:
        for source in sources:
            assert source.target is not None
            for part, number in self._places(source, expert):
                yield Slot(self.role, source.target, layer, part, number)

    def _places(self, source: Source, expert: int) -> list[tuple[str | None, int | None]]:
        """Part and expert of each slot of one use; a tensor of all experts has the routed ones."""
        assert source.target is not None
        target = self.plan.targets[source.target]
        parts = self._units(source.target) if source.part is None else (source.part,)
        experts: Iterable[int | None] = (None,)
        if source.experts:
            experts = (expert,)
        elif target.is_stacked:
            experts = range(target.experts - target.fused_experts)
        return [(part, number) for number in experts for part in parts]

    def _units_of(self, target: int) -> tuple[str | None, ...]:
        """The parts that a tensor of the whole target has: all that any source names."""
        named = [source.part for source in self.plan.sources if source.target == target]
        return tuple(dict.fromkeys(part for part in named if part is not None)) or (None,)

    def _holders_of(self, target: int) -> dict[tuple[str | None, int | None], list[Tail]]:
        found: dict[tuple[str | None, int | None], list[Tail]] = {}
        for tail, _index, source in uses_of(self.plan, target):
            for place in self._places(source, tail.expert):
                tails = found.setdefault(place, [])
                # one tensor may feed a slot more than once
                if not any(tail is other for other in tails):
                    tails.append(tail)
        return found


def _fills(source: Source) -> bool:
    """Of the inputs of `greatest` each one stands for its own part."""
    return not source.feeds or source.convert == "greatest"
