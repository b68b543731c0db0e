"""A server that has the page of updates and answers with records that a test changes at will."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Header, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles

from loadscope.app import static
from loadscope.app.pages import page_router
from loadscope.app.panels.snapshot import blank
from loadscope.app.problems import problem_response
from loadscope.app.security import SecurityHeaders
from loadscope.app.server import Server, bind, url_of
from loadscope.app.updates.feed import Feed
from loadscope.app.updates.log import UpdateEvent
from support.update_records import Record

PATIENCE_S = 20.0


class Unstored:
    """Events stay in memory."""

    def append_events(self, update: int, events: Sequence[UpdateEvent]) -> None:
        raise AssertionError("nobody flushes")

    def events(self, update: int, after_seq: int, limit: int) -> list[UpdateEvent]:
        return []

    def last_seq(self, update: int) -> int:
        return 0


class Fake:
    """What is answered, and what was asked to be changed."""

    def __init__(self, *records: Record, **roles: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._feeds: dict[str, Feed] = {}
        self.begin(*records, **roles)

    def begin(self, *records: Record, **roles: str) -> None:
        """Nothing was before. `roles`: their versions; the target has that of the active one."""
        self.close()
        self._feeds = {}
        self.records = {record["id"]: record for record in records}
        self.roles = roles
        self.asked: list[str] = []
        self.reads: Counter[str] = Counter()
        self.refusal: Response | None = None
        self.is_down = False

    def put(self, record: Record) -> None:
        """As the server has it from now on."""
        self.records[record["id"]] = record

    def publish(self, update: str, kind: str, **data: Any) -> None:
        self.feed(update).publish(kind, data)

    def feed(self, update: str) -> Feed:
        if update not in self._feeds:
            self._feeds[update] = Feed(int(update[2:]), Unstored())
            if self._loop is not None:
                self._feeds[update].attach(self._loop)
        return self._feeds[update]

    def refuse(self, status: int, slug: str, detail: str, **extra: object) -> None:
        """The next change that is asked for."""
        self.refusal = problem_response(status, slug, detail, **extra)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for feed in self._feeds.values():
            feed.attach(loop)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def newest_first(self) -> list[Record]:
        return sorted(self.records.values(), key=lambda one: -int(one["id"][2:]))

    @property
    def state(self) -> str:
        """Of the weights: after a poisoned update only a later one that ended well repairs them."""
        for record in self.newest_first():
            if record["state"] in ("active", "poisoned"):
                return "ready" if record["state"] == "active" else "poisoned"
        return "empty"

    def current(self) -> Record:
        """The document of GET /versions/current."""
        state, rows = self.state, self.newest_first()
        served = next((one for one in rows if one["state"] == "active"), None)
        if state == "poisoned":
            served = None
        pending = next((one for one in rows if one["ended_t"] is None), None)
        version = served["version"] if served else None
        roles = {"target": version} | (self.roles if served else {})
        return {
            "current": served and {**_named(served), "committed_t": served["ended_t"]},
            "pending": pending and {**_named(pending), "state": pending["state"]},
            "state": state,
            "roles": {name: {"version": told, "state": state} for name, told in roles.items()},
        }


def _named(record: Record) -> Record:
    return {"version": record["version"], "update": record["id"]}


def create(fake: Fake) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        fake.attach(asyncio.get_running_loop())
        yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(page_router(lambda: blank(1)))
    app.mount("/static", StaticFiles(directory=Path(static.__file__).parent))
    app.add_middleware(SecurityHeaders)
    _add_answers(app, fake)
    return app


def _add_answers(app: FastAPI, fake: Fake) -> None:
    @app.get("/versions/current")
    def current() -> Response:
        if fake.is_down:
            return problem_response(503, "starting", "the server is starting")
        return JSONResponse(fake.current())

    @app.get("/reloads")
    def reloads(limit: int = 20, cursor: int = 0) -> dict[str, Any]:
        rows = fake.newest_first()
        shown = [_without_cells(row) for row in rows[cursor : cursor + limit]]
        more = cursor + limit < len(rows)
        return {"items": shown, "total": len(rows), "next": str(cursor + limit) if more else None}

    @app.get("/reloads/{update}")
    def one(update: str) -> Response:
        fake.reads[update] += 1
        if update not in fake.records:
            return problem_response(404, "unknown-reload", f"there is no update {update}")
        return JSONResponse(fake.records[update])

    @app.get("/reloads/{update}/events", response_class=EventSourceResponse)
    async def events(
        update: str, last_event_id: str | None = Header(default=None), after: str | None = None
    ) -> AsyncIterator[ServerSentEvent]:
        async for frame in fake.feed(update).frames(last_event_id or after):
            yield frame

    @app.delete("/reloads/{update}")
    def cancel(update: str) -> Response:
        return _change(fake, update, "cancel", state="cancelled", weights="unchanged")

    @app.post("/reloads/{update}/rollback")
    def roll_back(update: str) -> Response:
        told = {"state": "rolled_back", "weights": "rolled_back", "can_roll_back": False}
        return _change(fake, update, "rollback", **told)


def _without_cells(record: Record) -> Record:
    if not record.get("delta"):
        return record
    short = {k: v for k, v in record["delta"].items() if k not in ("cells", "by_layer")}
    return record | {"delta": short}


def _change(fake: Fake, update: str, what: str, **changes: Any) -> Response:
    fake.asked.append(f"{what} {update}")
    if fake.refusal is not None:
        return fake.refusal
    record = fake.records[update]
    ended = [row | {"ended_t": row["ended_t"] or row["begun_t"] + 1} for row in record["phases"]]
    fake.put(record | changes | {"phases": ended, "ended_t": ended[-1]["ended_t"]})
    return JSONResponse(fake.records[update])


@contextmanager
def update_server(fake: Fake) -> Iterator[str]:
    """Its address."""
    server = Server(create(fake), fake.close)
    bound = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        bound.close()
