"""Parameters of a load with what has been written of them; experts of stacked ones."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from loadscope.app.load_view import LoadView
from loadscope.loader.outcomes import uses_of
from loadscope.loader.place import Placement, volume
from loadscope.loader.plan import Plan
from loadscope.loader.schema import Source
from loadscope.loader.views import ParameterView, find_parameter, parameters

State = Literal["full", "partial", "unwritten", "initial"]


def list_parameters(plan: Plan, ranks: Sequence[int]) -> list[ParameterView]:
    """All parameters of these ranks in a fixed order; kept with the plan."""
    key = ("parameters", tuple(ranks))
    if key not in plan.cache:
        plan.cache[key] = [view for rank in ranks for view in parameters(plan, rank)]
    kept: list[ParameterView] = plan.cache[key]
    return kept


def state_of(parameter: ParameterView, written: int) -> State:
    if written >= parameter.elements:
        return "full"
    if written:
        return "partial"
    return "initial" if parameter.fill == "initial" else "unwritten"


def written_of(view: LoadView, parameter: ParameterView) -> int:
    """Elements written so far, zero padding included."""
    with view.lock:
        return view.state.written.get((parameter.rank, parameter.name), 0)


def row(view: LoadView, plan: Plan, parameter: ParameterView) -> dict[str, Any]:
    written = written_of(view, parameter)
    return {
        "name": parameter.name,
        "rank": parameter.rank,
        "shape": list(parameter.shape),
        "dtype": parameter.dtype,
        "fill": parameter.fill,
        "elements": parameter.elements,
        "written": written,
        "state": state_of(parameter, written),
        "layer": parameter.layer,
        "module": parameter.module,
        "sources": _count_sources(plan, parameter),
    }


def _count_sources(plan: Plan, parameter: ParameterView) -> int:
    """Checkpoint tensors with a slice of the parameter on its rank."""
    layer = parameter.layer if parameter.layer is not None else 0
    tp = plan.seats[parameter.rank].tp
    found = set()
    for tail, index, source in uses_of(plan, parameter.target):
        placement = plan.placements.get((index, tp)) if tail.routed >> layer & 1 else None
        if placement is not None and (
            not source.experts or placement.slot(tail.expert) is not None
        ):
            found.add(id(tail))
    return len(found)


def slots(view: LoadView, plan: Plan, name: str, rank: int) -> list[dict[str, Any]] | None:
    """Experts of a stacked parameter on one rank; empty if not stacked, None if not there.

    One step writes a parameter's slices of one file, so a slice is written when its file's step is.
    """
    place = find_parameter(plan, name)
    if place is None or not any(p.name == name for p in list_parameters(plan, (rank,))):
        return None
    index, layer = place
    if not plan.targets[index].is_stacked:
        return []
    totals: dict[int, int] = {}
    experts: dict[int, int] = {}
    written: dict[int, int] = {}
    done = view.index.files.get((rank, name), set())
    for slot, expert, file, elements in _pieces(plan, index, layer, rank):
        experts[slot] = expert
        totals[slot] = totals.get(slot, 0) + elements
        written[slot] = written.get(slot, 0) + (elements if file in done else 0)
    return [
        {"expert": experts[slot], "slot": slot, "total": totals[slot], "written": written[slot]}
        for slot in sorted(totals)
    ]


def _pieces(plan: Plan, index: int, layer: int, rank: int) -> Iterator[tuple[int, int, str, int]]:
    """Slot, expert, file and elements of every slice of a stacked parameter."""
    tp = plan.seats[rank].tp
    for tail, number, source in uses_of(plan, index):
        # what only feeds a conversion writes nothing itself
        if not tail.routed >> layer & 1 or source.feeds:
            continue
        file = plan.shards[plan.tensors[tail.name(layer)].file].name
        placement = plan.placements[(number, tp)]
        each = volume(placement.source_box if source.experts else placement.source_box[1:])
        for slot, expert in _experts_of(placement, source, tail.expert):
            yield slot, expert, file, each


def _experts_of(placement: Placement, source: Source, expert: int) -> list[tuple[int, int]]:
    """(slot, expert) of one expert's tensor, or of every expert in a stacked one."""
    if not source.experts:
        slots, experts = placement.target_box[0], placement.source_box[0]
        return list(zip(range(*slots), range(*experts), strict=True))
    slot = placement.slot(expert)
    return [] if slot is None else [(slot, expert)]
