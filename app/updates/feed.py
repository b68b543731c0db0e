"""The live events of one update: numbered, shown to readers at once, stored behind them.

    publish (any thread) ──► memory ──► frames (event loop), any number of readers
                               └──► flush (the thread of `Feeds`) ──► log

No publisher waits for the disk or for a reader. What has left memory is read from the log.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Protocol

from fastapi.sse import ServerSentEvent

from loadscope.app.encoding import dumps
from loadscope.app.updates.log import UpdateEvent

PROGRESS_EVERY_S = 0.25
KEPT_EVENTS = 1_024
PAGE = 500
# longer ones are no numbers of ours
MAX_ID_DIGITS = 15


class EventLog(Protocol):
    """Where events are kept for good (`UpdateLog`)."""

    def append_events(self, update: int, events: Sequence[UpdateEvent]) -> None: ...
    def events(self, update: int, after_seq: int, limit: int) -> list[UpdateEvent]: ...
    def last_seq(self, update: int) -> int: ...


def nobody() -> None:
    """Stores nothing in the background: `flush` does."""


class Feed:
    """The events of one update. `frames` belongs to the event loop, the rest to any thread."""

    def __init__(
        self,
        update: int,
        event_log: EventLog,
        nudge: Callable[[], None] = nobody,
        *,
        last_seq: int = 0,
        is_over: bool = False,
        kept: int = KEPT_EVENTS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`last_seq`: the log has events up to this one; `is_over`: none is expected after it."""
        self.update = update
        self._log, self._nudge, self._clock, self._kept = event_log, nudge, clock, kept
        self._lock, self._saving = threading.Lock(), threading.Lock()
        # progress is absolute, so the newest says it all
        self._events: deque[UpdateEvent] = deque()
        self._progress: UpdateEvent | None = None
        self._held: str | None = None
        self._next_progress, self._has_timer = 0.0, False
        self._seq = self._saved = self._forgotten = last_seq
        self._is_over, self._is_closed = is_over, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    @property
    def may_be_forgotten(self) -> bool:
        """It is over, and the log has all of it."""
        with self._lock:
            return self._is_over and self._saved == self._seq

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def publish(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Number and show an event. `done` is the last one, unless another `state` follows.

        Of `progress` at most four a second are shown, the last of them before `done`.
        """
        text = dumps(detail).decode()
        with self._lock:
            if kind == "progress":
                self._publish_progress(text)
            else:
                self._publish_other(kind, text)
        if kind != "progress":
            self._nudge()

    def _publish_other(self, kind: str, text: str) -> None:
        if kind == "done":
            self._release()
        if kind in ("done", "state"):
            self._is_over = kind == "done"
        self._events.append(self._make(kind, text))
        self._trim()

    def _publish_progress(self, text: str) -> None:
        if self._is_over:
            return  # a thread that has not noticed the end
        self._held = text
        if (wait_s := self._next_progress - time.monotonic()) <= 0:
            self._release()
        elif self._loop is not None and not self._has_timer:
            self._has_timer = True
            self._in_loop(self._later, wait_s)

    def _release(self) -> None:
        if self._held is not None:
            self._progress, self._held = self._make("progress", self._held), None
            self._next_progress = time.monotonic() + PROGRESS_EVERY_S

    def _later(self, wait_s: float) -> None:
        assert self._loop is not None, "only the loop calls this"
        self._loop.call_later(wait_s, self._release_when_due)

    def _release_when_due(self) -> None:
        with self._lock:
            wait_s = self._next_progress - time.monotonic()
            is_early = self._has_timer = self._held is not None and wait_s > 0
            if not is_early:
                self._release()
        if is_early:
            self._later(wait_s)

    def _make(self, kind: str, text: str) -> UpdateEvent:
        self._seq += 1
        # whoever wakes now waits for the lock, and then finds the event
        self._in_loop(self._wake)
        return UpdateEvent(self._seq, self._clock(), kind, text)

    def _in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        # a loop that has just closed has no readers left
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *arguments)

    def _wake(self) -> None:
        # each waiter holds the old event, so none can miss the change
        news, self._news = self._news, asyncio.Event()
        news.set()

    def flush(self) -> None:
        """What has been published is stored when this returns. Raises sqlite3.Error."""
        with self._saving:
            with self._lock:
                batch = self._after(self._saved)
            if not batch:
                return
            self._log.append_events(self.update, batch)
            with self._lock:
                self._saved = batch[-1].seq
                self._trim()

    def _trim(self) -> None:
        """Only what is stored may leave memory: readers find it in the log."""
        while len(self._events) > self._kept and self._events[0].seq <= self._saved:
            self._forgotten = self._events.popleft().seq

    def _after(self, position: int) -> list[UpdateEvent]:
        newer = list(takewhile(lambda event: event.seq > position, reversed(self._events)))
        if self._progress is not None and self._progress.seq > position:
            newer.append(self._progress)
        return sorted(newer)

    def close(self) -> None:
        """End the readers once they have what is known; events are still taken and stored."""
        with self._lock:
            self._release()
            self._is_closed = True
            self._in_loop(self._wake)

    async def frames(self, last_id: str | None) -> AsyncIterator[ServerSentEvent]:
        """Frames after `last_id`, to the end of the update; a foreign id means from the start."""
        position = self._parse(last_id)
        while True:
            # looked at before the events: what comes between is not missed
            news, is_last = self._news, self._is_over or self._is_closed
            events = await self._read(position)
            for event in events:
                position = event.seq
                yield _frame(event)
            if not events and is_last:
                return
            if not events:
                await news.wait()

    async def _read(self, position: int) -> list[UpdateEvent]:
        """Some or all events after a position; none only if there are none."""
        while True:
            with self._lock:
                if position >= self._forgotten:
                    return self._after(position)
                forgotten = self._forgotten
            stored = await asyncio.to_thread(self._log.events, self.update, position, PAGE)
            if stored:
                return stored
            # the log has dropped them to save space
            position = forgotten

    def _parse(self, last_id: str | None) -> int:
        text = last_id or ""
        is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_ID_DIGITS
        return int(text) if is_number and int(text) <= self._seq else 0


def _frame(event: UpdateEvent) -> ServerSentEvent:
    return ServerSentEvent(raw_data=event.detail, event=event.kind, id=str(event.seq))
