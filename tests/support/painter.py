"""A brute-force painter: every slice of a plan adds one to counters, element by element."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from loadscope.loader.findings import Finding
from loadscope.loader.outcomes import Delivery, deliveries
from loadscope.loader.plan import Plan
from loadscope.loader.views import parameters
from support.destinations import CUT_MODULES
from support.names import pattern_of

Box = tuple[tuple[int, int], ...]


def paint(boxes: Iterable[Box], shape: tuple[int, ...]) -> np.ndarray:
    """How often each element is covered; a box that sticks out is an error."""
    counters = np.zeros(shape, dtype=np.int32)
    for box in boxes:
        assert all(0 <= a <= b <= n for (a, b), n in zip(box, shape, strict=True)), (box, shape)
        counters[tuple(slice(a, b) for a, b in box)] += 1
    return counters


def tally(counters: np.ndarray) -> dict[int, int]:
    """{times: elements}"""
    return dict(Counter(counters.ravel().tolist()))


def writes(plan: Plan) -> Iterator[tuple[str, Delivery]]:
    """Every slice that the plan writes; a conversion writes when both of its inputs are there."""
    for name in plan.tensors:
        found = plan.find(name)
        assert found is not None
        tail, layer = found
        source = None if tail.source is None else plan.sources[tail.source]
        if source is None or source.is_input:
            continue
        if source.convert is None or f"{name}_scale_inv" in plan.tensors:
            yield from ((name, delivery) for delivery in deliveries(plan, tail, layer))


def painted_parameters(plan: Plan) -> dict[tuple[int, str], np.ndarray]:
    """Counters of every parameter that the checkpoint fills, by rank and name."""
    boxes: defaultdict[tuple[int, str], list[Box]] = defaultdict(list)
    for _name, delivery in writes(plan):
        boxes[(delivery.rank, delivery.param)].append(delivery.target_box)
    painted = {}
    for rank in range(plan.layout.world):
        for view in parameters(plan, rank):
            zero = plan.zero_boxes.get((view.target, plan.seats[rank].tp))
            own = boxes[(rank, view.name)] + ([] if zero is None else [zero])
            if view.fill == "checkpoint":
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
    reads: defaultdict[str, list[Box]] = defaultdict(list)
    for name, delivery in writes(plan):
        reads[name].append(delivery.source_box)
    per_layer: dict[str, dict[str, int]] = {}
    for name, boxes in reads.items():
        wrong = _unreached(plan, name, boxes)
        layer = per_layer.setdefault(pattern_of(name), {})
        key = name.partition(".mlp.experts.")[0]
        layer[key] = layer.get(key, 0) + wrong
    return {p: max(layers.values()) for p, layers in per_layer.items() if any(layers.values())}


def _unreached(plan: Plan, name: str, boxes: list[Box]) -> int:
    shape = plan.tensors[name].shape
    copies = 1 if name.split(".")[-2] in CUT_MODULES else plan.layout.tp_size
    return int((paint(boxes, shape) != copies).sum())


def elements(findings: Iterable[Finding], code: str) -> dict[str | None, object]:
    """What the findings of one code count, by pattern."""
    return {f.pattern: f.evidence["elements"] for f in findings if f.code == code}


def fits(plan: Plan) -> bool:
    """Whether every box lies inside its tensor and its parameter."""
    ranks = range(plan.layout.world)
    shapes = {(v.rank, v.name): v.shape for rank in ranks for v in parameters(plan, rank)}
    return all(
        _inside(d.source_box, plan.tensors[name].shape)
        and _inside(d.target_box, shapes[(d.rank, d.param)])
        for name, d in writes(plan)
    )


def _inside(box: Box, shape: tuple[int, ...]) -> bool:
    return all(0 <= a <= b <= n for (a, b), n in zip(box, shape, strict=True))
