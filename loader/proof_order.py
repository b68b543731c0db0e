"""Proof that slices stand in the right order: ranks along a cut, parts, experts, scales beside
their weights. Running sums only, none of the products that placed them."""

from collections.abc import Iterable, Sequence
from math import prod

from loadscope.loader.findings import Finding, finding
from loadscope.loader.place import Placement
from loadscope.loader.proof_subject import Subject
from loadscope.loader.schema import Source, Target
from loadscope.loader.topology import Seat


def check_order(subject: Subject) -> list[Finding]:
    """Slices must follow one another: ranks along a cut, parts in order, experts in order."""
    findings = []
    seats = subject.tp_group()
    for index, source in enumerate(subject.sources):
        if source.target is None:
            continue
        target = subject.targets[source.target]
        placements = [subject.placements[(index, seat.tp)] for seat in seats]
        shape = subject.shapes[source.target]
        why = (
            _input_not_whole(source, placements)
            if source.is_input
            else (
                _ranks_out_of_order(target, source, placements, seats)
                or _padding_in_between(target, source, placements, shape)
                or _parts_out_of_order(subject, target, index, seats, shape)
                or _experts_out_of_order(target, source, placements, shape)
            )
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


def _input_not_whole(source: Source, placements: Sequence[Placement]) -> str | None:
    whole = tuple((0, size) for size in source.shape)
    if all(placement.source_box == whole for placement in placements):
        return None
    return "it feeds a conversion and must be read whole on every rank"


def _padding_in_between(
    target: Target, source: Source, placements: Sequence[Placement], shape: tuple[int, ...]
) -> str | None:
    """A rank may pad its vocabulary rows only behind the last real row."""
    if not target.is_vocabulary:
        return None
    for placement in placements:
        rows = placement.target_box[0][1]
        if rows < shape[0] and placement.source_box[0][1] != source.shape[0]:
            return "padding rows stand between real rows"
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


def check_scales(subject: Subject) -> list[Finding]:
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
        for seat in subject.tp_group():
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
