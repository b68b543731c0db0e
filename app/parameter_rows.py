"""Parameters of a load with what has been written of them; experts of stacked ones."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from loadscope.app.load_view import LoadView
from loadscope.loader.outcomes import deliveries, routed
from loadscope.loader.place import volume
from loadscope.loader.plan import Plan
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
    tails = _tails_by_target(plan).get(parameter.target, ())
    layer = parameter.layer if parameter.layer is not None else 0
    tp = plan.seats[parameter.rank].tp
    count = 0
    for tail in tails:
        placement = plan.placements.get((tail.source, tp)) if tail.routed >> layer & 1 else None
        if placement is not None:
            count += not placement.experts or placement.slot(tail.expert) is not None
    return count


def _tails_by_target(plan: Plan) -> dict[int, list[Any]]:
    if "tails_by_target" not in plan.cache:
        index: dict[int, list[Any]] = {}
        for tail, source, _target in routed(plan):
            assert source.target is not None
            index.setdefault(source.target, []).append(tail)
        plan.cache["tails_by_target"] = index
    kept: dict[int, list[Any]] = plan.cache["tails_by_target"]
    return kept


def slots(view: LoadView, plan: Plan, name: str, rank: int) -> list[dict[str, Any]] | None:
    """Experts of a stacked parameter on one rank; empty if not stacked, None if not there.

    One step writes a parameter's slices of one file, so a slice is written when its file's step is.
    """
    place = find_parameter(plan, name)
    if place is None or not any(p.name == name for p in list_parameters(plan, (rank,))):
        return None
    index, layer = place
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
    for tail in _tails_by_target(plan).get(index, ()):
        if not tail.routed >> layer & 1:
            continue
        for delivery in deliveries(plan, tail, layer, ranks=(rank,)):
            if delivery.expert is not None:
                file = plan.shards[plan.tensors[tail.name(layer)].file].name
                slot = delivery.target_box[0][0]
                yield slot, delivery.expert, file, volume(delivery.source_box)
