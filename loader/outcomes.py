"""What happens to each tensor of a plan, over all ranks and on one: outcomes, slices, skips."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.place import Box
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source, Target
from loadscope.loader.tables import FillKind
from loadscope.loader.topology import Seat


def holds(plan: Plan, target: Target, seat: Seat) -> int:
    """Layers (bit mask; 1 outside the layers) of a target that a seat holds."""
    if target.stage == "layer":
        return target.layers & plan.stage_masks[seat.pp]
    return (
        target.layers
        if seat.pp == (0 if target.stage == "first" else plan.layout.pp_size - 1)
        else 0
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """One tensor's slice on one rank."""

    rank: int
    target: int
    param: str
    part: str | None
    expert: int | None
    source_box: Box
    target_box: Box


def outcome(plan: Plan, tail: Tail, layer: int) -> tuple[str, str | None]:
    """What happens to one tensor over all ranks: outcome and reason."""
    bit = 1 << layer
    if not plan.targets:
        return "failed", "the model is not known: see the findings"
    if tail.beyond & bit:
        return "skipped", plan.beyond_reason
    if tail.failed & bit:
        return "failed", "wrong shape or dtype"
    if tail.source is None or not tail.routed & bit:
        return "skipped", "no_destination"
    source = plan.sources[tail.source]
    if source.target is None:
        return "skipped", source.reason
    if plan.waits(tail) and not plan.partner_mask(tail) & bit:
        return "held", None
    return source.outcome, None


def rank_outcome(plan: Plan, tail: Tail, layer: int, seat: Seat) -> tuple[str, str | None]:
    """The same on one rank: what other ranks hold is skipped there, with the reason."""
    what, reason = outcome(plan, tail, layer)
    if what in ("skipped", "failed") or tail.source is None:
        return what, reason
    source = plan.sources[tail.source]
    assert source.target is not None
    target = plan.targets[source.target]
    if not holds(plan, target, seat) >> layer & 1:
        return "skipped", "pp_range" if target.stage == "layer" else "pp_edge"
    placement = plan.placements.get((tail.source, seat.tp))
    if placement is None:
        return "failed", "the layout is not legal"
    if source.experts and placement.slot(tail.expert) is None:
        return "skipped", "ep_nonlocal"
    return what, None


def deliveries(
    plan: Plan, tail: Tail, layer: int, ranks: Sequence[int] | None = None
) -> list[Delivery]:
    """Every slice of one tensor, on all ranks or the given ones."""
    found = []
    for rank in ranks if ranks is not None else range(plan.layout.world):
        seat = plan.seats[rank]
        if rank_outcome(plan, tail, layer, seat)[0] not in ("loaded", "fused", "held"):
            continue
        assert tail.source is not None
        for index in plan.uses(tail.source):
            source = plan.sources[index]
            if index == tail.source or not source.feeds:
                found.append(_delivery(plan, index, source, tail, layer, seat))
    return found


def _delivery(
    plan: Plan, index: int, source: Source, tail: Tail, layer: int, seat: Seat
) -> Delivery:
    assert source.target is not None
    placement = plan.placements[(index, seat.tp)]
    return Delivery(
        rank=seat.rank,
        target=source.target,
        param=plan.targets[source.target].full_name(layer),
        part=source.part,
        expert=tail.expert if source.experts else None,
        source_box=placement.source_box,
        target_box=placement.target_box_of(tail.expert),
    )


def global_skips(plan: Plan) -> dict[str, dict[str, int]]:
    """Tensors that no rank loads: {reason: {count, bytes}}."""
    groups: dict[str, dict[str, int]] = {}
    for tail in plan.tails if plan.targets else ():
        for mask, reason in global_skip_masks(plan, tail):
            _add(groups, reason, tail, mask)
    return groups


def global_skip_masks(plan: Plan, tail: Tail) -> Iterator[tuple[int, str]]:
    rest = tail.seen & ~tail.beyond & ~tail.failed
    if tail.beyond:
        yield tail.beyond, plan.beyond_reason
    if tail.source is not None and (reason := plan.sources[tail.source].reason) is not None:
        yield rest, reason
    elif rest & ~tail.routed:
        yield rest & ~tail.routed, "no_destination"


def rank_skips(plan: Plan, rank: int) -> dict[str, dict[str, int]]:
    """Tensors that other ranks load and this one does not: {reason: {count, bytes}}."""
    groups: dict[str, dict[str, int]] = {}
    for tail, mask, reason in rank_skip_masks(plan, plan.seats[rank]):
        _add(groups, reason, tail, mask)
    return groups


def rank_skip_masks(plan: Plan, seat: Seat) -> Iterator[tuple[Tail, int, str]]:
    for tail, source, target in routed(plan):
        held = holds(plan, target, seat)
        away = tail.routed & ~held
        if away:
            yield tail, away, "pp_range" if target.stage == "layer" else "pp_edge"
        here = tail.routed & held
        assert tail.source is not None
        if here and source.experts:
            placement = plan.placements.get((tail.source, seat.tp))
            if placement is not None and placement.slot(tail.expert) is None:
                yield tail, here, "ep_nonlocal"


def routed(plan: Plan) -> Iterator[tuple[Tail, Source, Target]]:
    """Tails that reach a parameter somewhere, with their first use."""
    for tail in plan.tails:
        if tail.source is not None and tail.routed:
            source = plan.sources[tail.source]
            if source.target is not None:
                yield tail, source, plan.targets[source.target]


def uses(plan: Plan) -> Iterator[tuple[Tail, int, Source, Target]]:
    """Every use of every tail that reaches a parameter: (tail, source index, source, target)."""
    for tail, _first, _target in routed(plan):
        assert tail.source is not None
        for index in plan.uses(tail.source):
            source = plan.sources[index]
            assert source.target is not None
            yield tail, index, source, plan.targets[source.target]


def uses_of(plan: Plan, target: int) -> list[tuple[Tail, int, Source]]:
    """Uses that fill or feed a target: (tail, source index, source); kept with the plan."""
    if "uses_of_target" not in plan.cache:
        found: dict[int, list[tuple[Tail, int, Source]]] = {}
        for tail, index, source, _target in uses(plan):
            assert source.target is not None
            found.setdefault(source.target, []).append((tail, index, source))
        plan.cache["uses_of_target"] = found
    kept: dict[int, list[tuple[Tail, int, Source]]] = plan.cache["uses_of_target"]
    return kept.get(target, [])


def stored_layers(plan: Plan, target: int) -> int:
    """Layers (bit mask) in which the files have something to write to a target."""
    mask = 0
    for tail, _index, source in uses_of(plan, target):
        mask |= 0 if source.feeds else tail.routed
    return mask


def layers_by_fill(plan: Plan, index: int) -> dict[FillKind, int]:
    """How a target gets its value, by layers: an initial value gives way to one in the files."""
    target = plan.targets[index]
    if target.fill.kind != "initial":
        return {target.fill.kind: target.layers}
    stored = target.layers & stored_layers(plan, index)
    return {"checkpoint": stored, "initial": target.layers & ~stored}


def fill_of(plan: Plan, index: int, layer: int) -> FillKind:
    """How a target gets its value in one layer."""
    fills = layers_by_fill(plan, index)
    return next(kind for kind, mask in fills.items() if mask >> layer & 1)


def _add(groups: dict[str, dict[str, int]], reason: str, tail: Tail, mask: int) -> None:
    group = groups.setdefault(reason, {"count": 0, "bytes": 0})
    group["count"] += mask.bit_count()
    for shape, where in tail.shapes.items():
        group["bytes"] += (mask & where).bit_count() * prod(shape) * ITEM_BYTES.get(tail.dtype, 0)
