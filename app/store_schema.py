"""The event log's file: tables, versions and the ways to open it."""

import sqlite3
from contextlib import closing
from pathlib import Path

SCHEMA_VERSION = 3
STRICT_SINCE = (3, 37, 0)

# while a load runs its events are packed rows in event_batch; afterwards also single rows in event;
# a record of '{}' means that nobody has written one: the update is what its loads are
TABLES = {
    "weight_update": """
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        origin TEXT NOT NULL,
        source_type TEXT NOT NULL,
        source TEXT NOT NULL,
        state TEXT NOT NULL,
        version TEXT,
        writer TEXT NOT NULL,
        opened_t REAL NOT NULL,
        ended_t REAL,
        idempotency_key TEXT UNIQUE,
        request_digest TEXT,
        record TEXT NOT NULL DEFAULT '{}'""",
    "version": """
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        version TEXT NOT NULL,
        update_id INTEGER NOT NULL,
        committed_t REAL NOT NULL,
        digest TEXT,
        writer TEXT NOT NULL,
        detail TEXT NOT NULL DEFAULT '{}'""",
    "update_event": """
        update_id INTEGER NOT NULL REFERENCES weight_update(id),
        seq INTEGER NOT NULL,
        t REAL NOT NULL,
        kind TEXT NOT NULL,
        detail TEXT NOT NULL,
        PRIMARY KEY (update_id, seq)""",
    "plan": "digest TEXT PRIMARY KEY, payload BLOB NOT NULL",
    "load": """
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        update_id INTEGER,
        role TEXT NOT NULL DEFAULT 'target',
        origin TEXT NOT NULL,
        source TEXT NOT NULL,
        source_path TEXT NOT NULL,
        writer TEXT NOT NULL,
        status TEXT NOT NULL,
        started_t REAL NOT NULL,
        finished_t REAL,
        digest TEXT REFERENCES plan(digest),
        summary TEXT NOT NULL DEFAULT '{}',
        events_dropped INTEGER NOT NULL DEFAULT 0,
        exploded INTEGER NOT NULL DEFAULT 0""",
    "event_batch": """
        load INTEGER NOT NULL REFERENCES load(id),
        first_seq INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (load, first_seq)""",
    "event": """
        load INTEGER NOT NULL REFERENCES load(id),
        seq INTEGER NOT NULL,
        t REAL NOT NULL,
        rank INTEGER,
        kind TEXT NOT NULL,
        tensor TEXT,
        param TEXT,
        rule TEXT,
        reason TEXT,
        bytes INTEGER,
        seconds REAL,
        detail TEXT,
        span INTEGER NOT NULL,
        PRIMARY KEY (load, seq)""",
}
INDEXES = {
    "event_by_kind": "event (load, kind, seq)",
    "event_by_param": "event (load, param, seq)",
    "load_by_update": "load (update_id)",
    "version_by_update": "version (update_id)",
}
# a process holds one set of weights
UNIQUE_INDEXES = {"one_active": "weight_update (writer) WHERE state = 'active'"}
# what a file of version 1 lacks: its loads are updates of their own
SINCE_VERSION_1 = (
    "ALTER TABLE load ADD COLUMN update_id INTEGER",
    "ALTER TABLE load ADD COLUMN role TEXT NOT NULL DEFAULT 'target'",
    "UPDATE load SET update_id = id",
)
# what became of an update, from the rows of its loads
STATE_OF_LOADS = """CASE
    WHEN count(finished_t) < count(*) THEN 'planning'
    WHEN sum(status IN ('failed', 'refused')) > 0 THEN 'failed'
    WHEN sum(status != 'finished') > 0 THEN 'interrupted'
    ELSE 'retired' END"""
# files of version 1 and 2 know updates only as a number that loads have in common
SINCE_VERSION_2 = f"""
    INSERT INTO weight_update
        (id, origin, source_type, source, state, writer, opened_t, ended_t)
    SELECT update_id, min(origin), 'disk', min(source), {STATE_OF_LOADS}, min(writer),
        min(started_t), CASE WHEN count(finished_t) = count(*) THEN max(finished_t) END
    FROM load GROUP BY update_id"""
EVENT_COLUMNS = (
    "seq", "t", "load", "rank", "kind", "tensor", "param", "rule", "reason",
    "bytes", "seconds", "detail", "span",
)  # fmt: skip


class StoreError(RuntimeError):
    """The state directory cannot be used; the message says why and what to do."""


def open_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes; creates the tables in a new file.

    WAL needs shared memory, which network file systems lack: there the journal is a plain file.
    """
    try:
        db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        # freed pages must leave the file, or the limit in bytes would mean nothing
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        if db.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA synchronous=NORMAL")
        _create(db, path)
    except sqlite3.Error as error:
        raise StoreError(f"{path.name} in the state directory is not usable: {error}") from error
    return db


def _create(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in range(SCHEMA_VERSION + 1):
        raise StoreError(
            f"{path.name} has format {version}, this program writes {SCHEMA_VERSION}; "
            "choose another --state-dir"
        )
    options = " STRICT" if sqlite3.sqlite_version_info >= STRICT_SINCE else ""
    for statement in SINCE_VERSION_1 if version == 1 else ():
        db.execute(statement)
    for name, columns in TABLES.items():
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}){options}")
    if version in (1, 2):
        db.execute(SINCE_VERSION_2)
    for name, target in INDEXES.items():
        db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {target}")
    for name, target in UNIQUE_INDEXES.items():
        db.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {target}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    db.execute("COMMIT")


def open_reader(path: Path) -> closing[sqlite3.Connection]:
    """A short-lived read-only connection, for one query in any thread."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    db.row_factory = sqlite3.Row
    return closing(db)
