"""Where a name goes and where it comes from; search over all names."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from loadscope.app.api.chosen import answer, chosen_ranks, planned_view, told
from loadscope.app.api.examples import MAPPING, SEARCH
from loadscope.app.api.requests import (
    Cursor,
    Json,
    Limit,
    LoadId,
    Rank,
    RoleName,
    collection,
    decode_cursor,
    encode_cursor,
    example,
)
from loadscope.app.event_pages import numbers_about
from loadscope.app.problems import Problem
from loadscope.app.services import Services, ServicesDep
from loadscope.loader.explain import explain, suggest
from loadscope.loader.search import Match, Wanted, row, search
from loadscope.loader.tables import FillKind

router = APIRouter(tags=["mapping"])
MAX_NAME = 400
Name = Annotated[
    str,
    Query(
        min_length=1,
        max_length=MAX_NAME,
        description="a checkpoint tensor, a parameter, or a half-renamed name out of a log line",
        examples=["model.layers.3.mlp.experts.17.gate_proj.weight"],
    ),
]
# of tensors, and of parameters: how they get their value
Outcome = Literal["loaded", "fused", "held", "skipped", "failed"] | FillKind


@router.get("/mapping", responses=example(MAPPING, "the name's whole way"))
async def mapping(
    services: ServicesDep,
    name: Name,
    role: RoleName = None,
    rank: Rank = None,
    load: LoadId = None,
) -> Json:
    """One name's way, forward (tensor) or backward (parameter): rules, slices, pair, events.

    404 with `suggestions` when nothing is meant by the name.
    """
    with told():
        view = services.archive.at_hand(load, role)
    if view is not None and view.plan is not None and name in view.plan.tensors:
        # a few look-ups in memory: waiting for a thread would take longer
        return _explained(services, name, role, rank, load)
    return await run_in_threadpool(_explained, services, name, role, rank, load)


def _explained(
    services: Services, name: str, role: RoleName, rank: int | None, load: int | None
) -> Json:
    view, plan = planned_view(services, load, role)
    chosen_ranks(view, plan, rank)
    document = explain(plan, name, rank=rank)
    if document is None:
        suggestions = suggest(plan, name)
        near = f"; did you mean {suggestions[0]}?" if suggestions else ""
        detail = f"{name} names no tensor and no parameter of the {view.role} model{near}"
        raise Problem(404, "unknown-name", detail, suggestions=suggestions)
    events = numbers_about(view, document, rank)
    return Json({**document, "role": view.role, "events": events, "load": view.load})


@router.get("/mapping/search", responses=example(SEARCH, "names in file order, parameters last"))
def mapping_search(
    services: ServicesDep,
    q: Annotated[str, Query(max_length=MAX_NAME, description="part of a name")] = "",
    outcome: Outcome | None = None,
    reason: Annotated[str | None, Query(max_length=80)] = None,
    rule: Annotated[str | None, Query(max_length=200)] = None,
    layer: Annotated[int | None, Query(ge=0)] = None,
    rank: Rank = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Json:
    """Tensors and parameters whose name contains `q` and that fit every filter."""
    view, plan = planned_view(services, load, role)
    chosen_ranks(view, plan, rank)
    matches = search(plan, Wanted(q, outcome, reason, rule, layer, rank))
    start = _place_after(matches, decode_cursor(cursor, str, str))
    page = matches[start : start + limit]
    rest = start + limit < len(matches)
    next_cursor = encode_cursor(*page[-1]) if rest else None
    return answer(
        view, collection([row(plan, match, rank) for match in page], len(matches), next_cursor)
    )


def _place_after(matches: list[Match], key: tuple[str, str] | None) -> int:
    if key is None:
        return 0
    if key in matches:
        return matches.index(key) + 1
    raise Problem(400, "bad-cursor", "the cursor belongs to another search; start without it")
