"""The event log: nothing acknowledged is lost, nothing grows for ever, old loads stay readable."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from loadscope.app.store import Store, StoreError
from loadscope.app.store_lock import lock_server
from loadscope.app.store_schema import open_reader
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


def row_of(store: Store, load: int) -> dict[str, object]:
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


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    store = Store(tmp_path, LIMIT)
    recorded_load(store), recorded_load(store)
    store.close()
    with sqlite3.connect(tmp_path / "loads.db") as db:
        for column in ("update_id", "role"):
            db.execute(f"ALTER TABLE load DROP COLUMN {column}")
        db.execute("PRAGMA user_version=1")
    again = Store(tmp_path, LIMIT)
    rows = again.queries.loads(10)
    assert [(row["id"], row["update_id"], row["role"]) for row in rows] == [
        (2, 2, "target"), (1, 1, "target"),
    ]  # fmt: skip
    assert again.create_load("load", "folder", "/x", 1.0) == 3


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
