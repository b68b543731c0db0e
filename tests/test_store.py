"""The event log: nothing acknowledged is lost, nothing grows for ever, old loads stay readable."""

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from loadscope.app.store import Store, StoreError
from loadscope.app.store_lock import lock_server
from loadscope.app.store_schema import open_reader
from loadscope.app.updates.log import UpdateLog
from loadscope.loader.events import Event
from loadscope.loader.state import fold

LIMIT = 64 * 2**20


def started(load: int, seq: int = 1) -> Event:
    return Event(seq, 1000.0, load, None, "load_started", detail={"model": "m", "source": "s"})


def read(load: int, seq: int) -> Event:
    return Event(seq, 1000.0 + seq, load, 0, "read", tensor=f"t{seq}", bytes=8, seconds=0.5)


def finished(load: int, seq: int) -> Event:
    return Event(seq, 2000.0, load, None, "load_finished", detail={"status": "finished"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state", LIMIT)


def recorded_load(store: Store, events: int = 5, filler: str = "") -> int:
    """A finished load with a plan of its own."""
    load = store.create_load("load", "folder", "/x/folder", 1000.0)
    store.put_plan(load, f"digest-{load}", os.urandom(len(filler) or 10))
    store.append(load, [started(load)])
    store.append(load, [read(load, seq) for seq in range(2, 2 + events)])
    store.append(load, [finished(load, 2 + events)])
    store.finish(load, "finished", 2000.0, {"verdict": "pass"}, 0)
    return load


def test_events_come_back_as_they_were_written(store: Store) -> None:
    load = store.create_load("load", "folder", "/x/folder", 1000.0)
    events = [started(load), read(load, 2), Event(3, 1.0, load, 0, "renamed", span=40)]
    store.append(load, events)
    assert [e for batch in store.queries.batches(load) for e in batch] == events


def test_the_state_folded_from_the_log_equals_the_live_one(store: Store) -> None:
    load = recorded_load(store)
    live = fold([started(load), *(read(load, n) for n in range(2, 7)), finished(load, 7)])
    stored = fold(e for batch in store.queries.batches(load) for e in batch)
    assert stored.as_json(5000.0) == live.as_json(9000.0)


def test_a_batch_counts_the_numbers_that_a_bulk_record_reserves(store: Store) -> None:
    load = store.create_load("load", "folder", "/x", 1.0)
    store.append(load, [Event(1, 1.0, load, 0, "renamed", span=40)])
    store.append(load, [read(load, 41)])
    assert [b[0].seq for b in store.queries.batches(load, from_seq=40)] == [1, 41]
    assert [b[0].seq for b in store.queries.batches(load, from_seq=41)] == [41]


def test_a_plan_is_kept_once_for_all_its_loads(store: Store) -> None:
    for _ in range(2):
        load = store.create_load("load", "folder", "/x", 1.0)
        store.put_plan(load, "same", b"plan")
    with open_reader(store.path) as db:
        assert db.execute("SELECT count(*) FROM plan").fetchone()[0] == 1
    assert store.queries.plan("same") == b"plan"


def test_exploded_events_equal_the_packed_ones(store: Store) -> None:
    load = recorded_load(store)
    store.settle()
    packed = [e for batch in store.queries.batches(load) for e in batch]
    assert list(store.queries.events(load, 0, {})) == packed
    assert [e.seq for e in store.queries.events(load, 0, {"kind": "read"})] == [2, 3, 4, 5, 6]
    assert store.queries.count_events(load, {"kind": "read"}) == 5


def test_old_loads_go_first_with_their_batches_and_plans(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    loads = [recorded_load(store, filler="x" * 300_000) for _ in range(6)]
    store.settle()
    left = [row["id"] for row in store.queries.loads(10)]
    assert left == sorted(left, reverse=True)
    assert loads[-1] in left
    assert loads[0] not in left
    assert store.queries.plan("digest-1") is None
    assert list(store.queries.batches(loads[0])) == []
    assert store.path.stat().st_size < 2**20


def test_a_running_load_is_never_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    running = store.create_load("load", "folder", "/x", 1.0)
    store.put_plan(running, "big", os.urandom(2 * 2**20))
    recorded_load(store)
    recorded_load(store)
    store.settle()
    assert store.queries.load(running) is not None


def test_a_load_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    first = Store(tmp_path, LIMIT)
    load = first.create_load("load", "folder", "/x", 1.0)
    second = Store(tmp_path, LIMIT)
    assert row_of(second, load)["status"] == "planning"
    first.close()
    second.mark_interrupted()
    assert row_of(second, load)["status"] == "interrupted"


def row_of(store: Store, load: int) -> dict[str, Any]:
    row = store.queries.load(load)
    assert row is not None
    return row


def record_until_killed(directory: Path, acknowledge: int) -> None:
    store = Store(directory, LIMIT)
    load = store.create_load("load", "folder", "/x", 1.0)
    store.append(load, [started(load)])
    for seq in range(2, 1_000_000):
        store.append(load, [read(load, seq)])
        os.write(acknowledge, seq.to_bytes(4, "big"))


def test_kill_9_loses_no_acknowledged_event(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        record_until_killed(tmp_path, writer)
    os.close(writer)
    while int.from_bytes(os.read(reader, 4), "big") < 50:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    rest = b""
    while chunk := os.read(reader, 65536):
        rest += chunk
    acknowledged = int.from_bytes(rest[-4:], "big") if rest else 50

    store = Store(tmp_path, LIMIT)
    events = [e for batch in store.queries.batches(1) for e in batch]
    assert events[-1].kind == "load_finished"
    assert events[-2].seq >= acknowledged
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert row_of(store, 1)["status"] == "interrupted"
    assert fold(events).as_json(time.time())["status"] == "interrupted"
    assert fold(events).as_json(time.time())["verdict"] == "fail"


def test_one_server_per_state_directory(tmp_path: Path) -> None:
    lock = lock_server(tmp_path)
    assert lock is not None
    assert lock_server(tmp_path) is None
    lock.release()
    assert lock_server(tmp_path) is not None


OLD_LOAD = """
    CREATE TABLE load (
        id INTEGER PRIMARY KEY AUTOINCREMENT, {since_2}
        origin TEXT NOT NULL, source TEXT NOT NULL, source_path TEXT NOT NULL,
        writer TEXT NOT NULL, status TEXT NOT NULL, started_t REAL NOT NULL, finished_t REAL,
        digest TEXT REFERENCES plan(digest), summary TEXT NOT NULL DEFAULT '{{}}',
        events_dropped INTEGER NOT NULL DEFAULT 0, exploded INTEGER NOT NULL DEFAULT 0) STRICT"""
SINCE_2 = "update_id INTEGER, role TEXT NOT NULL DEFAULT 'target',"


def old_file(directory: Path, version: int, loads: list[dict[str, object]]) -> None:
    """A file as a former program left it, with the tables that have changed since."""
    with sqlite3.connect(directory / "loads.db", isolation_level=None) as db:
        db.execute(OLD_LOAD.format(since_2=SINCE_2 if version == 2 else ""))
        db.execute(f"PRAGMA user_version={version}")
        for load in loads:
            row = {"origin": "serve", "source": "m", "source_path": "/x/m", "writer": "0" * 16,
                   "started_t": 10.0, **load}  # fmt: skip
            names = ", ".join(row)
            marks = ", ".join(f":{name}" for name in row)
            db.execute(f"INSERT INTO load ({names}) VALUES ({marks})", row)


def ended(status: str, finished_t: float = 20.0, **more: object) -> dict[str, object]:
    return {"status": status, "finished_t": finished_t, **more}


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    old_file(tmp_path, 1, [ended("finished"), ended("failed")])
    store = Store(tmp_path, LIMIT)
    rows = store.queries.loads(10)
    assert [(row["id"], row["update_id"], row["role"]) for row in rows] == [
        (2, 2, "target"), (1, 1, "target"),
    ]  # fmt: skip
    assert [row["state"] for row in UpdateLog(store).rows(10)] == ["failed", "retired"]
    assert store.create_load("load", "folder", "/x", 1.0) == 3


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (["finished", "finished"], "retired"),
        (["refused", "refused"], "failed"),
        (["finished", "failed"], "failed"),
        (["failed", "interrupted"], "failed"),
        (["finished", "interrupted"], "interrupted"),
    ],
)
def test_updates_of_the_second_version_keep_their_numbers_and_get_a_state(
    tmp_path: Path, statuses: list[str], state: str
) -> None:
    loads = [ended(status, 20.0 + n, update_id=5) for n, status in enumerate(statuses)]
    old_file(tmp_path, 2, [ended("finished", update_id=1), *loads])
    store = Store(tmp_path, LIMIT)
    newest, _oldest = UpdateLog(store).rows(10)
    assert (newest["id"], newest["state"], newest["loads"]) == ("u-5", state, [2, 3])
    assert (newest["opened_t"], newest["ended_t"]) == (10.0, 21.0)
    assert newest["source"] == {"type": "disk", "name": "m"}
    assert [one.load for one in store.queries.members(3)] == [2, 3]
    other = store.create_load("load", "folder", "/x", 1.0)
    assert row_of(store, other)["update_id"] == 6


def test_what_ran_when_an_old_program_was_cut_off_becomes_interrupted(tmp_path: Path) -> None:
    old_file(tmp_path, 2, [ended("finished", update_id=1), {"status": "loading", "update_id": 1}])
    (update,) = UpdateLog(Store(tmp_path, LIMIT)).rows(10)
    assert (update["state"], update["failure"]["code"]) == ("interrupted", "interrupted")


def test_a_file_is_brought_up_to_date_only_once(tmp_path: Path) -> None:
    old_file(tmp_path, 2, [ended("finished", update_id=1)])
    Store(tmp_path, LIMIT).close()
    assert UpdateLog(Store(tmp_path, LIMIT)).count() == 1


def test_a_load_without_an_update_opens_one_with_its_number(store: Store) -> None:
    log = UpdateLog(store)
    load = store.create_load("load", "folder", "/x/folder", 7.0)
    record = log.record(load)
    assert record is not None
    assert (record["id"], record["state"], record["origin"]) == (f"u-{load}", "planning", "load")
    assert (record["opened_t"], record["loads"]) == (7.0, [load])


def test_a_number_that_an_update_has_had_is_not_given_again(store: Store) -> None:
    log = UpdateLog(store)
    opened = [queued(log) for _ in range(3)]
    load = store.create_load("load", "folder", "/x", 1.0)
    assert row_of(store, load)["update_id"] == max(opened) + 1


def queued(log: UpdateLog) -> int:
    return log.open(origin="native", source_type="disk", source="m", version=None, opened_t=1.0)


def test_a_load_of_an_update_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(AssertionError, match="update 9"):
        store.create_load("load", "folder", "/x", 1.0, update=9)
    assert store.queries.count_loads() == 0


def test_an_update_that_only_its_loads_tell_of_ends_as_they_did(tmp_path: Path) -> None:
    first = Store(tmp_path, LIMIT)
    recorded_load(first)
    cut_off = first.create_load("load", "folder", "/x", 1000.0)
    first.close()
    newest, oldest = UpdateLog(Store(tmp_path, LIMIT)).rows(10)
    assert (newest["loads"], newest["state"]) == ([cut_off], "interrupted")
    assert (oldest["state"], oldest["ended_t"], oldest["failure"]) == ("retired", 2000.0, None)


def test_loads_of_one_update_are_found_from_each_of_them(store: Store) -> None:
    first = store.create_load("serve", "folder", "/x", 1.0, "target")
    second = store.create_load("serve", "folder", "/x", 1.0, "draft", first)
    other = store.create_load("serve", "folder", "/x", 1.0)
    members = [(first, "target"), (second, "draft")]
    assert store.queries.members(first) == store.queries.members(second) == members
    assert store.queries.members(other) == [(other, "target")]


def test_the_newest_update_stays_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    old = recorded_load(store, filler="x" * 900_000)
    first = store.create_load("serve", "folder", "/x", 1.0, "target")
    second = store.create_load("serve", "folder", "/x", 1.0, "draft", first)
    for load in (first, second):
        store.put_plan(load, f"new-{load}", os.urandom(900_000))
        store.finish(load, "finished", 2000.0, {}, 0)
    store.settle()
    assert {row["id"] for row in store.queries.loads(10)} == {first, second}
    assert store.queries.load(old) is None


def test_the_loads_of_the_active_update_stay(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    log = UpdateLog(store)
    active = recorded_load(store, filler="x" * 900_000)
    log.commit(row_of(store, active)["update_id"], "1", 5.0, None, {})
    for _ in range(2):
        newest = recorded_load(store, filler="x" * 900_000)
    store.settle()
    assert {row["id"] for row in store.queries.loads(10)} == {active, newest}


def test_events_of_an_update_go_with_its_last_load_and_its_record_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    log = UpdateLog(store)
    loads = [recorded_load(store, filler="x" * 900_000) for _ in range(3)]
    updates = [row_of(store, load)["update_id"] for load in loads]
    for update in updates:
        log.append_events(update, [(1, 1.0, "state", "{}")])
    store.settle()
    assert [row["id"] for row in store.queries.loads(10)] == loads[-1:]
    assert [len(log.events(update, 0, 10)) for update in updates] == [0, 0, 1]
    assert log.count() == 3


def test_a_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, LIMIT).close()
    with sqlite3.connect(tmp_path / "loads.db") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(StoreError, match="format 99"):
        Store(tmp_path, LIMIT)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "loads.db").write_bytes(b"hello" * 1000)
    with pytest.raises(StoreError, match="loads.db"):
        Store(tmp_path, LIMIT)
