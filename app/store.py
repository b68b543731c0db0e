"""Writes the event log: one packed row per tick while loading, single rows afterwards."""

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadscope.app.encoding import dumps
from loadscope.app.load_rows import summary_of
from loadscope.app.store_lock import Writers
from loadscope.app.store_queries import Queries
from loadscope.app.store_schema import EVENT_COLUMNS, StoreError, open_writer
from loadscope.app.store_updates import (
    ACTIVE,
    UNFINISHED_STATES,
    NewUpdate,
    close_update,
    drop_events_without_loads,
    drop_old_updates,
    insert_update,
)
from loadscope.loader.events import Event
from loadscope.loader.state import fold

DATABASE = "loads.db"
UNFINISHED = ("planning", "loading")


def pack(events: Sequence[Event]) -> bytes:
    # speed over size: this runs beside the load
    return zlib.compress(dumps([tuple(event) for event in events]), 1)


class Store:
    """The log of all loads in one state directory. Any thread may call it."""

    def __init__(self, directory: Path, retention_bytes: int) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._writers = Writers(directory)
        except OSError as error:
            raise StoreError(f"state directory {directory}: {error.strerror}") from error
        self.path = directory / DATABASE
        self.queries = Queries(self.path)
        self._retention_bytes = retention_bytes
        self._lock = threading.RLock()
        self._db = open_writer(self.path)
        self._closing = False
        self.mark_interrupted()

    @property
    def writer(self) -> str:
        """The name of this process in the log."""
        return self._writers.name

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes: what is done with it counts as a whole or not at all."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def create_load(
        self,
        origin: str,
        source: str,
        source_path: str,
        started_t: float,
        role: str = "target",
        update: int | None = None,
    ) -> int:
        """The id of a new load of this update; None opens one that has the load's number."""
        row = (update, role, origin, source, source_path, self.writer, started_t)
        columns = "update_id, role, origin, source, source_path, writer, started_t, status"
        insert = f"INSERT INTO load ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, 'planning')"
        with self.transaction() as db:
            load = db.execute(insert, row).lastrowid
            assert load is not None
            if update is None:
                new = NewUpdate(origin, "disk", source, "planning", self.writer, started_t)
                update = insert_update(db, new, wanted=load)
                db.execute("UPDATE load SET update_id = ? WHERE id = ?", (update, load))
            known = db.execute("SELECT 1 FROM weight_update WHERE id = ?", (update,)).fetchone()
            assert known is not None, f"load {load} belongs to update {update}, which is not there"
            return load

    def put_plan(self, load: int, digest: str, payload: bytes) -> None:
        """Keep the plan once, whatever the number of loads that follow it."""
        with self.transaction() as db:
            db.execute("INSERT OR IGNORE INTO plan VALUES (?, ?)", (digest, payload))
            db.execute(
                "UPDATE load SET digest = ?, status = 'loading' WHERE id = ?", (digest, load)
            )

    def append(self, load: int, events: Sequence[Event]) -> None:
        """Add events for good: after a crash of the process they are there."""
        with self.transaction() as db:
            _append(db, load, events)

    def finish(
        self, load: int, status: str, finished_t: float, summary: dict[str, Any], dropped: int
    ) -> None:
        text = dumps(summary).decode()
        with self.transaction() as db:
            db.execute(
                # a load that is told of its end twice has events that are not exploded yet
                "UPDATE load SET status = ?, finished_t = ?, summary = ?, events_dropped = ?, "
                "exploded = 0 WHERE id = ?",
                (status, finished_t, text, dropped, load),
            )

    def explode(self, load: int) -> None:
        """Copy a finished load's events into single indexed rows, one transaction per batch."""
        marks = ", ".join("?" * len(EVENT_COLUMNS))
        insert = f"INSERT OR REPLACE INTO event ({', '.join(EVENT_COLUMNS)}) VALUES ({marks})"
        for batch in self.queries.batches(load):
            if self._closing:
                return  # the next process finds the load not exploded and starts again
            with self.transaction() as db:
                db.executemany(insert, [_event_row(event) for event in batch])
        with self.transaction() as db:
            db.execute("UPDATE load SET exploded = 1 WHERE id = ?", (load,))

    def mark_interrupted(self) -> None:
        """Close loads and updates whose process is gone, at the time of their last event."""
        for row in self.queries.unfinished(UNFINISHED):
            if not self._writers.is_alive(row["writer"]):
                self._interrupt(row["id"], row["started_t"])
        # loads first: an update ended when the last of them did
        for row in self.queries.updates_in((*UNFINISHED_STATES, ACTIVE)):
            if not self._writers.is_alive(row["writer"]):
                with self.transaction() as db:
                    close_update(db, row["id"])

    def _interrupt(self, load: int, started_t: float) -> None:
        known = [event for batch in self.queries.batches(load) for event in batch]
        if not known or known[-1].kind != "load_finished":
            seq, t = (known[-1].seq + known[-1].span, known[-1].t) if known else (1, started_t)
            detail = {"status": "interrupted", "store": {"state": "empty", "epoch": 0}}
            known.append(Event(seq, t, load, None, "load_finished", detail=detail))
            self.append(load, known[-1:])
        state = fold(known)
        self.finish(load, state.status, known[-1].t, summary_of(state.as_json(0.0)), dropped=0)

    def prune(self) -> None:
        """Drop the oldest finished loads until the file is below its limit, and old updates.

        The newest update's loads stay, and those of an active one.
        """
        for load in self.queries.finished_but_newest():
            if self._used_bytes() <= self._retention_bytes:
                break
            self._drop(load)
        with self.transaction() as db:
            drop_old_updates(db)
        with self._lock:
            # executescript runs to the end; execute would free one page
            self._db.executescript("PRAGMA incremental_vacuum")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _drop(self, load: int) -> None:
        with self.transaction() as db:
            db.execute("DELETE FROM event WHERE load = ?", (load,))
            db.execute("DELETE FROM event_batch WHERE load = ?", (load,))
            update = db.execute("SELECT update_id FROM load WHERE id = ?", (load,)).fetchone()
            db.execute("DELETE FROM load WHERE id = ?", (load,))
            drop_events_without_loads(db, update[0])
            db.execute(
                "DELETE FROM plan WHERE digest NOT IN "
                "(SELECT digest FROM load WHERE digest IS NOT NULL)"
            )

    def _used_bytes(self) -> int:
        with self._lock:
            counts = [
                int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            ]
        return (counts[0] - counts[1]) * counts[2]

    def settle(self) -> None:
        """Work that waits for a quiet moment: explode what is finished, keep to the limit."""
        for load in self.queries.finished_not_exploded():
            self.explode(load)
        if not self._closing:
            self.prune()

    def stop_settling(self) -> None:
        self._closing = True

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._writers.close()


def _append(db: sqlite3.Connection, load: int, events: Sequence[Event]) -> None:
    last = events[-1]
    row = (load, events[0].seq, last.seq + last.span - 1, pack(events))
    db.execute("INSERT OR REPLACE INTO event_batch VALUES (?, ?, ?, ?)", row)


def _event_row(event: Event) -> tuple[object, ...]:
    detail = None if event.detail is None else dumps(event.detail).decode()
    return tuple(event._replace(detail=detail))  # type: ignore[arg-type]
