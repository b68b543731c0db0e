"""Which scheme a module has, what decided it, and whether the files agree."""

import difflib
from typing import Annotated

from fastapi import APIRouter, Query

from loadscope.app import quant_rows
from loadscope.app.api import examples
from loadscope.app.api.chosen import answer, planned_view
from loadscope.app.api.requests import (
    Cursor,
    Json,
    Limit,
    LoadId,
    RoleName,
    example,
    slice_page,
)
from loadscope.app.problems import Problem
from loadscope.app.services import ServicesDep
from loadscope.loader.plan import Plan
from loadscope.loader.quant import describe_format, describe_module

router = APIRouter(tags=["quantisation"])
SUGGESTIONS = 5
Module = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=400,
        description="a module's full name; left out: all kinds of modules",
        examples=["model.layers.3.self_attn.fused_qkv_a_proj_with_mqa"],
    ),
]


@router.get("/quant", responses=example(examples.QUANT, "kinds of modules, with the format"))
def quant(
    services: ServicesDep,
    module: Module = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Json:
    """With a module: its scheme, the config entry that decided it, what is registered and stored.

    Without: every kind of module, layers that are alike in one row, and the format as a whole.
    404 with `suggestions` for a module that is not there.
    """
    view, plan = planned_view(services, load, role)
    if module is None:
        page = slice_page(quant_rows.quant_rows(plan), limit, cursor)
        return answer(view, {**describe_format(plan), **page, "load": view.load})
    document = describe_module(plan, module)
    if document is None:
        raise _unknown(plan, module, view.role)
    return Json({**document, "role": view.role, "load": view.load})


def _unknown(plan: Plan, module: str, role: str) -> Problem:
    names = quant_rows.module_names(plan)
    close = difflib.get_close_matches(module, names, SUGGESTIONS, cutoff=0.5)
    near = f"; did you mean {close[0]}?" if close else ""
    detail = f"{module} names no module of the {role} model{near}"
    return Problem(404, "unknown-name", detail, suggestions=close)
