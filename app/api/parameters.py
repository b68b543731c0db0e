"""Parameters, the heat map over them, and the experts inside stacked ones."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from loadscope.app import parameter_rows
from loadscope.app.api import examples
from loadscope.app.api.chosen import answer, any_view, chosen_ranks, planned_view
from loadscope.app.api.requests import (
    Cursor,
    Json,
    Limit,
    LoadId,
    Rank,
    RoleName,
    collection,
    example,
    slice_page,
)
from loadscope.app.problems import Problem
from loadscope.app.services import ServicesDep

router = APIRouter(tags=["parameters"])
NO_GRID: dict[str, list[object]] = {"rows": [], "columns": [], "cells": []}


@router.get("/parameters", responses=example(examples.PARAMETERS, "rank by rank"))
def list_parameters(
    services: ServicesDep,
    rank: Rank = None,
    layer: Annotated[int | None, Query(ge=0)] = None,
    module: Annotated[str | None, Query(max_length=200, description="a heat map column")] = None,
    state: parameter_rows.State | None = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Json:
    """Parameters with the elements written so far.

    With `state` a parameter can move between pages while a load runs.
    """
    view, plan = planned_view(services, load, role)
    found = [
        one
        for one in parameter_rows.list_parameters(plan, chosen_ranks(view, plan, rank))
        if (layer is None or one.layer == layer)
        and (module is None or one.module == module)
        and (
            state is None
            or parameter_rows.state_of(one, parameter_rows.written_of(view, one)) == state
        )
    ]
    page = slice_page(found, limit, cursor)
    items = [parameter_rows.row(view, plan, one) for one in page["items"]]
    return answer(view, {**page, "items": items})


@router.get("/parameters/{name}/slots", responses=example(examples.SLOTS, "by slot"))
def list_slots(
    services: ServicesDep,
    name: Annotated[str, Path(max_length=400)],
    rank: Rank = None,
    role: RoleName = None,
    load: LoadId = None,
) -> Json:
    """Experts of one stacked parameter on one rank; none for a parameter that holds no experts."""
    view, plan = planned_view(services, load, role)
    first = chosen_ranks(view, plan, rank)[0]
    items = parameter_rows.slots(view, plan, name, first)
    if items is None:
        raise Problem(404, "unknown-name", f"rank {first} has no parameter {name}")
    return answer(view, collection(items))


@router.get("/coverage", responses=example(examples.COVERAGE, "layers x modules"))
def coverage(services: ServicesDep, role: RoleName = None, load: LoadId = None) -> Json:
    """The heat map: elements written of each module in each layer, over the loaded ranks.

    `shared` names the parameters that a draft takes from the target.
    """
    view = any_view(services, load, role)
    state = view.document(services.clock())
    facts = {key: state[key] for key in examples.COVERAGE if key in state}
    targets = view.plan.targets if view.plan is not None else ()
    shared = [target.name for target in targets if target.fill.kind == "shared"]
    return Json({**(view.grid() or NO_GRID), **facts, "shared": shared})


@router.get(
    "/coverage/{row}/{column}", responses=example(examples.PARAMETERS, "parameters of one cell")
)
def cell(
    services: ServicesDep, row: str, column: str, role: RoleName = None, load: LoadId = None
) -> Json:
    """The parameters behind one cell of the heat map, on every loaded rank."""
    view, plan = planned_view(services, load, role)
    found = [
        one
        for one in parameter_rows.list_parameters(plan, chosen_ranks(view, plan, None))
        if one.module == column and row == ("top" if one.layer is None else str(one.layer))
    ]
    if not found:
        raise Problem(404, "no-such-cell", f"row {row} has no parameters in column {column}")
    return answer(view, collection([parameter_rows.row(view, plan, one) for one in found]))
