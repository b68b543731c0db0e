"""Proof that slices stand in the right order: ranks along a cut, parts, experts, scales beside
their weights. Running sums only, none of the products that placed them."""

from collections.abc import Iterable, Sequence
from math import prod

from loadscope.loader.findings import Finding, finding
from loadscope.loader.place import Placement
from loadscope.loader.proof_subject import Subject
from loadscope.loader.schema import Source, Target
from loadscope.loader.tables import WHOLE, Axis
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
        if source.feeds:
            continue
        why = (
            _ranks_out_of_order(target, source, placements, seats)
            or _padding_in_between(target, source, placements, shape)
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
    """Along each dim: cut dims chain over the ranks that share the rest, others are whole."""
    lead = 1 if source.experts else 0
    cut_dims = {split.dim - lead: split.axis for split in target.splits if split.dim >= lead}
    for dim, size in enumerate(source.extent):
        groups: dict[int, list[tuple[int, int]]] = {}
        for placement, seat in zip(placements, seats, strict=True):
            first, last = placement.source_box[dim]
            origin = source.origin[dim]
            groups.setdefault(_group(cut_dims.get(dim), seat), []).append(
                (first - origin, last - origin)
            )
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


def _group(axis: Axis | None, seat: Seat) -> int:
    """Ranks that stand at one place of the other axis share a chain."""
    return {"expert_tp": seat.ep, "ep": seat.expert_tp}.get(axis or "", 0)


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
    source = subject.sources[index]
    lead = 1 if source.experts else 0
    fused = target.part_dim - lead
    siblings = _companions(subject, index)
    for seat in seats:
        boxes = [subject.placements[(i, seat.tp)].target_box for i in siblings]
        for dim, size in enumerate(shape[lead:]):
            size -= target.fused_experts if dim == 0 and not lead else 0
            intervals = [box[dim] for box in boxes]
            if dim == fused and len(siblings) > 1:
                if not _chain(intervals, size):
                    return "the parts do not follow one another in the parameter"
            elif not target.is_vocabulary and set(intervals) != {(0, size)}:
                return f"dim {dim} of the parameter is not filled from end to end"
            elif target.is_vocabulary and any(a != 0 for a, _b in intervals):
                return "the rows do not begin at the top of the parameter"
    return None


def _companions(subject: Subject, index: int) -> list[int]:
    """Sources that bring the other parts of the same parameter in the same way, in part order."""
    source = subject.sources[index]
    assert source.target is not None
    parts = [part.name for part in subject.targets[source.target].parts]
    if len(parts) < 2 or source.part not in parts:
        return [index]
    found: dict[str | None, int] = {}
    for other, candidate in enumerate(subject.sources):
        alike = candidate.target == source.target and not candidate.feeds
        if alike and _way(candidate) == _way(source):
            found.setdefault(candidate.part, other)
    return [found[part] for part in parts if part in found]


def _way(source: Source) -> tuple[str | None, int]:
    return (source.name if source.is_alternative else None), source.first_expert


def _experts_out_of_order(
    target: Target, source: Source, placements: Sequence[Placement], shape: tuple[int, ...]
) -> str | None:
    """Expert numbers, read off rank by rank and slot by slot, must count 0, 1, 2, …"""
    if not source.experts:
        return None
    split = next((split for split in target.splits if split.axis == "ep"), None)
    kept = target.fused_experts
    if split is None:
        return _fixed_slots(source, placements, 0)
    if kept and source.first_expert >= target.experts - kept:
        return _fixed_slots(source, placements, source.first_expert - (shape[0] - kept))
    expected, last = 0, None
    for placement in placements:
        if placement.first_expert == last:
            continue
        last = placement.first_expert
        for slot in range(shape[0] - kept):
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


def _fixed_slots(source: Source, placements: Sequence[Placement], before: int) -> str | None:
    """Every rank holds every expert of the source, `before` numbers ahead of its slot."""
    for placement in placements:
        for expert in range(source.first_expert, source.first_expert + source.experts):
            slot = expert - before
            is_held = placement.slot(expert) == slot
            if not is_held or placement.target_box_of(expert)[0] != (slot, slot + 1):
                return f"expert {expert} is not written to its slot {slot}"
    return None


def check_scales(subject: Subject) -> list[Finding]:
    """A block scale must be cut where its weight is cut, or codes meet the wrong scale."""
    weights: dict[tuple[str, str | None, int], int] = {}
    for index, source in enumerate(subject.sources):
        if source.target is not None and source.role == "weight" and not source.feeds:
            weights[(source.rule, source.part, source.layers)] = index
    findings = []
    for index, source in enumerate(subject.sources):
        weight = weights.get((source.rule, source.part, source.layers))
        if source.role != "scale" or source.feeds or source.target is None or weight is None:
            continue
        if len(source.per) != len(subject.sources[weight].per):
            continue
        for seat in subject.tp_group():
            if not _aligned(subject, index, weight, seat):
                findings.append(_scale_finding(source, subject.sources[weight], seat))
                break
    return findings


def _aligned(subject: Subject, scale: int, weight: int, seat: Seat) -> bool:
    """Whether a seat's scales begin and end where its codes do, in elements of the weight."""
    ours, theirs = subject.sources[scale], subject.sources[weight]
    mine, placed = subject.placements[(scale, seat.tp)], subject.placements[(weight, seat.tp)]
    is_local = subject.targets[ours.target or 0].splits[:1] or not ours.experts
    if is_local and (mine.first_expert, mine.experts) != (placed.first_expert, placed.experts):
        return False
    for dim, (per, size) in enumerate(zip(ours.per, ours.logical, strict=True)):
        if per == WHOLE:
            continue
        unit = theirs.per[dim]
        (a, b), (wa, wb) = mine.source_box[dim], placed.source_box[dim]
        if (a * per, min(b * per, size)) != (wa * unit, min(wb * unit, size)):
            return False
        if mine.target_box[dim][0] * per != placed.target_box[dim][0] * unit:
            return False
    return True


def _scale_finding(scale: Source, weight: Source, seat: Seat) -> Finding:
    return finding(
        "LS207",
        scale.name,
        f"{scale.name}: on rank {seat.rank} its cut does not lie where {weight.name} is cut",
        fix="choose a layout whose cuts fall between quantisation blocks",
        pattern=scale.name,
        evidence={"rank": seat.rank, "block": list(scale.per), "elements": prod(scale.shape)},
        rule=scale.rule,
    )
