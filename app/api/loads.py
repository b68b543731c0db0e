"""The history of loads, and one load whole."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from loadscope.app.api import examples
from loadscope.app.api.chosen import any_view
from loadscope.app.api.requests import (
    Cursor,
    Json,
    Limit,
    collection,
    decode_cursor,
    encode_cursor,
    example,
)
from loadscope.app.load_findings import load_findings
from loadscope.app.load_rows import live_state, load_row
from loadscope.app.problems import Problem
from loadscope.app.services import Services, ServicesDep
from loadscope.app.tick import thin

router = APIRouter(tags=["loads"])


@router.get("/loads", responses=example(examples.LOADS, "newest first"))
def list_loads(services: ServicesDep, limit: Limit = 50, cursor: Cursor = None) -> Json:
    """Every load that the state directory remembers, whoever ran it."""
    services.store.mark_interrupted()
    key = decode_cursor(cursor, int)
    queries = services.store.queries
    found = queries.loads(limit + 1, before=key[0] if key is not None else None)
    now, live = services.clock(), services.live.views
    page = [load_row(row, live_state(row, live, now)) for row in found[:limit]]
    next_cursor = encode_cursor(page[-1]["id"]) if len(found) > limit else None
    return Json(collection(page, queries.count_loads(), next_cursor))


@router.get("/loads/{load}", responses=example(examples.LOAD, "the load's state and findings"))
def one_load(services: ServicesDep, load: Annotated[int, Path(ge=1)]) -> Json:
    """One load as it is or ended: state, heat map, throughput and findings."""
    return Json(load_document(services, load))


def load_document(services: Services, load: int) -> dict[str, Any]:
    view = any_view(services, load)
    stored = services.store.queries.load(load)
    if stored is None:
        raise Problem(404, "no-such-load", f"load {load} was dropped to save space")
    state = view.document(services.clock())
    with view.lock:
        points = thin(view.state.throughput)
    return {
        **load_row(stored, state),
        "state": state,
        "grid": view.grid(),
        "throughput": points,
        "findings": load_findings(view),
    }
