"""The event log, page by page."""

from typing import Annotated

from fastapi import APIRouter, Query

from loadscope.app.api import examples
from loadscope.app.api.chosen import answer, any_view, chosen_ranks
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
from loadscope.app.event_pages import Filters, event_page
from loadscope.app.services import ServicesDep
from loadscope.loader.events import Kind

router = APIRouter(tags=["events"])
Name = Annotated[
    str | None,
    Query(max_length=400, description="a tensor or a parameter: what /mapping counts"),
]


@router.get("/events", responses=example(examples.EVENTS, "oldest first"))
def events(
    services: ServicesDep,
    kind: Kind | None = None,
    rank: Rank = None,
    param: Annotated[str | None, Query(max_length=400)] = None,
    name: Name = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Json:
    """Facts of one load in the order of their numbers; each rename and skip is one event.

    Numbers never change, so pages neither miss nor repeat an event while the load runs.
    """
    view = any_view(services, load, role)
    if view.plan is not None:
        chosen_ranks(view, view.plan, rank)
    key = decode_cursor(cursor, int)
    page = event_page(
        services.store.queries,
        view,
        Filters(kind, rank, param, name),
        after=key[0] if key is not None else 0,
        limit=limit,
    )
    next_cursor = encode_cursor(page.last_seq) if page.last_seq is not None else None
    return answer(view, collection(page.items, page.total, next_cursor))
