"""Rows of updates: opened, written, closed after their process, dropped with age.

Every function works inside the caller's transaction.
"""

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadscope.app.encoding import dumps, loads
from loadscope.app.store_schema import STATE_OF_LOADS
from loadscope.app.updates.names import name_of

UNFINISHED_STATES = (
    "queued", "planning", "receiving", "verifying", "staging",
    "quiescing", "switching", "finalizing", "checking",
)  # fmt: skip
ACTIVE = "active"
KEPT_UPDATES = 1_000
KEPT_VERSIONS = 1_000

UPDATE_COLUMNS = (
    "id, origin, source_type, source, state, version, opened_t, ended_t, record, "
    "(SELECT group_concat(load.id) FROM load WHERE update_id = weight_update.id) AS loads"
)


class NewUpdate(NamedTuple):
    """What is known of an update when it opens."""

    origin: str
    source_type: str
    source: str
    state: str
    writer: str
    opened_t: float
    version: str | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None


def insert_update(db: sqlite3.Connection, new: NewUpdate, wanted: int | None = None) -> int:
    """Its id: `wanted`, unless that may have been another's. Raises sqlite3.IntegrityError."""
    last = db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'weight_update'")
    given = wanted if wanted is not None and wanted > (last.fetchone()[0] or 0) else None
    marks = ", ".join("?" * (len(new) + 1))
    insert = f"INSERT INTO weight_update (id, {', '.join(new._fields)}) VALUES ({marks})"
    update = db.execute(insert, (given, *new)).lastrowid
    assert update is not None
    return update


def write_record(
    db: sqlite3.Connection,
    update: int,
    state: str,
    record: Mapping[str, Any],
    ended_t: float | None,
) -> None:
    """The whole record, which says the same of state and end as the columns."""
    text = dumps({**record, "state": state, "ended_t": ended_t}).decode()
    row = (state, ended_t, text, update)
    db.execute("UPDATE weight_update SET state = ?, ended_t = ?, record = ? WHERE id = ?", row)


def retire(db: sqlite3.Connection, update: int) -> None:
    """Its weights are no longer those that are served."""
    row = row_of(db, update)
    write_record(db, update, "retired", record_of(row), row["ended_t"])


def close_update(db: sqlite3.Connection, update: int) -> None:
    """Give an update its last state after its process has gone, and its weights with it."""
    row = row_of(db, update)
    if row["state"] == ACTIVE:
        retire(db, update)
    elif row["state"] in UNFINISHED_STATES:
        _close(db, row)


def _close(db: sqlite3.Connection, row: sqlite3.Row) -> None:
    update, ended_t, state = row["id"], _last_known_t(db, row["id"]), "interrupted"
    if row["record"] == "{}" and row["loads"] is not None:
        of_loads = f"SELECT {STATE_OF_LOADS} FROM load WHERE update_id = ?"
        (state,) = db.execute(of_loads, (update,)).fetchone()
    if state in UNFINISHED_STATES:
        return  # another process is closing its loads, and closes the update after them
    cut_off = {} if state != "interrupted" else {"failure": _interruption(row["state"])}
    write_record(db, update, state, {**record_of(row), **cut_off}, ended_t)
    # whoever follows its events waits for the last one
    last = db.execute("SELECT max(seq) FROM update_event WHERE update_id = ?", (update,))
    seq, detail = (last.fetchone()[0] or 0) + 1, dumps({"state": state, **cut_off}).decode()
    event = (update, seq, ended_t, "done", detail)
    db.execute("INSERT INTO update_event VALUES (?, ?, ?, ?, ?)", event)


def _interruption(phase: str) -> dict[str, Any]:
    return {
        "code": "interrupted",
        "message": f"the process ended while the update was {phase}",
        "phase": phase,
        "names": [],
        "expected": None,
        "got": None,
        "bucket": None,
        "fix": "open a new update with POST /reload and send everything again",
    }


def _last_known_t(db: sqlite3.Connection, update: int) -> float:
    facts = (
        "SELECT opened_t AS t FROM weight_update WHERE id = :update "
        "UNION ALL SELECT finished_t FROM load WHERE update_id = :update "
        "UNION ALL SELECT t FROM update_event WHERE update_id = :update"
    )
    return float(db.execute(f"SELECT max(t) FROM ({facts})", {"update": update}).fetchone()[0])


def drop_old_updates(db: sqlite3.Connection) -> None:
    """Those that are over, have no load left and are not among the newest; old versions too."""
    protected = (*UNFINISHED_STATES, ACTIVE)
    marks = ", ".join("?" * len(protected))
    old = (
        "SELECT id FROM weight_update WHERE id <= "
        "(SELECT id FROM weight_update ORDER BY id DESC LIMIT 1 OFFSET ?) "
        f"AND state NOT IN ({marks}) "
        "AND NOT EXISTS (SELECT 1 FROM load WHERE update_id = weight_update.id)"
    )
    dropped = db.execute(old, (KEPT_UPDATES, *protected)).fetchall()
    db.executemany("DELETE FROM update_event WHERE update_id = ?", dropped)
    db.executemany("DELETE FROM weight_update WHERE id = ?", dropped)
    db.execute(
        "DELETE FROM version WHERE seq <= (SELECT seq FROM version ORDER BY seq DESC "
        "LIMIT 1 OFFSET ?) AND update_id NOT IN (SELECT id FROM weight_update WHERE state = ?)",
        (KEPT_VERSIONS, ACTIVE),
    )


def drop_events_without_loads(db: sqlite3.Connection, update: int) -> None:
    """The events of an update whose last load has been dropped; its record stays."""
    db.execute(
        "DELETE FROM update_event WHERE update_id = ? "
        "AND NOT EXISTS (SELECT 1 FROM load WHERE update_id = ?)",
        (update, update),
    )


def row_of(db: sqlite3.Connection, update: int) -> sqlite3.Row:
    cursor = db.cursor()
    cursor.row_factory = sqlite3.Row
    select = f"SELECT {UPDATE_COLUMNS} FROM weight_update WHERE id = ?"
    row = cursor.execute(select, (update,)).fetchone()
    assert isinstance(row, sqlite3.Row), f"there is no update {update}"
    return row


def record_of(row: sqlite3.Row) -> dict[str, Any]:
    record: dict[str, Any] = loads(row["record"].encode())
    return record


def document_of(row: sqlite3.Row) -> dict[str, Any]:
    """The record as it was written; until then, and for old updates, what the columns know."""
    members = row["loads"].split(",") if row["loads"] is not None else []
    return {
        "id": name_of(row["id"]),
        "origin": row["origin"],
        "version": row["version"],
        "source": {"type": row["source_type"], "name": row["source"]},
        "opened_t": row["opened_t"],
        "loads": sorted(int(load) for load in members),
        "failure": None,
        **record_of(row),
        "state": row["state"],
        "ended_t": row["ended_t"],
    }
