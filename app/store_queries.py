"""Reads the event log through read-only connections, one per query."""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadscope.app.encoding import loads
from loadscope.app.roles import Role
from loadscope.app.store_schema import EVENT_COLUMNS, open_reader
from loadscope.loader.events import Event

_FIRST_RECORD = "SELECT max(seq) FROM event WHERE load = ? AND seq <= ?"


def unpack(payload: bytes) -> list[Event]:
    return [Event(*row) for row in loads(zlib.decompress(payload))]


class Member(NamedTuple):
    """One load of an update."""

    load: int
    role: Role


class Queries:
    """Questions about stored loads; sees what was committed, blocks no writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _rows(self, sql: str, parameters: Sequence[object] = ()) -> list[sqlite3.Row]:
        with open_reader(self._path) as db:
            return db.execute(sql, parameters).fetchall()

    def load(self, load: int) -> dict[str, Any] | None:
        rows = self._rows("SELECT * FROM load WHERE id = ?", (load,))
        return _load(rows[0]) if rows else None

    def loads(self, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        """Newest first; `before` is the id of the last one seen."""
        bound = 2**62 if before is None else before
        sql = "SELECT * FROM load WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [_load(row) for row in self._rows(sql, (bound, limit))]

    def count_loads(self) -> int:
        return int(self._rows("SELECT count(*) FROM load")[0][0])

    def members(self, load: int) -> list[Member]:
        """The loads of the update that this one belongs to, itself among them, in order."""
        sql = (
            "SELECT id, role FROM load "
            "WHERE update_id = (SELECT update_id FROM load WHERE id = ?) ORDER BY id"
        )
        return [Member(*row) for row in self._rows(sql, (load,))]

    def newest(self, *, planned: bool = False) -> int | None:
        """Id of the newest load; `planned`: of the newest that has a plan."""
        where = "WHERE digest IS NOT NULL" if planned else ""
        newest: int | None = self._rows(f"SELECT max(id) FROM load {where}")[0][0]
        return newest

    def unfinished(self, statuses: Sequence[str]) -> list[sqlite3.Row]:
        marks = ", ".join("?" * len(statuses))
        sql = f"SELECT id, writer, started_t FROM load WHERE status IN ({marks})"
        return self._rows(sql, statuses)

    def updates_in(self, states: Sequence[str]) -> list[sqlite3.Row]:
        marks = ", ".join("?" * len(states))
        sql = f"SELECT id, writer FROM weight_update WHERE state IN ({marks}) ORDER BY id"
        return self._rows(sql, states)

    def finished_but_newest(self) -> list[int]:
        """Finished loads of all updates but the newest and the active, the oldest first."""
        sql = (
            "SELECT id FROM load WHERE finished_t IS NOT NULL "
            "AND update_id < (SELECT max(update_id) FROM load) "
            "AND update_id NOT IN (SELECT id FROM weight_update WHERE state = 'active') "
            "ORDER BY id"
        )
        return [row[0] for row in self._rows(sql)]

    def finished_not_exploded(self) -> list[int]:
        sql = "SELECT id FROM load WHERE finished_t IS NOT NULL AND exploded = 0 ORDER BY id"
        return [row[0] for row in self._rows(sql)]

    def plan(self, digest: str) -> bytes | None:
        rows = self._rows("SELECT payload FROM plan WHERE digest = ?", (digest,))
        return rows[0][0] if rows else None

    def batches(self, load: int, from_seq: int = 0) -> Iterator[list[Event]]:
        """Packed rows in order, from the one that holds `from_seq`."""
        sql = "SELECT first_seq FROM event_batch WHERE load = ? AND last_seq >= ? ORDER BY 1"
        for row in self._rows(sql, (load, from_seq)):
            one = "SELECT payload FROM event_batch WHERE load = ? AND first_seq = ?"
            for batch in self._rows(one, (load, row[0])):
                yield unpack(batch[0])

    def events(self, load: int, after: int, filters: dict[str, object]) -> Iterator[Event]:
        """Records of an exploded load that reach beyond `after`, in order."""
        where = "".join(f" AND {column} = ?" for column in filters)
        sql = (
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM event "
            f"WHERE load = ? AND seq > ?{where} ORDER BY seq"
        )
        with open_reader(self._path) as db:
            # the record that `after` lies in may be a bulk one which began before it
            first = db.execute(_FIRST_RECORD, (load, after + 1)).fetchone()[0]
            parameters = (load, (first or 1) - 1, *filters.values())
            for row in db.execute(sql, parameters):
                if row["seq"] + row["span"] - 1 > after:
                    yield _event(row)

    def count_events(self, load: int, filters: dict[str, object]) -> int:
        where = "".join(f" AND {column} = ?" for column in filters)
        sql = f"SELECT coalesce(sum(span), 0) FROM event WHERE load = ?{where}"
        return int(self._rows(sql, (load, *filters.values()))[0][0])


def _load(row: sqlite3.Row) -> dict[str, Any]:
    return {**dict(row), "summary": loads(row["summary"].encode())}


def _event(row: sqlite3.Row) -> Event:
    event = Event(*row)
    return event if event.detail is None else event._replace(detail=loads(row["detail"].encode()))
