"""Proof that a plan writes every element once: its own code, sharing no arithmetic with placing.

It counts how often each element of a box is covered (a sweep over cut points), and checks that
slices follow one another in the order of ranks, parts and experts (running sums, no products).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from loadscope.loader.findings import Finding, finding
from loadscope.loader.place import Box, Placement
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source, Target
from loadscope.loader.topology import Layout, Seat, compact, layers_in

MAX_NAMES = 8


def multiplicity(boxes: Sequence[Box], shape: tuple[int, ...]) -> dict[int, int]:
    """How many elements of `shape` are covered how often: {times: elements}.

    What sticks out of the shape counts under -1. Example: boxes ((0, 2),) and ((1, 3),) in (4,)
    give {1: 2, 2: 1, 0: 1}.
    """
    inside = []
    outside = 0
    for box in boxes:
        if len(box) != len(shape) or any(
            a < 0 or b > n for (a, b), n in zip(box, shape, strict=False)
        ):
            outside += prod(max(0, b - a) for a, b in box)
        else:
            inside.append(box)
    counts = _sweep(tuple(sorted(inside)), shape, {})
    if outside:
        counts = {**counts, -1: outside}
    return counts


_Memo = dict[tuple[tuple[Box, ...], int], dict[int, int]]


def _sweep(boxes: tuple[Box, ...], shape: tuple[int, ...], memo: _Memo) -> dict[int, int]:
    """Cut dim 0 at every border; each strip is the same question with one dim less."""
    if not shape:
        return {len(boxes): 1}
    key = (boxes, len(shape))
    if key in memo:
        return memo[key]
    counts: dict[int, int] = {}
    cuts = sorted({0, shape[0], *(edge for box in boxes for edge in box[0])})
    opening: dict[int, list[Box]] = {}
    for box in boxes:
        opening.setdefault(box[0][0], []).append(box)
    active: list[Box] = []
    for start, stop in zip(cuts, cuts[1:], strict=False):
        active = [box for box in active if box[0][1] > start]
        active += [box for box in opening.get(start, ()) if box[0][1] > start]
        strip = _sweep(tuple(sorted(box[1:] for box in active)), shape[1:], memo)
        for times, volume in strip.items():
            counts[times] = counts.get(times, 0) + volume * (stop - start)
    memo[key] = counts
    return counts


@dataclass(slots=True)
class Supply:
    """One name pattern that fills a target: where in the layers it is present and usable."""

    source: int
    expert: int
    present: int
    tail: Tail | None


@dataclass(slots=True)
class Subject:
    """What the proof sees of a plan: kinds, boxes and masks, no rules."""

    layout: Layout
    seats: Sequence[Seat]
    stage_masks: Sequence[int]
    targets: Sequence[Target]
    sources: Sequence[Source]
    tails: Sequence[Tail]
    shapes: Sequence[tuple[int, ...]]
    placements: Mapping[tuple[int, int], Placement]
    zero_boxes: Mapping[tuple[int, int], Box]
    supplies: dict[int, list[Supply]] = field(default_factory=dict)


def prove(subject: Subject) -> list[Finding]:
    """All that is wrong: gaps, overlaps, lost elements, torn pairs, slices out of order."""
    findings = _order(subject)
    findings += _lost(subject)
    findings += _scales_follow_weights(subject)
    subject.supplies = _supplies(subject)
    for index, target in enumerate(subject.targets):
        if target.fill.kind == "checkpoint":
            findings += _TargetProof(subject, index).run()
    return findings


def _supplies(subject: Subject) -> dict[int, list[Supply]]:
    """Per target every name that could fill it, with the layers in which it does."""
    by_place: dict[tuple[int, int], list[Tail]] = {}
    for tail in subject.tails:
        if tail.source is not None and subject.sources[tail.source].target is not None:
            by_place.setdefault((tail.source, tail.expert), []).append(tail)
    supplies: dict[int, list[Supply]] = {}
    for index, source in enumerate(subject.sources):
        if source.target is None:
            continue
        rows = supplies.setdefault(source.target, [])
        for expert in range(max(source.experts, 1)):
            found = by_place.get((index, expert))
            if found is None:
                rows.append(Supply(index, expert, 0, None))
            else:
                rows += [Supply(index, expert, tail.routed, tail) for tail in found]
    return supplies


class _TargetProof:
    """Gap and overlap of one target, once per class of layers that are supplied alike."""

    def __init__(self, subject: Subject, index: int) -> None:
        self.subject = subject
        self.index = index
        self.target = subject.targets[index]
        self.supplies = subject.supplies.get(index, [])
        self.torn: list[tuple[Supply, int]] = []
        self.usable = self._usable()
        self.gaps = _Tally()
        self.overlaps = _Tally()

    def _usable(self) -> list[tuple[Supply, int]]:
        """Supplies that write, each with the layers in which its inputs are all there."""
        halves = {(s.name, s.pair): i for i, s in enumerate(self.subject.sources)}
        present: dict[tuple[int, int], int] = {}
        for supply in self.supplies:
            key = (supply.source, supply.expert)
            present[key] = present.get(key, 0) | supply.present
        usable = []
        for supply in self.supplies:
            source = self.subject.sources[supply.source]
            mask = supply.present
            if source.pair is not None:
                partner = present.get((halves[(source.pair, source.name)], supply.expert), 0)
                if mask & ~partner:
                    self.torn.append((supply, mask & ~partner))
                if source.convert is not None:
                    mask &= partner
            if not source.is_input:
                usable.append((supply, mask))
        return usable

    def run(self) -> list[Finding]:
        for mask in self._layer_classes():
            present = [supply for supply, layers in self.usable if layers & mask]
            for seat in self.subject.seats:
                held = mask & self._held(seat)
                if held:
                    self._count(seat, held, present)
        return [*self._torn_findings(), *self._findings()]

    def _layer_classes(self) -> list[int]:
        """Layers split into classes in which each supply is present everywhere or nowhere."""
        classes = [self.target.layers]
        for mask in {layers for _supply, layers in self.usable}:
            classes = [part for c in classes for part in (c & mask, c & ~mask) if part]
        return classes

    def _held(self, seat: Seat) -> int:
        stage, last = self.target.stage, self.subject.layout.pp_size - 1
        if stage == "layer":
            return self.subject.stage_masks[seat.pp]
        return 1 if seat.pp == (0 if stage == "first" else last) else 0

    def _count(self, seat: Seat, held: int, present: list[Supply]) -> None:
        boxes = self._boxes(seat, present)
        counts = multiplicity(boxes, self.subject.shapes[self.index])
        layers = layers_in(held)
        missing = counts.get(0, 0)
        doubled = sum(n for times, n in counts.items() if times > 1 or times == -1)
        if missing:
            self.gaps.add(self.target, layers, missing, seat, self._absent(present))
        if doubled:
            self.overlaps.add(self.target, layers, doubled, seat, [])

    def _boxes(self, seat: Seat, present: list[Supply]) -> list[Box]:
        boxes = []
        for supply in present:
            placement = self.subject.placements[(supply.source, seat.tp)]
            if not self.target.is_stacked or placement.slot(supply.expert) is not None:
                boxes.append(placement.target_box_of(supply.expert))
        zero = self.subject.zero_boxes.get((self.index, seat.tp))
        return boxes if zero is None else [*boxes, zero]

    def _absent(self, present: list[Supply]) -> list[Supply]:
        there = {(s.source, s.expert) for s in present}
        return [s for s, _mask in self.usable if (s.source, s.expert) not in there]

    def _findings(self) -> Iterable[Finding]:
        if self.gaps.elements:
            yield self._gap()
        if self.overlaps.elements:
            yield finding(
                "LS502",
                self.overlaps.example,
                f"{self.overlaps.example}: {self.overlaps.elements:,} elements are written "
                f"more than once or outside the parameter",
                fix="remove the second tensor that fills the same place",
                pattern=self.target.name,
                count=self.overlaps.count,
                example=self.overlaps.example,
                evidence=self.overlaps.evidence(),
            )

    def _gap(self) -> Finding:
        gaps = self.gaps
        absent = dict.fromkeys(self._wanted(supply, gaps.first_layer) for supply in gaps.absent)
        wanted = list(absent)[:MAX_NAMES]
        rest = len(absent) - len(wanted)
        names = ", ".join(wanted) + (f" and {rest} more" if rest else "")
        return finding(
            "LS501",
            gaps.example,
            f"{gaps.example}: {gaps.elements:,} elements over all ranks are never written; "
            f"missing or unusable: {names}",
            fix="add the missing tensors, or correct what the other findings name",
            pattern=self.target.name,
            count=gaps.count,
            example=gaps.example,
            evidence={**gaps.evidence(), "missing": wanted, "missing_count": len(absent)},
        )

    def _wanted(self, supply: Supply, layer: int) -> str:
        return self.subject.sources[supply.source].full_name(layer, supply.expert)

    def _torn_findings(self) -> Iterable[Finding]:
        groups: dict[int, list[tuple[Supply, int]]] = {}
        for supply, mask in self.torn:
            groups.setdefault(supply.source, []).append((supply, mask))
        for index, rows in groups.items():
            source = self.subject.sources[index]
            assert source.pair is not None
            supply, mask = rows[0]
            layers = layers_in(mask)
            name = source.full_name(layers[0], supply.expert)
            partner = source.pair.replace("{layer}", str(layers[0]))
            yield finding(
                "LS504",
                name,
                f"{name} waits for {partner}, which is not in the checkpoint or cannot be used",
                fix="add the missing half: both are needed for one parameter",
                pattern=source.name,
                count=sum(mask.bit_count() for _s, mask in rows),
                example=name,
                evidence={
                    "waits_for": partner,
                    "layers": compact(layers),
                    "elements": prod(source.shape) * len(layers),
                },
                rule=source.rule,
            )


@dataclass(slots=True)
class _Tally:
    """Elements of one fault over layers and ranks."""

    elements: int = 0
    example: str = ""
    first_layer: int = 0
    names: set[str] = field(default_factory=set)
    ranks: dict[int, int] = field(default_factory=dict)
    absent: list[Supply] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.names)

    def add(
        self, target: Target, layers: list[int], each: int, seat: Seat, absent: list[Supply]
    ) -> None:
        if not self.names:
            self.example, self.first_layer = target.full_name(layers[0]), layers[0]
            self.absent = absent
        self.names.update(target.full_name(layer) for layer in layers)
        self.elements += each * len(layers)
        self.ranks[seat.rank] = self.ranks.get(seat.rank, 0) + each * len(layers)

    def evidence(self) -> dict[str, object]:
        return {
            "elements": self.elements,
            "ranks": {str(rank): n for rank, n in sorted(self.ranks.items())},
            "names": sorted(self.names)[:MAX_NAMES],
        }


def _first_stage(subject: Subject) -> list[Seat]:
    """One TP group: every stage places alike."""
    return [seat for seat in subject.seats if seat.pp == subject.seats[0].pp]


def _lost(subject: Subject) -> list[Finding]:
    """Every source element must reach as many ranks of its stage as its parameter has copies."""
    findings = []
    seats = _first_stage(subject)
    for index, source in enumerate(subject.sources):
        if source.target is None or source.is_input:
            continue
        target = subject.targets[source.target]
        copies = _copies(target, subject.layout)
        fewest = _delivery(subject, index, source, seats)
        total = prod(source.shape) * max(source.experts, 1)
        wrong = total - fewest.get(copies, 0)
        if wrong:
            findings.append(_lost_finding(source, target, wrong, copies, fewest))
    return findings


def _copies(target: Target, layout: Layout) -> int:
    """How many ranks of a TP group hold each element, by the axes that cut it."""
    axes = {split.axis for split in target.splits}
    if axes & {"tp", "vocab"}:
        return 1
    if "ep" in axes and "expert_tp" in axes:
        return 1
    return layout.tp_size if not axes else layout.tp_size // layout.ep_size


def _delivery(
    subject: Subject, index: int, source: Source, seats: Sequence[Seat]
) -> dict[int, int]:
    """{ranks reached: source elements}, over all experts; owners with equal boxes count once."""
    placements = [subject.placements[(index, seat.tp)] for seat in seats]
    if not source.experts:
        return multiplicity([p.source_box for p in placements], source.shape)
    total: dict[int, int] = {}
    groups: dict[tuple[Box, ...], int] = {}
    for expert in range(source.experts):
        boxes = tuple(p.source_box for p in placements if p.slot(expert) is not None)
        groups[boxes] = groups.get(boxes, 0) + 1
    for boxes, experts in groups.items():
        for times, volume in multiplicity(boxes, source.shape).items():
            total[times] = total.get(times, 0) + volume * experts
    return total


def _lost_finding(
    source: Source, target: Target, wrong: int, copies: int, counts: dict[int, int]
) -> Finding:
    return finding(
        "LS503",
        source.name,
        f"{source.name}: {wrong:,} elements of each layer do not reach exactly {copies} rank(s) of "
        f"their stage for {target.name}",
        fix="this is a fault of the planner: report it with the layout and the config",
        pattern=source.name,
        evidence={
            "elements": wrong,
            "copies": copies,
            "reached": {str(k): v for k, v in counts.items()},
        },
        rule=source.rule,
    )


def _order(subject: Subject) -> list[Finding]:
    """Slices must follow one another: ranks along a cut, parts in order, experts in order."""
    findings = []
    seats = _first_stage(subject)
    for index, source in enumerate(subject.sources):
        if source.target is None or source.is_input:
            continue
        target = subject.targets[source.target]
        placements = [subject.placements[(index, seat.tp)] for seat in seats]
        shape = subject.shapes[source.target]
        why = (
            _ranks_out_of_order(target, source, placements, seats)
            or _parts_out_of_order(subject, target, index, seats, shape)
            or _experts_out_of_order(target, source, placements, shape)
        )
        if why:
            findings.append(
                finding(
                    "LS505",
                    source.name,
                    f"{source.name} into {target.name}: {why}",
                    fix="this is a fault of the planner: report it with the layout and the config",
                    pattern=source.name,
                    evidence={"elements": prod(source.shape) * max(source.experts, 1)},
                    rule=source.rule,
                )
            )
    return findings


def _chain(intervals: Iterable[tuple[int, int]], end: int) -> bool:
    """Whether intervals, in this order, run from 0 to `end` without a jump."""
    reached = 0
    for start, stop in intervals:
        if start != reached or stop < start:
            return False
        reached = stop
    return reached == end


def _ranks_out_of_order(
    target: Target, source: Source, placements: Sequence[Placement], seats: Sequence[Seat]
) -> str | None:
    """Along each dim: cut dims chain over the ranks that share an expert, others are whole."""
    lead = 1 if target.is_stacked else 0
    cut_dims = {split.dim - lead: split.axis for split in target.splits if split.axis != "ep"}
    for dim, size in enumerate(source.shape):
        groups: dict[int, list[tuple[int, int]]] = {}
        for placement, seat in zip(placements, seats, strict=True):
            group = seat.ep if cut_dims.get(dim) == "expert_tp" else 0
            groups.setdefault(group, []).append(placement.source_box[dim])
        for intervals in groups.values():
            whole = dim not in cut_dims
            if whole and set(intervals) != {(0, size)}:
                return f"dim {dim} is not cut, but a rank reads only a part of it"
            if not whole and not _chain(intervals, size):
                return f"the ranks' slices of dim {dim} do not follow one another"
    for placement in placements:
        sizes = [b - a for a, b in placement.source_box]
        if sizes != [b - a for a, b in placement.target_box]:
            return "a slice is read with one size and written with another"
    return None


def _parts_out_of_order(
    subject: Subject, target: Target, index: int, seats: Sequence[Seat], shape: tuple[int, ...]
) -> str | None:
    """On each rank the parts fill the fused dim one after another, in the declared order."""
    lead = 1 if target.is_stacked else 0
    fused = target.part_dim - lead
    source = subject.sources[index]
    siblings = [
        next(
            i
            for i, s in enumerate(subject.sources)
            if s.target == source.target and s.part == p.name
        )
        for p in target.parts
    ] or [index]
    for seat in seats:
        boxes = [subject.placements[(i, seat.tp)].target_box for i in siblings]
        local = shape[lead:]
        for dim, size in enumerate(local):
            intervals = [box[dim] for box in boxes]
            if dim == fused and target.parts:
                if not _chain(intervals, size):
                    return "the parts do not follow one another in the parameter"
            elif not target.is_vocabulary and set(intervals) != {(0, size)}:
                return f"dim {dim} of the parameter is not filled from end to end"
            elif target.is_vocabulary and any(a != 0 for a, _b in intervals):
                return "the rows do not begin at the top of the parameter"
    return None


def _experts_out_of_order(
    target: Target, source: Source, placements: Sequence[Placement], shape: tuple[int, ...]
) -> str | None:
    """Expert numbers, read off rank by rank and slot by slot, must count 0, 1, 2, …"""
    if not target.is_stacked:
        return None
    expected, last = 0, None
    for placement in placements:
        if placement.first_expert == last:
            continue
        last = placement.first_expert
        for slot in range(shape[0]):
            owner = [
                e for e in (placement.first_expert + slot, expected) if placement.slot(e) == slot
            ]
            if not owner or owner[0] != expected:
                return f"slot {slot} does not hold expert {expected}"
            box = placement.target_box_of(expected)
            if box[0] != (slot, slot + 1):
                return f"expert {expected} is not written to its slot {slot}"
            expected += 1
    return None if expected == source.experts else f"{expected} of {source.experts} experts placed"


def _scales_follow_weights(subject: Subject) -> list[Finding]:
    """A block scale must be cut where its weight is cut, or codes meet the wrong scale."""
    weights: dict[tuple[str, str | None], int] = {}
    for index, source in enumerate(subject.sources):
        if source.target is not None and source.role == "weight" and not source.convert:
            weights[(source.rule, source.part)] = index
    findings = []
    for index, source in enumerate(subject.sources):
        weight = weights.get((source.rule, source.part))
        if source.role != "scale" or source.is_input or source.block == (1, 1) or weight is None:
            continue
        for seat in _first_stage(subject):
            if not _aligned(subject, index, weight, source.block, seat):
                findings.append(_scale_finding(source, subject.sources[weight], seat))
                break
    return findings


def _aligned(subject: Subject, scale: int, weight: int, block: tuple[int, int], seat: Seat) -> bool:
    ours = subject.placements[(scale, seat.tp)]
    theirs = subject.placements[(weight, seat.tp)]
    if (ours.first_expert, ours.experts) != (theirs.first_expert, theirs.experts):
        return False
    shape = subject.sources[weight].shape
    for per, size, (a, b), (wa, wb) in zip(
        block, shape, ours.source_box, theirs.source_box, strict=True
    ):
        if a * per != wa or not (wb == b * per or (wb == size and (b - 1) * per < size <= b * per)):
            return False
    return all(
        a * per == wa
        for per, (a, _b), (wa, _wb) in zip(block, ours.target_box, theirs.target_box, strict=True)
    )


def _scale_finding(scale: Source, weight: Source, seat: Seat) -> Finding:
    return finding(
        "LS207",
        scale.name,
        f"{scale.name}: on rank {seat.rank} its cut does not lie where {weight.name} is cut",
        fix="choose a layout whose cuts fall between quantisation blocks",
        pattern=scale.name,
        evidence={"rank": seat.rank, "block": list(scale.block), "elements": prod(scale.shape)},
        rule=scale.rule,
    )
