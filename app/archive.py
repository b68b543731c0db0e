"""Loads by id and role: those of the newest update from memory, older ones folded from the log."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from loadscope.app.live import Live
from loadscope.app.load_view import LoadView
from loadscope.app.roles import Role
from loadscope.app.store import Store
from loadscope.app.store_queries import Member
from loadscope.loader.codec import from_bytes

KEPT_IN_MEMORY = 4


class NoSuchLoad(LookupError):
    """The id is unknown, or the load has gone with the oldest ones; the message says which."""


class NoSuchRole(LookupError):
    """The update has no load of this role; `served` are those that it has."""

    def __init__(self, role: str, served: Iterable[str]) -> None:
        self.served = tuple(served)
        super().__init__(f"there is no {role} here; served: {', '.join(self.served)}")


def choose(members: Iterable[Member], load: int | None, role: Role | None) -> int:
    """Of an update's loads the asked one, by role or by id; else the target, else the first.

    Raises NoSuchRole.
    """
    by_role = {member.role: member.load for member in members}
    if role is None and load is not None:
        return load
    wanted = role if role is not None else "target" if "target" in by_role else next(iter(by_role))
    if wanted not in by_role:
        raise NoSuchRole(wanted, by_role)
    return by_role[wanted]


class Archive:
    """Views of all loads that the store knows. `role` chooses within the update of a load."""

    def __init__(self, store: Store, live: Live) -> None:
        self._store, self._live = store, live
        self._kept: OrderedDict[int, LoadView] = OrderedDict()
        self._lock = threading.Lock()

    def at_hand(self, load: int | None, role: Role | None = None) -> LoadView | None:
        """The live load, if it is the one asked for and planned: answers without any I/O."""
        # one look: the next update may begin at any time
        views = {view.load: view for view in self._live.views}
        if not views or (load is not None and load not in views):
            return None
        view = views[choose(_members(views.values()), load, role)]
        return view if view.plan is not None else None

    def get(self, load: int | None, role: Role | None = None) -> LoadView:
        """The load with this id; None = the newest of this process, else of the store."""
        newest = load if load is not None else self._newest()
        if newest is None:
            raise NoSuchLoad("no load has started yet; start one with POST /reload")
        return self._view(choose(self.members(newest), load, role))

    def planned(self, load: int | None, role: Role | None = None) -> LoadView:
        """Like `get`, of the loads that have a plan."""
        if (view := self.at_hand(load, role)) is not None:
            return view
        newest = load if load is not None else self._store.queries.newest(planned=True)
        if newest is None:
            raise NoSuchLoad("no load has a plan yet; start one with POST /reload")
        view = self._view(choose(self.members(newest), load, role))
        if view.plan is None:
            raise NoSuchLoad(f"load {view.load} has no plan; GET /loads/{view.load} says why")
        return view

    def members(self, load: int) -> list[Member]:
        """The loads of the update that a load belongs to, itself among them."""
        live = _members(self._live.views)
        if any(one.load == load for one in live):
            return live
        members = self._store.queries.members(load)
        if not members:
            raise NoSuchLoad(f"load {load} does not exist, or was dropped to save space")
        return members

    def _newest(self) -> int | None:
        live = self._live.view
        return live.load if live is not None else self._store.queries.newest()

    def _view(self, load: int) -> LoadView:
        live = {view.load: view for view in self._live.views}
        return live[load] if load in live else self._stored(load)

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
            raise NoSuchLoad(f"load {load} was dropped to save space")
        view = LoadView(load, row["role"], dropped=row["events_dropped"])
        for batch in self._store.queries.batches(load):
            view.apply(batch)
        payload = self._store.queries.plan(row["digest"]) if row["digest"] else None
        view.plan = None if payload is None else from_bytes(payload)
        return view


def _members(views: Iterable[LoadView]) -> list[Member]:
    return [Member(view.load, view.role) for view in views]
