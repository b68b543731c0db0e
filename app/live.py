"""Follows the running load: drains its events ten times a second, keeps them, shows them.

load thread -- sink --> deque -- tick --> LoadState, one packed row in the store, one Tick
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from loadscope.app.load_rows import summary_of
from loadscope.app.load_view import LoadView
from loadscope.app.settle import Settler
from loadscope.app.store import Store
from loadscope.app.stream import IDLE_STATE, Tick
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
    """The newest load of this process. `sink` is called by the load, the rest by anyone."""

    def __init__(
        self,
        store: Store,
        publish: Callable[[Tick], None],
        clock: Callable[[], float] = time.time,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.view: LoadView | None = None
        self.dropped = 0
        self._store, self._publish, self._clock = store, publish, clock
        self._queue: deque[Event] = deque()
        self._max_queued = max_queued
        self._control: Pausable | None = None
        self._unsaved: list[Event] = []
        self._tick = Tick(0, clock(), IDLE_STATE)
        self._cell_versions: list[int] = []
        self._point_versions: list[int] = []
        self._turn = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._settler = Settler(store)

    def start(self) -> None:
        self._settler.start()
        self._thread.start()

    def sink(self, event: Event) -> None:
        """Take one event: no lock, no I/O; over the limit dispensable kinds are only counted."""
        if len(self._queue) >= self._max_queued and event.kind in DROPPABLE:
            self.dropped += 1
        else:
            self._queue.append(event)

    def begin(self, load: int, control: Pausable) -> Recorder:
        """Show this load from now on and return what records it."""
        with self._turn:
            self.flush()
            self.view, self._control, self.dropped = LoadView(load), control, 0
            # the new load's row has just been stored, so nothing older can still wait for the disk
            self._unsaved = []
            self._cell_versions, self._point_versions = [], []
            self._tick = replace(
                self._tick, load=load, since=self._tick.version + 1, grid=None, written=(),
                cell_versions=(), faults={}, points=(), point_versions=(), count=0,
            )  # fmt: skip
        self._wake.set()
        return Recorder(load, self.sink, self._clock)

    def set_plan(self, plan: Plan) -> None:
        """Keep the plan with the load, so that it explains the load for ever."""
        assert self.view is not None, "a plan belongs to a load"
        self._store.put_plan(self.view.load, plan.digest, to_bytes(plan))
        self.view.plan = plan

    def flush(self) -> None:
        """Everything emitted so far is stored and shown when this returns."""
        with self._turn:
            events = [self._queue.popleft() for _ in range(len(self._queue))]
            if self.view is not None:
                self.view.is_paused = self._control is not None and self._control.paused
                self.view.dropped = self.dropped
                self.view.apply(events)
                self._save(self.view, events)
            self._show()

    def nudge(self) -> None:
        """Tick now: something changed that people wait to see."""
        self._wake.set()

    def _save(self, view: LoadView, events: list[Event]) -> None:
        self._unsaved += events
        if not self._unsaved:
            return
        try:
            self._store.append(view.load, self._unsaved)
            is_last = self._unsaved[-1].kind == "load_finished"
            if is_last:
                self._finish(view, self._unsaved[-1])
        except sqlite3.Error as error:
            # kept in memory and tried again at the next tick
            log.error("events of load %d not stored yet: %s", view.load, error)
            return
        self._unsaved = []
        if is_last:
            self._settler.nudge()

    def _finish(self, view: LoadView, event: Event) -> None:
        document = view.document(event.t)
        self._store.finish(
            view.load, document["status"], event.t, summary_of(document), view.dropped
        )
        log.info("load %d %s: %s", view.load, document["status"], document["sentence"])

    def _show(self) -> None:
        version = self._tick.version + 1
        fresh: dict[str, Any] = {}
        if self.view is not None:
            fresh = self._measure(self.view, version)
        self._tick = replace(self._tick, version=version, t=self._clock(), shared=[], **fresh)
        self._publish(self._tick)

    def _measure(self, view: LoadView, version: int) -> dict[str, Any]:
        state = view.state
        with view.lock:
            written, changed = list(state.cells), state.changed_cells
            state.changed_cells = set()
            count, faults = len(state.throughput), dict(state.faults)
        since = self._tick.since
        if len(self._cell_versions) != len(written):
            # the grid has just become known
            self._cell_versions, since = [version] * len(written), version
        if faults != self._tick.faults:
            since = version
        for cell in changed:
            self._cell_versions[cell] = version
        self._point_versions += [version] * (count - len(self._point_versions))
        return {
            "state": view.document(self._clock()),
            "since": since,
            "grid": state.plan.get("grid"),
            "written": written,
            "faults": faults,
            "cell_versions": tuple(self._cell_versions),
            "points": state.throughput,
            "point_versions": self._point_versions,
            "count": count,
        }

    def _interval_s(self) -> float:
        view = self.view
        if view is None or view.state.finished_t is not None:
            return IDLE_TICK_S
        return PAUSED_TICK_S if view.is_paused else LOADING_TICK_S

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
