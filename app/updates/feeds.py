"""The feeds of all updates: the newest in memory, older ones out of the log; one thread stores."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable

from fastapi.sse import ServerSentEvent

from loadscope.app.updates.feed import EventLog, Feed

log = logging.getLogger("loadscope.feeds")

STORE_EVERY_S = 0.1
RETRY_S = 1.0
KEPT_FEEDS = 8


class Feeds:
    """The newest feeds in memory, and the thread that stores what they publish."""

    def __init__(
        self,
        event_log: EventLog,
        kept: int = KEPT_FEEDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log, self._kept, self._clock = event_log, kept, clock
        self._feeds: dict[int, Feed] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_streams = True
        self._lock = threading.Lock()
        self._news, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeds", daemon=True)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Readers live in this loop; before the first of them comes."""
        with self._lock:
            self._loop = loop
            for feed in self._feeds.values():
                feed.attach(loop)

    def start(self) -> None:
        self._thread.start()

    def open(self, update: int) -> Feed:
        """The feed to publish to; numbers go on where the log ends. Reads the log."""
        with self._lock:
            if update not in self._feeds:
                last_seq = self._log.last_seq(update)
                self._feeds[update] = self._make(update, last_seq, is_over=last_seq > 0)
            return self._feeds[update]

    def _make(self, update: int, last_seq: int, *, is_over: bool) -> Feed:
        feed = Feed(
            update, self._log, self._news.set,
            last_seq=last_seq, is_over=is_over, clock=self._clock,
        )  # fmt: skip
        if self._loop is not None:
            feed.attach(self._loop)
        if not self._has_streams:
            feed.close()
        return feed

    async def frames(self, update: int, last_id: str | None) -> AsyncIterator[ServerSentEvent]:
        """Frames of any update: live, from memory or from the log; none if it is unknown."""
        feed = self._feeds.get(update)
        if feed is None:
            last_seq = await asyncio.to_thread(self._log.last_seq, update)
            feed = self._feeds.get(update) or self._make(update, last_seq, is_over=True)
        async for frame in feed.frames(last_id):
            yield frame

    def flush(self) -> bool:
        """Store what waits, let go of old feeds; False if something could not be stored."""
        is_stored = True
        for feed in self._all():
            try:
                feed.flush()
            except sqlite3.Error as error:
                is_stored = False
                log.error("events of update %d not stored yet: %s", feed.update, error)
        self._forget()
        return is_stored

    def _all(self) -> list[Feed]:
        with self._lock:
            return list(self._feeds.values())

    def _forget(self) -> None:
        with self._lock:
            for update in sorted(self._feeds)[: -self._kept]:
                if self._feeds[update].may_be_forgotten:
                    del self._feeds[update]

    def _run(self) -> None:
        while self._news.wait() and not self._closed.is_set():
            self._news.clear()
            if not self.flush():
                self._news.set()
                self._closed.wait(RETRY_S)
            # what comes meanwhile is one batch
            self._closed.wait(STORE_EVERY_S)

    def close_streams(self) -> None:
        """End all readers, now and from now on; publishing goes on."""
        with self._lock:
            self._has_streams = False
        for feed in self._all():
            feed.close()

    def close(self) -> None:
        """Store what is left and stop."""
        self.close_streams()
        self._closed.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()
