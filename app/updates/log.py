"""The record of updates and versions in the event log's file; any thread may call it."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loadscope.app.encoding import dumps, loads
from loadscope.app.store import Store
from loadscope.app.store_schema import open_reader
from loadscope.app.store_updates import (
    ACTIVE,
    UNFINISHED_STATES,
    UPDATE_COLUMNS,
    NewUpdate,
    document_of,
    insert_update,
    retire,
    row_of,
    write_record,
)
from loadscope.app.updates.names import name_of

NO_BOUND = 2**62


class KeyTaken(RuntimeError):
    """An update with this idempotency key is there already; `update` is its id."""

    def __init__(self, update: int) -> None:
        self.update = update
        super().__init__(f"this idempotency key belongs to update {name_of(update)}")


class Keyed(NamedTuple):
    """The update that an idempotency key belongs to, and what was asked for with it."""

    update: int
    request_digest: str | None


class Committed(NamedTuple):
    """One line of the history of versions."""

    seq: int
    version: str
    update: int
    committed_t: float
    digest: str | None
    writer: str
    detail: Mapping[str, Any]


class UpdateEvent(NamedTuple):
    """One event of one update; `detail` is a JSON object as text."""

    seq: int
    t: float
    kind: str
    detail: str


class UpdateLog:
    """Updates, versions and events. What a method has written is there after a crash."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _rows(self, sql: str, parameters: Sequence[object] = ()) -> list[sqlite3.Row]:
        with open_reader(self._store.path) as db:
            return db.execute(sql, parameters).fetchall()

    def open(
        self,
        *,
        origin: str,
        source_type: str,
        source: str,
        version: str | None,
        opened_t: float,
        key: str | None = None,
        request_digest: str | None = None,
    ) -> int:
        """The id of a new update, which is `queued`. Raises KeyTaken."""
        writer = self._store.writer
        facts = (origin, source_type, source, "queued", writer, opened_t)
        with self._store.transaction() as db:
            try:
                return insert_update(db, NewUpdate(*facts, version, key, request_digest))
            except sqlite3.IntegrityError:
                by_key = "SELECT id FROM weight_update WHERE idempotency_key = ?"
                taken = db.execute(by_key, (key,)).fetchone()
                if taken is None:
                    raise
                raise KeyTaken(taken[0]) from None

    def save(
        self, update: int, state: str, record: Mapping[str, Any], ended_t: float | None = None
    ) -> None:
        """Keep the record as it stands; only `commit` and `roll_back` make an update active."""
        with self._store.transaction() as db:
            before = row_of(db, update)["state"]
            assert state != ACTIVE or before == ACTIVE, f"update {update} is {before}, not active"
            write_record(db, update, state, record, ended_t)

    def commit(
        self,
        update: int,
        version: str,
        committed_t: float,
        digest: str | None,
        record: Mapping[str, Any],
    ) -> None:
        """From now on this update's weights are served: it is active, the one before retired."""
        with self._store.transaction() as db:
            before = row_of(db, update)["state"]
            assert before in UNFINISHED_STATES, f"update {update} is {before}: over already"
            self._retire_others(db)
            db.execute("UPDATE weight_update SET version = ? WHERE id = ?", (version, update))
            write_record(db, update, ACTIVE, {**record, "version": version}, committed_t)
            self._add_version(db, update, committed_t, digest, {"what": "commit"})

    def roll_back(
        self, update: int, record: Mapping[str, Any], ended_t: float, restored: int | None
    ) -> None:
        """This update counts no more; `restored` is the one whose weights are served again.

        Its version enters the history once more, unless it has been active all the time.
        """
        with self._store.transaction() as db:
            write_record(db, update, "rolled_back", record, ended_t)
            if restored is None or (row := row_of(db, restored))["state"] == ACTIVE:
                return
            self._retire_others(db)
            write_record(db, restored, ACTIVE, loads(row["record"].encode()), row["ended_t"])
            detail = {"what": "rollback", "update": name_of(update)}
            self._add_version(db, restored, ended_t, _digest_of(db, restored), detail)

    def retire_active(self) -> None:
        """The weights of this process are no version any more: a failed update has mixed them."""
        with self._store.transaction() as db:
            self._retire_others(db)

    def _retire_others(self, db: sqlite3.Connection) -> None:
        """Of this process: another one that writes here holds weights of its own."""
        active = "SELECT id FROM weight_update WHERE state = ? AND writer = ?"
        for (other,) in db.execute(active, (ACTIVE, self._store.writer)).fetchall():
            retire(db, other)

    def _add_version(
        self,
        db: sqlite3.Connection,
        update: int,
        committed_t: float,
        digest: str | None,
        detail: Mapping[str, Any],
    ) -> None:
        db.execute(
            "INSERT INTO version (version, update_id, committed_t, digest, writer, detail) "
            "SELECT version, id, ?, ?, writer, ? FROM weight_update WHERE id = ?",
            (committed_t, digest, dumps(detail).decode(), update),
        )

    def record(self, update: int) -> dict[str, Any] | None:
        """The update's JSON; None if there is no such update, or no longer."""
        rows = self._rows(f"SELECT {UPDATE_COLUMNS} FROM weight_update WHERE id = ?", (update,))
        return document_of(rows[0]) if rows else None

    def rows(self, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        """Records, newest first; `before` is the id of the last one seen."""
        bound = NO_BOUND if before is None else before
        sql = f"SELECT {UPDATE_COLUMNS} FROM weight_update WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [document_of(row) for row in self._rows(sql, (bound, limit))]

    def count(self) -> int:
        return int(self._rows("SELECT count(*) FROM weight_update")[0][0])

    def by_key(self, key: str) -> Keyed | None:
        sql = "SELECT id, request_digest FROM weight_update WHERE idempotency_key = ?"
        rows = self._rows(sql, (key,))
        return Keyed(*rows[0]) if rows else None

    def versions(self, limit: int, before: int | None = None) -> list[Committed]:
        """The history, newest first; `before` is the `seq` of the last one seen."""
        bound = NO_BOUND if before is None else before
        sql = "SELECT * FROM version WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        return [_committed(row) for row in self._rows(sql, (bound, limit))]

    def count_versions(self) -> int:
        return int(self._rows("SELECT count(*) FROM version")[0][0])

    def last_version(self, *, of_any_process: bool = False) -> Committed | None:
        """The newest line of the history that this process wrote, or any did."""
        sql = "SELECT * FROM version WHERE writer = ? OR ? ORDER BY seq DESC LIMIT 1"
        rows = self._rows(sql, (self._store.writer, of_any_process))
        return _committed(rows[0]) if rows else None

    def append_events(self, update: int, events: Sequence[tuple[int, float, str, str]]) -> None:
        """Add events in order; of `progress` only the last is kept."""
        progress = [event for event in events if event[2] == "progress"]
        kept = [event for event in events if event[2] != "progress"] + progress[-1:]
        with self._store.transaction() as db:
            if progress:
                old = "DELETE FROM update_event WHERE update_id = ? AND kind = 'progress'"
                db.execute(old, (update,))
            insert = "INSERT OR REPLACE INTO update_event VALUES (?, ?, ?, ?, ?)"
            db.executemany(insert, [(update, *event) for event in kept])

    def events(self, update: int, after_seq: int, limit: int) -> list[UpdateEvent]:
        sql = (
            "SELECT seq, t, kind, detail FROM update_event "
            "WHERE update_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        return [UpdateEvent(*row) for row in self._rows(sql, (update, after_seq, limit))]

    def last_seq(self, update: int) -> int:
        """Number of the update's last stored event; 0 if there is none."""
        sql = "SELECT coalesce(max(seq), 0) FROM update_event WHERE update_id = ?"
        return int(self._rows(sql, (update,))[0][0])

    def mark_interrupted(self) -> None:
        """Close the updates (and loads) of processes that are gone, as opening the store does."""
        self._store.mark_interrupted()


def _digest_of(db: sqlite3.Connection, update: int) -> str | None:
    sql = "SELECT digest FROM version WHERE update_id = ? ORDER BY seq DESC LIMIT 1"
    row = db.execute(sql, (update,)).fetchone()
    assert row is not None, f"update {update} was never committed"
    digest: str | None = row[0]
    return digest


def _committed(row: sqlite3.Row) -> Committed:
    return Committed(*row)._replace(detail=loads(row["detail"].encode()))
