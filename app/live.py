"""Follows the loads of an update: drains their events ten times a second, keeps and shows them.

load thread -- sink --> deque -- tick --> LoadState, one packed row in the store, one Tick
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from loadscope.app.followed import Followed
from loadscope.app.load_rows import summary_of
from loadscope.app.load_view import LoadView
from loadscope.app.roles import Role
from loadscope.app.settle import Settler
from loadscope.app.store import Store
from loadscope.app.tick import Tick
from loadscope.loader.codec import to_bytes
from loadscope.loader.events import Event, Recorder
from loadscope.loader.plan import Plan

log = logging.getLogger("loadscope.live")

LOADING_TICK_S = 0.1
# the last step before a pause is still seen at once
PAUSED_TICK_S = 0.25
IDLE_TICK_S = 1.0
MAX_QUEUED = 1_000_000
# without these the numbers would be coarser; without any other kind they would be wrong
DROPPABLE = frozenset({"read", "kernel"})


class Pausable(Protocol):
    @property
    def paused(self) -> bool: ...


class Live:
    """The newest update of this process. `sink` is called by its loads, the rest by anyone."""

    def __init__(
        self,
        store: Store,
        publish: Callable[[Tick], None],
        clock: Callable[[], float] = time.time,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.dropped = 0
        self._store, self._publish, self._clock = store, publish, clock
        self._queue: deque[Event] = deque()
        self._max_queued = max_queued
        self._control: Pausable | None = None
        self._loads: tuple[Followed, ...] = ()
        self._version = 0
        self._turn = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._settler = Settler(store)

    @property
    def views(self) -> tuple[LoadView, ...]:
        """The loads of the newest update, in the order in which they run."""
        return tuple(one.view for one in self._loads)

    @property
    def view(self) -> LoadView | None:
        """The first of them."""
        return next(iter(self.views), None)

    def view_of(self, load: int) -> LoadView:
        return next(view for view in self.views if view.load == load)

    def now(self) -> float:
        return self._clock()

    def start(self) -> None:
        self._settler.start()
        self._thread.start()

    def sink(self, event: Event) -> None:
        """Take one event: no lock, no I/O; over the limit dispensable kinds are only counted."""
        if len(self._queue) >= self._max_queued and event.kind in DROPPABLE:
            self.dropped += 1
        else:
            self._queue.append(event)

    def begin(self, load: int, control: Pausable, role: Role = "target") -> Recorder:
        """Show this load from now on, alone, and return what records it."""
        with self._turn:
            self.flush()
            # the new load's row has just been stored, so nothing older can still wait for the disk
            self._loads, self._control, self.dropped = (), control, 0
            return self.beside(load, role)

    def beside(self, load: int, role: Role) -> Recorder:
        """Show this load too: it belongs to the same update."""
        with self._turn:
            followed = Followed(LoadView(load, role), since=self._version + 1)
            self._loads = (*self._loads, followed)
        self._wake.set()
        return Recorder(load, self.sink, self._clock)

    def set_plan(self, plan: Plan, load: int | None = None) -> None:
        """Keep the plan with the load (None: the first), so that it explains it for ever."""
        view = self.view if load is None else self.view_of(load)
        assert view is not None, "a plan belongs to a load"
        self._store.put_plan(view.load, plan.digest, to_bytes(plan))
        view.plan = plan

    def expect(self, load: int, detail: Mapping[str, Any]) -> None:
        """Show what this load is going to do while it waits for the one before it."""
        with self._turn:
            self.flush()
            self.view_of(load).expect(detail, self._clock())

    def flush(self) -> None:
        """Everything emitted so far is stored and shown when this returns."""
        with self._turn:
            events = [self._queue.popleft() for _ in range(len(self._queue))]
            for one in self._loads:
                one.view.is_paused = self._control is not None and self._control.paused
                one.view.dropped = self.dropped
                mine = [event for event in events if event.load == one.view.load]
                one.view.apply(mine)
                self._save(one, mine)
            self._show()

    def nudge(self) -> None:
        """Tick now: something changed that people wait to see."""
        self._wake.set()

    def _save(self, one: Followed, events: list[Event]) -> None:
        one.unsaved += events
        if not one.unsaved:
            return
        try:
            self._store.append(one.view.load, one.unsaved)
            is_last = one.unsaved[-1].kind == "load_finished"
            if is_last:
                self._finish(one.view, one.unsaved[-1])
        except sqlite3.Error as error:
            # kept in memory and tried again at the next tick
            log.error("events of load %d not stored yet: %s", one.view.load, error)
            return
        one.unsaved = []
        if is_last:
            self._settler.nudge()

    def _finish(self, view: LoadView, event: Event) -> None:
        document = view.document(event.t)
        self._store.finish(
            view.load, document["status"], event.t, summary_of(document), view.dropped
        )
        log.info("load %d %s: %s", view.load, document["status"], document["sentence"])

    def _show(self) -> None:
        self._version += 1
        now = self._clock()
        pictures = [one.picture(self._version, now) for one in self._loads]
        since = max((one.since for one in self._loads), default=0)
        self._publish(Tick(self._version, now, pictures, since))

    def _interval_s(self) -> float:
        running = [view for view in self.views if view.state.finished_t is None]
        if not running:
            return IDLE_TICK_S
        return PAUSED_TICK_S if running[0].is_paused else LOADING_TICK_S

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._interval_s())
            self._wake.clear()
            try:
                self.flush()
            except Exception:
                # edge of the thread: the next tick may succeed, and the load must not notice
                log.exception("tick failed")

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()
        self._settler.close()
