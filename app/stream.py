"""The live stream: one tick of the recorder becomes one frame that every client shares.

    Live (thread) --publish--> Hub (event loop) --frames--> any number of clients

A tick is a value: the loop builds frames from it without asking, or waiting for, the load.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from fastapi.sse import ServerSentEvent

from loadscope.app.encoding import dumps
from loadscope.app.tick import Position, Tick, delta, snapshot

RETRY_MS = 2000


class Full(RuntimeError):
    """No room for another client."""


class Hub:
    """Hands the newest tick to the clients; lives in the event loop, except `publish`."""

    def __init__(self, max_clients: int) -> None:
        self.boot = secrets.token_hex(4)
        self.latest = Tick(0, 0.0)
        self.clients = 0
        self._max_clients = max_clients
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def publish(self, tick: Tick) -> None:
        """Show this tick from now on; any thread."""
        self.latest = tick
        # a loop that has just closed has no clients left
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # each waiter holds the old event, so none can miss the change
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """Say goodbye to every client."""
        self._closing = True
        self._wake()

    def document(self) -> dict[str, Any]:
        return snapshot(self.latest, self.boot)

    def join(self) -> None:
        """Count a client in, before its stream starts."""
        if self.clients >= self._max_clients:
            raise Full
        self.clients += 1

    def leave(self) -> None:
        self.clients -= 1

    async def frames(self, last_id: str | None) -> AsyncIterator[ServerSentEvent]:
        """Frames after `last_id`; an id that is foreign or too old gets a snapshot first."""
        position = self._parse(last_id)
        while not self._closing:
            news, tick = self._news, self.latest
            if (frame := self._frame(tick, position)) is None:
                await news.wait()
            else:
                position = tick.position
                yield frame
        yield ServerSentEvent(event="bye", data={"reason": "server-shutdown"})

    def _parse(self, last_id: str | None) -> Position | None:
        boot, _, rest = (last_id or "").partition(".")
        load, _, version = rest.partition(".")
        known = boot == self.boot and load.isdecimal() and version.isdecimal()
        return Position(int(load), int(version)) if known else None

    def _frame(self, tick: Tick, position: Position | None) -> ServerSentEvent | None:
        if position == tick.position:
            return None
        knows_load = position is not None and position.load == tick.position.load
        if position is None or not knows_load or not tick.since <= position.version < tick.version:
            return self._event(tick, "snapshot", snapshot(tick, self.boot))
        if position.version < tick.version - 1:
            return self._event(tick, "delta", delta(tick, position.version))
        if not tick.shared:
            tick.shared.append(self._event(tick, "delta", delta(tick, position.version)))
        return tick.shared[0]

    def _event(self, tick: Tick, kind: str, document: Mapping[str, Any]) -> ServerSentEvent:
        load, version = tick.position
        return ServerSentEvent(
            raw_data=dumps(document).decode(),
            event=kind,
            id=f"{self.boot}.{load}.{version}",
            retry=RETRY_MS if kind == "snapshot" else None,
        )
