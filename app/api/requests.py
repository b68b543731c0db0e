"""What routes share: strict query parameters, cursors, pages, and the parameters they repeat."""

import base64
import binascii
import difflib
import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from loadscope.app.encoding import dumps
from loadscope.app.problems import Problem
from loadscope.app.roles import Role

MAX_LIMIT = 1000
LoadId = Annotated[int | None, Query(ge=1, description="a load's id; the newest if left out")]
RoleName = Annotated[
    Role | None,
    Query(
        description="target or draft: which load of an update; "
        "left out: the one that load= names, else the target if it is served"
    ),
]
Rank = Annotated[int | None, Query(ge=0, description="one rank; all if left out")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items in one answer")]
Cursor = Annotated[
    str | None, Query(max_length=600, description="`next` of the answer before this one")
]


class Json(JSONResponse):
    """JSON encoded at once, without a model in between."""

    def render(self, content: Any) -> bytes:
        return dumps(content)


def refuse_unknown_query(request: Request) -> None:
    """A misspelled filter must not silently answer something else."""
    route = request.scope.get("route")
    assert isinstance(route, APIRoute), route
    known = [field.alias for field in route.dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise Problem(422, "unknown-parameter", _unknown(name, known), parameter=name)


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    meant = f"; perhaps {close[0]}" if close else ""
    takes = ", ".join(known) or "no parameters"
    return f"unknown query parameter {name}{meant}. This address takes: {takes}"


def encode_cursor(*key: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """The key in a cursor; anything that this server did not write is refused."""
    if cursor is None:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        key = None
    is_ours = isinstance(key, list) and [type(part) for part in key] == list(kinds)
    if not is_ours:
        raise Problem(400, "bad-cursor", "the cursor is damaged; start again without it")
    return tuple(key)


def collection(
    items: Sequence[object], total: int | None = None, next_cursor: str | None = None
) -> dict[str, Any]:
    """The form of every list answer."""
    return {"items": items, "total": len(items) if total is None else total, "next": next_cursor}


def slice_page(items: Sequence[object], limit: int, cursor: str | None) -> dict[str, Any]:
    """One page of a list whose order never changes."""
    start = (decode_cursor(cursor, int) or (0,))[0]
    if start < 0:
        raise Problem(400, "bad-cursor", "the cursor is damaged; start again without it")
    end = start + limit
    return collection(
        items[start:end], len(items), encode_cursor(end) if end < len(items) else None
    )


def example(document: object, description: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` for a route that answers with this kind of document."""
    content = {"application/json": {"example": document}}
    return {200: {"description": description, "content": content}}
