"""Checkpoint tensors back out of the parameters: gathered from the ranks, parts taken apart."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from loadscope.loader.checksums import tensor_checksum
from loadscope.loader.coverage import multiplicity
from loadscope.loader.dtypes import cast
from loadscope.loader.events import SKIP_MEANINGS
from loadscope.loader.outcomes import Delivery, deliveries, outcome
from loadscope.loader.parameters import ParameterStore, torch_dtype
from loadscope.loader.place import Box
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.revert import can_revert, narrow, revert, same_bits
from loadscope.loader.schema import Source
from loadscope.loader.steps import read_shape
from loadscope.loader.topology import compact
from loadscope.loader.write import box_of

Stores = Mapping[int, ParameterStore]

# how reasons begin: the last two say that what stands in memory is wrong
CONVERTED, NARROWED, ELSEWHERE = "converted on its way", "narrowed on its way", "not here"
DISAGREE, IMPOSSIBLE = "ranks disagree", "no such tensor can have come"
FAULTS = (DISAGREE, IMPOSSIBLE)


@dataclass(frozen=True, slots=True)
class Gathered:
    """One checkpoint tensor as the parameters hold it, in the dtype and shape of the files.

    `values` is None where it cannot be had back, and `reason` says why. Elements that several ranks
    hold must be the same bits on all of them: `disagreeing` has (rank, parameter) of those that
    hold others than most do, `values` is what most hold. `shards`: its slices on the ranks here.
    """

    name: str
    role: str | None
    dtype: str
    shape: tuple[int, ...]
    values: torch.Tensor | None = None
    reason: str | None = None
    disagreeing: tuple[tuple[int, str], ...] = ()
    shards: tuple[Delivery, ...] = ()

    @property
    def replicas_agree(self) -> bool:
        return not self.disagreeing


class Gatherer:
    """Reads live stores by role and rank; whoever asks sees to it that nobody writes meanwhile."""

    def __init__(self, plans: Mapping[str, Plan], stores: Mapping[str, Stores]) -> None:
        self._plans, self._stores = plans, stores

    def gather(self, name: str, role: str | None = None) -> Gathered:
        """By checkpoint name, out of one role or of whichever has it; if several do, they agree."""
        roles = [one for one in self._plans if role in (None, one)]
        found = [
            _Search(name, one, self._plans[one], self._stores.get(one, {})).run()
            for one in roles
            if name in self._plans[one].tensors
        ]
        if not found:
            return Gathered(name, role, "", (), reason="no plan knows this name")
        # of those without values the one that some rank holds says most
        first, *others = sorted(found, key=lambda one: (one.values is None, not one.shards))
        for other in others:
            if not _agree(first, other):
                differing = tuple((shard.rank, shard.param) for shard in other.shards)
                first = replace(first, disagreeing=(*first.disagreeing, *differing))
        return first

    def names(self, role: str | None = None) -> list[str]:
        """Every tensor of the checkpoints that the weights came from, whether loaded or not."""
        plans = [plan for one, plan in self._plans.items() if role in (None, one)]
        return list(dict.fromkeys(name for plan in plans for name in plan.tensors))


def _agree(one: Gathered, other: Gathered) -> bool:
    if one.values is None or other.values is None:
        return True
    return one.dtype == other.dtype and same_bits(one.values, other.values)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a tensor comes back: from these (target, part), which together have this shape."""

    places: frozenset[tuple[int | None, str | None]]
    shape: tuple[int, ...]
    converted: Source | None = None


class _Lost(Exception):
    """The tensor cannot be had back; the message says why."""


class _Search:
    """One tensor of one role."""

    def __init__(self, name: str, role: str, plan: Plan, stores: Stores) -> None:
        self._name, self._role, self._plan, self._stores = name, role, plan, stores
        self._stored = plan.tensors[name]
        self._dtype = torch_dtype(self._stored.dtype)

    def run(self) -> Gathered:
        stored = self._stored
        nothing = Gathered(self._name, self._role, stored.dtype, stored.shape)
        place = self._plan.find(self._name)
        assert place is not None, f"{self._name} is in the plan and has no tail"
        tail, layer = place
        what, reason = outcome(self._plan, tail, layer)
        if what not in ("loaded", "fused"):
            return replace(nothing, reason=_why_not(what, reason))
        shards = tuple(deliveries(self._plan, tail, layer, sorted(self._stores)))
        nothing = replace(nothing, shards=shards)
        try:
            way = self._way(tail)
            used = tuple(one for one in shards if (one.target, one.part) in way.places)
            self._check_whole(tail, layer, way, used)
            values, differing = self._assemble(used, way)
            values = self._restore(values, used, way).reshape(stored.shape)
        except _Lost as lost:
            return replace(nothing, reason=str(lost))
        return replace(nothing, values=values, disagreeing=tuple(differing), shards=used)

    def _way(self, tail: Tail) -> _Way:
        assert tail.source is not None
        uses = [self._plan.sources[index] for index in self._plan.uses(tail.source)]
        copies = [one for one in uses if one.convert is None]
        if copies:
            places = frozenset((one.target, one.part) for one in copies)
            return _Way(places, read_shape(copies[0]))
        for one in uses:
            if can_revert(one):
                return _Way(frozenset({(one.target, one.part)}), one.extent, one)
        names = dict.fromkeys(one.convert for one in uses if one.convert is not None)
        raise _Lost(f"{CONVERTED}: {', '.join(names)}")

    def _check_whole(self, tail: Tail, layer: int, way: _Way, used: Sequence[Delivery]) -> None:
        """Whether every element is on a rank here; else who has the rest."""
        if _covers(used, way.shape):
            return
        world, here = self._plan.layout.world, {one.source_box for one in used}
        away = sorted(
            {
                one.rank
                for one in deliveries(self._plan, tail, layer)
                if one.rank not in self._stores and one.source_box not in here
            }
        )
        what = "the rest" if used else "it"
        if len(away) == 1:
            told = f"rank {away[0]} of {world} holds {what} and is not loaded here"
        else:
            told = f"ranks {compact(away)} of {world} hold {what} and are not loaded here"
        raise _Lost(f"{ELSEWHERE}: {told}")

    def _assemble(
        self, used: Sequence[Delivery], way: _Way
    ) -> tuple[torch.Tensor, list[tuple[int, str]]]:
        """The whole tensor, and who holds other values than most: replica by replica."""
        holders: dict[Box, list[Delivery]] = {}
        for shard in used:
            holders.setdefault(shard.source_box, []).append(shard)
        dtype = self._dtype if way.converted is None else self._held(used[0]).dtype
        values = torch.empty(way.shape, dtype=dtype)
        differing: list[tuple[int, str]] = []
        for box, replicas in holders.items():
            piece, others = self._elect(replicas, way)
            place = box_of(values, box)
            place.copy_(piece.reshape(place.shape))
            differing += [(one.rank, one.param) for one in others]
        return values, differing

    def _elect(self, replicas: list[Delivery], way: _Way) -> tuple[torch.Tensor, list[Delivery]]:
        """What most replicas hold, the first ones if there is no most, and those that differ."""
        first = self._piece(replicas[0], way)
        if all(same_bits(first, self._piece(one, way)) for one in replicas[1:]):
            return first, []
        sums = [tensor_checksum(self._held(one)) for one in replicas]
        ((most, _count),) = Counter(sums).most_common(1)
        others = [one for one, digest in zip(replicas, sums, strict=True) if digest != most]
        return self._piece(replicas[sums.index(most)], way), others

    def _held(self, shard: Delivery) -> torch.Tensor:
        return box_of(self._stores[shard.rank].parameters[shard.param], shard.target_box)

    def _piece(self, shard: Delivery, way: _Way) -> torch.Tensor:
        """A slice on the host, in the dtype of the files if it was copied."""
        held = self._held(shard).cpu()
        return held if way.converted is not None else self._uncast(held, shard)

    def _uncast(self, held: torch.Tensor, shard: Delivery) -> torch.Tensor:
        if held.dtype == self._dtype:
            return held
        target = self._plan.targets[shard.target].dtype
        if cast(self._stored.dtype, target) != "widening":
            raise _Lost(f"{NARROWED}: {self._stored.dtype} in the files, {target} here")
        back = narrow(held, self._dtype)
        if back is None:
            raise _Lost(
                f"{IMPOSSIBLE}: rank {shard.rank} holds values in {shard.param} ({target}) that "
                f"{self._stored.dtype} does not have"
            )
        return back

    def _restore(self, values: torch.Tensor, used: Sequence[Delivery], way: _Way) -> torch.Tensor:
        if way.converted is None:
            return values
        back = revert(way.converted, values)
        if back is None:
            shard = used[0]
            raise _Lost(f"{IMPOSSIBLE}: {shard.param} holds no result of {way.converted.convert}")
        return self._uncast(back, used[0])


def _why_not(what: str, reason: str | None) -> str:
    if what == "held":
        return "not loaded: what it needs is not in the files"
    meaning = SKIP_MEANINGS.get(reason or "")
    return f"{what}: {reason}" + (f" ({meaning})" if meaning else "")


def _covers(shards: Iterable[Delivery], shape: tuple[int, ...]) -> bool:
    boxes, elements = tuple({shard.source_box for shard in shards}), prod(shape)
    if not boxes or not elements:
        return bool(boxes)
    counts = multiplicity(boxes, shape)
    assert counts.keys() <= {0, 1}, f"slices overlap and are no replicas: {boxes}"
    return 0 not in counts


def live_checksums(
    gatherer: Gatherer, names: Iterable[str] | None = None, algorithm: str = "xxh3-128"
) -> tuple[dict[str, str], dict[str, str]]:
    """({name: checksum}, {name: why it has none}); ranks that differ are such a reason too."""
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for name in gatherer.names() if names is None else names:
        one = gatherer.gather(name)
        if one.values is None:
            assert one.reason is not None, f"{name}: neither values nor a reason"
            reasons[name] = one.reason
        elif one.disagreeing:
            rank, param = one.disagreeing[0]
            reasons[name] = f"{DISAGREE}: rank {rank} holds other values in {param} than most do"
        else:
            found[name] = tensor_checksum(one.values, algorithm)
    return found, reasons


def runtime_checksums(
    stores: Mapping[str, Stores],
    algorithm: str = "xxh3-128",
    names: Container[str] | None = None,
) -> dict[str, dict[int, dict[str, str]]]:
    """Checksums of parameters and derived tensors by role, rank and name, of all or the named."""
    return {
        role: {rank: dict(_of_store(store, algorithm, names)) for rank, store in ranks.items()}
        for role, ranks in stores.items()
    }


def _of_store(
    store: ParameterStore, algorithm: str, names: Container[str] | None
) -> Iterator[tuple[str, str]]:
    for name, tensor in (*store.parameters.items(), *store.derived.items()):
        if names is None or name in names:
            yield name, tensor_checksum(tensor, algorithm)
