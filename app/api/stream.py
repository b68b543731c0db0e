"""The live stream as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from loadscope.app.problems import Problem
from loadscope.app.services import ServicesDep
from loadscope.app.stream import Full

router = APIRouter(tags=["live"])


async def take_seat(services: ServicesDep) -> AsyncIterator[None]:
    """Refuse before the stream starts: then it is an ordinary answer that a client understands."""
    try:
        services.hub.join()
    except Full:
        raise Problem(
            503, "too-many-clients", "every stream is taken; try again", {"retry-after": "5"}
        ) from None
    try:
        yield
    finally:
        services.hub.leave()


# text, never a number: an EventSource gives up for ever on a 422
LastEventId = Annotated[str | None, Header(description="id of the last frame that was seen")]
After = Annotated[str | None, Query(max_length=100, description="the same, where no header fits")]


@router.get("/events/stream", response_class=EventSourceResponse, dependencies=[Depends(take_seat)])
async def stream(
    services: ServicesDep, last_event_id: LastEventId = None, after: After = None
) -> AsyncIterator[ServerSentEvent]:
    """`snapshot` once, then `delta` up to ten times a second, `bye` at the end.

    Values are absolute, so any gap becomes one merged delta; a foreign id gets a new snapshot.
    """
    # a browser that reconnects repeats the address of old but sends the newest id as a header
    async for frame in services.hub.frames(last_event_id if last_event_id is not None else after):
        yield frame
