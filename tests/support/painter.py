"""A brute-force painter: every slice of a plan adds one to counters, element by element."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from loadscope.loader.findings import Finding
from loadscope.loader.outcomes import Delivery, deliveries
from loadscope.loader.plan import Plan
from loadscope.loader.schema import Source
from loadscope.loader.views import parameters
from support.destinations import copies_of, copies_of_fused_shared_expert
from support.names import layer_of, pattern_of

Box = tuple[tuple[int, int], ...]


class Write(NamedTuple):
    """One slice that the plan writes, and the use of a tensor that it belongs to."""

    name: str
    source: Source
    delivery: Delivery


def paint(boxes: Iterable[Box], shape: tuple[int, ...]) -> np.ndarray:
    """How often each element is covered; a box that sticks out is an error."""
    counters = np.zeros(shape, dtype=np.int32)
    for box in boxes:
        assert _inside(box, shape), (box, shape)
        counters[tuple(slice(a, b) for a, b in box)] += 1
    return counters


def tally(counters: np.ndarray) -> dict[int, int]:
    """{times: elements}"""
    return dict(Counter(counters.ravel().tolist()))


def writes(plan: Plan) -> Iterator[Write]:
    """Every slice that the plan writes; a conversion writes when all of its inputs are there."""
    for name in plan.tensors:
        found = plan.find(name)
        assert found is not None
        tail, layer = found
        if tail.source is None or plan.sources[tail.source].target is None:
            continue
        told = [plan.sources[index] for index in _told(plan, tail.source)]
        for rank in range(plan.layout.world):
            sent = deliveries(plan, tail, layer, [rank])
            assert len(sent) in (0, len(told))
            for source, delivery in zip(told, sent, strict=False):
                if not source.feeds and _has_inputs(plan, source, layer, tail.expert):
                    yield Write(name, source, delivery)


def _told(plan: Plan, first: int) -> list[int]:
    """The uses of one tensor that `deliveries` lists, in its order."""
    return [i for i in plan.uses(first) if i == first or not plan.sources[i].feeds]


def _has_inputs(plan: Plan, source: Source, layer: int, expert: int) -> bool:
    names = (name.replace("{layer}", str(layer)) for name in source.inputs)
    return all(name.replace("{expert}", str(expert)) in plan.tensors for name in names)


def painted_parameters(plan: Plan) -> dict[tuple[int, str], np.ndarray]:
    """Counters of every parameter that the checkpoint fills, by rank and name.

    One that may keep its initial value counts if any slice of it is written.
    """
    boxes: defaultdict[tuple[int, str], list[Box]] = defaultdict(list)
    for write in writes(plan):
        boxes[(write.delivery.rank, write.delivery.param)].append(write.delivery.target_box)
    touched = {name for _rank, name in boxes}
    painted = {}
    for rank in range(plan.layout.world):
        for view in parameters(plan, rank):
            zero = plan.zero_boxes.get((view.target, plan.seats[rank].tp))
            own = boxes[(rank, view.name)] + ([] if zero is None else [zero])
            if view.is_counted or view.name in touched:
                painted[(rank, view.name)] = paint(own, view.shape)
    return painted


def counted(plan: Plan, *, least: int, most: int | None = None) -> dict[str, int]:
    """Elements per parameter pattern, over all ranks, that are covered so many times."""
    totals: Counter[str] = Counter()
    for (_rank, name), counters in painted_parameters(plan).items():
        hit = (counters >= least) & (True if most is None else counters <= most)
        totals[pattern_of(name)] += int(hit.sum())
    return {pattern: total for pattern, total in totals.items() if total}


def lost(plan: Plan) -> dict[str, int]:
    """Elements per tensor pattern that do not reach the ranks they should, in one layer."""
    reads: defaultdict[tuple[str, int, str | None], list[Write]] = defaultdict(list)
    for write in writes(plan):
        reads[(write.name, write.delivery.target, write.source.part)].append(write)
    per_layer: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
    for (name, _target, _part), group in reads.items():
        # a stage holds every layer of its own, and nothing else
        per_layer[pattern_of(name)][layer_of(name)] += _unreached(plan, group)
    return {p: max(layers.values()) for p, layers in per_layer.items() if any(layers.values())}


def _unreached(plan: Plan, group: list[Write]) -> int:
    """Elements of a share, counted from its origin in the tensor, that arrive too often or not."""
    name, source, first = group[0]
    boxes = [_from_origin(write.delivery.source_box, source) for write in group]
    count = copies_of_fused_shared_expert if _is_fused_shared(plan, first) else copies_of
    keeps_all = plan.format.startswith("nvfp4")
    copies = count(name, source.extent, plan.layout, keeps_all=keeps_all)
    return int((paint(boxes, source.extent) != copies).sum())


def _is_fused_shared(plan: Plan, delivery: Delivery) -> bool:
    return plan.options.fuse_shared_experts and delivery.expert == plan.model.n_routed_experts


def _from_origin(box: Box, source: Source) -> Box:
    return tuple((a - o, b - o) for (a, b), o in zip(box, source.origin, strict=True))


def elements(findings: Iterable[Finding], code: str) -> dict[str | None, int]:
    """What the findings of one code count, by pattern."""
    found: Counter[str | None] = Counter()
    for f in findings:
        if f.code == code:
            found[f.pattern] += int(str(f.evidence["elements"]))
    return dict(found)


def used_sources(plan: Plan) -> set[int]:
    """Indexes of the sources that tensors of this checkpoint fill a parameter by."""
    firsts = {tail.source for tail in plan.tails if tail.source is not None and tail.routed}
    return {i for first in firsts for i in plan.uses(first) if not plan.sources[i].feeds}


def fits(plan: Plan) -> bool:
    """Whether every box lies inside its share of a tensor and inside its parameter."""
    ranks = range(plan.layout.world)
    shapes = {(v.rank, v.name): v.shape for rank in ranks for v in parameters(plan, rank)}
    return all(
        _inside(_from_origin(d.source_box, source), source.extent)
        and _inside(d.target_box, shapes[(d.rank, d.param)])
        for _name, source, d in writes(plan)
    )


def _inside(box: Box, shape: tuple[int, ...]) -> bool:
    return all(0 <= a <= b <= n for (a, b), n in zip(box, shape, strict=True))
