"""The live state at one version, as a value: snapshots and deltas are built from it alone."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastapi.sse import ServerSentEvent

from loadscope.app.together import together

MAX_POINTS = 600


class Position(NamedTuple):
    """How far a client is: the last version that it has seen of one load."""

    load: int
    version: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One load at one version. Lists are copies, or only ever appended to."""

    load: int | None
    role: str | None
    state: Mapping[str, Any]
    grid: Mapping[str, Any] | None = None
    written: Sequence[int] = ()
    cell_versions: Sequence[int] = ()
    # by cell: parameters at which something went wrong
    faults: Mapping[int, int] = field(default_factory=dict)
    points: Sequence[tuple[float, int]] = ()
    point_versions: Sequence[int] = ()
    count: int = 0

    @property
    def about(self) -> dict[str, Any]:
        return {"load": self.load, "role": self.role, "state": self.state}

    def whole(self) -> dict[str, Any]:
        """Everything, for a client that knows nothing."""
        return {**self.about, "grid": self._grid(), "throughput": thin(self.points[: self.count])}

    def _grid(self) -> dict[str, Any] | None:
        if self.grid is None:
            return None
        cells = zip(self.grid["cells"], self.written, strict=True)
        shown = [
            {**cell, "written": written, "unexpected": self.faults.get(index, 0)}
            for index, (cell, written) in enumerate(cells)
        ]
        return {**self.grid, "cells": shown}

    def news(self, since: int) -> dict[str, Any]:
        """What changed after version `since`, in absolute values: applying it twice is harmless."""
        cells: list[int] = []
        for index, version in enumerate(self.cell_versions):
            if version > since:
                cells += (index, self.written[index])
        first = bisect_right(self.point_versions, since, hi=self.count)
        return {**self.about, "cells": cells, "throughput": self.points[first : self.count]}


IDLE = Picture(None, None, {"load": None, "status": "idle"})


@dataclass(frozen=True, slots=True)
class Tick:
    """The loads of one update at one version; none before the first."""

    version: int
    t: float
    loads: Sequence[Picture] = ()
    # clients older than this need a snapshot
    since: int = 0
    shared: list[ServerSentEvent] = field(default_factory=list)

    @property
    def position(self) -> Position:
        return Position((self.loads[0].load or 0) if self.loads else 0, self.version)

    @property
    def about(self) -> dict[str, Any]:
        """`together` is the update as one; null when it has one load."""
        as_one = together([one.state for one in self.loads])
        return {"v": self.version, "t": self.t, "together": as_one}

    @property
    def shown(self) -> Sequence[Picture]:
        return self.loads if self.loads else (IDLE,)


def snapshot(tick: Tick, boot: str) -> dict[str, Any]:
    """The first load at the top, the others of its update under `also`."""
    first, *others = (one.whole() for one in tick.shown)
    return {**tick.about, "boot": boot, **first, "also": others}


def delta(tick: Tick, since: int) -> dict[str, Any]:
    first, *others = (one.news(since) for one in tick.shown)
    return {**tick.about, **first, "also": others}


def thin(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most MAX_POINTS of them, evenly spread; the last is kept."""
    step = -(-len(points) // MAX_POINTS) or 1
    return list(points[::-1][::step][::-1])
