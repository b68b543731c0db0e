"""Loads by id: the live one from memory, older ones folded from the log."""

import threading
from collections import OrderedDict

from loadscope.app.live import Live
from loadscope.app.load_view import LoadView
from loadscope.app.store import Store
from loadscope.loader.codec import from_bytes

KEPT_IN_MEMORY = 4


class NoSuchLoad(LookupError):
    """The id is unknown, or the load has gone with the oldest ones; the message says which."""


class Archive:
    """Views of all loads that the store knows."""

    def __init__(self, store: Store, live: Live) -> None:
        self._store, self._live = store, live
        self._kept: OrderedDict[int, LoadView] = OrderedDict()
        self._lock = threading.Lock()

    def at_hand(self, load: int | None) -> LoadView | None:
        """The live load, if it is the one asked for and planned: answers without any I/O."""
        view = self._live.view
        is_asked = view is not None and load in (None, view.load)
        return view if is_asked and view is not None and view.plan is not None else None

    def get(self, load: int | None) -> LoadView:
        """The load with this id; None = the newest of this process, else of the store."""
        live = self._live.view
        if live is not None and load in (None, live.load):
            return live
        if load is None:
            load = self._store.queries.newest()
        if load is None:
            raise NoSuchLoad("no load has started yet; start one with POST /reload")
        return self._stored(load)

    def planned(self, load: int | None) -> LoadView:
        """Like `get`, of the loads that have a plan."""
        if (view := self.at_hand(load)) is not None:
            return view
        newest = self._store.queries.newest(planned=True) if load is None else load
        if newest is None:
            raise NoSuchLoad("no load has a plan yet; start one with POST /reload")
        view = self.get(newest)
        if view.plan is None:
            raise NoSuchLoad(f"load {newest} has no plan; GET /loads/{newest} says why")
        return view

    def _stored(self, load: int) -> LoadView:
        with self._lock:
            if load in self._kept:
                self._kept.move_to_end(load)
                return self._kept[load]
            view = self._fold(load)
            if view.state.finished_t is not None:
                self._kept[load] = view
                while len(self._kept) > KEPT_IN_MEMORY:
                    self._kept.popitem(last=False)
            return view

    def _fold(self, load: int) -> LoadView:
        self._store.mark_interrupted()
        row = self._store.queries.load(load)
        if row is None:
            raise NoSuchLoad(f"load {load} does not exist, or was dropped to save space")
        view = LoadView(load, dropped=row["events_dropped"])
        for batch in self._store.queries.batches(load):
            view.apply(batch)
        payload = self._store.queries.plan(row["digest"]) if row["digest"] else None
        view.plan = None if payload is None else from_bytes(payload)
        return view
