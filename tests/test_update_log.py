"""Updates on record: one is active and has its version, whatever is killed and whenever."""

import json
import logging
import os
import random
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadscope.app import store_updates
from loadscope.app.store import Store
from loadscope.app.store_schema import open_reader
from loadscope.app.store_updates import UNFINISHED_STATES
from loadscope.app.updates.audit import MAX_TEXT, Audit, Who, key_mark
from loadscope.app.updates.log import KeyTaken, UpdateLog

LIMIT = 64 * 2**20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, LIMIT)
    yield store
    store.close()


@pytest.fixture
def log(store: Store) -> UpdateLog:
    return UpdateLog(store)


def opened(log: UpdateLog, version: str | None = None, **more: Any) -> int:
    facts: dict[str, Any] = {"origin": "native", "source_type": "upload", "source": "rl/v"}
    return log.open(**facts, version=version, opened_t=10.0, **more)


def committed(log: UpdateLog, version: str, t: float = 20.0) -> int:
    update = opened(log, version)
    log.commit(update, version, t, f"digest-{version}", {"weights": "new"})
    return update


def record_of(log: UpdateLog, update: int) -> dict[str, Any]:
    record = log.record(update)
    assert record is not None
    return record


def states(log: UpdateLog) -> list[str]:
    return [record["state"] for record in reversed(log.rows(100))]


def history(log: UpdateLog) -> list[tuple[str, int]]:
    return [(one.version, one.update) for one in reversed(log.versions(100))]


def stored(store: Store, sql: str) -> list[sqlite3.Row]:
    with open_reader(store.path) as db:
        return db.execute(sql).fetchall()


def records_that_disagree(store: Store) -> list[tuple[int, str, str]]:
    """Updates whose stored record says something else than its columns."""
    rows = stored(store, "SELECT id, state, ended_t, record FROM weight_update")
    return [
        (row["id"], row["state"], row["record"])
        for row in rows
        if (said := json.loads(row["record"]))
        and (said["state"], said["ended_t"]) != (row["state"], row["ended_t"])
    ]


def test_a_new_update_is_queued_and_says_what_is_known(log: UpdateLog) -> None:
    update = opened(log, "128")
    record = record_of(log, update)
    assert (record["id"], record["state"], record["version"]) == (f"u-{update}", "queued", "128")
    assert record["source"] == {"type": "upload", "name": "rl/v"}
    assert (record["opened_t"], record["ended_t"], record["loads"]) == (10.0, None, [])


def test_a_saved_record_comes_back_whole(log: UpdateLog) -> None:
    update = opened(log)
    log.save(update, "receiving", {"buckets": {"received": 3}, "loads": [4, 5], "previous": "127"})
    record = record_of(log, update)
    assert (record["state"], record["buckets"]) == ("receiving", {"received": 3})
    assert (record["loads"], record["previous"]) == ([4, 5], "127")
    log.save(update, "cancelled", {"buckets": None}, 30.0)
    record = record_of(log, update)
    assert (record["state"], record["ended_t"], record["buckets"]) == ("cancelled", 30.0, None)
    assert "previous" not in record


def test_an_unknown_update_has_no_record(log: UpdateLog) -> None:
    assert log.record(1) is None


def test_only_a_commit_makes_an_update_active(log: UpdateLog) -> None:
    update = opened(log)
    with pytest.raises(AssertionError, match="queued, not active"):
        log.save(update, "active", {})
    log.commit(update, "1", 20.0, None, {})
    log.save(update, "active", {"stopped_serving_s": 0.1}, 20.0)
    assert record_of(log, update)["stopped_serving_s"] == 0.1
    with pytest.raises(AssertionError, match="over already"):
        log.commit(update, "1", 30.0, None, {})
    assert history(log) == [("1", update)]


def test_a_commit_retires_the_update_before(log: UpdateLog, store: Store) -> None:
    first, second = committed(log, "1"), committed(log, "2", 25.0)
    assert states(log) == ["retired", "active"]
    assert history(log) == [("1", first), ("2", second)]
    assert record_of(log, first)["weights"] == "new"
    assert record_of(log, first)["ended_t"] == 20.0
    last = log.last_version()
    assert last is not None
    assert (last.version, last.digest, last.committed_t) == ("2", "digest-2", 25.0)
    assert records_that_disagree(store) == []


def test_a_commit_that_fails_half_way_changes_nothing(log: UpdateLog, store: Store) -> None:
    first, second = committed(log, "1"), opened(log, "2")
    store._db.execute("ALTER TABLE version RENAME TO away")
    with pytest.raises(sqlite3.OperationalError):
        log.commit(second, "2", 30.0, None, {})
    store._db.execute("ALTER TABLE away RENAME TO version")
    assert states(log) == ["active", "queued"]
    assert history(log) == [("1", first)]


def test_a_roll_back_returns_to_the_version_before(log: UpdateLog, store: Store) -> None:
    first, second = committed(log, "1"), committed(log, "2")
    log.roll_back(second, {"weights": "rolled_back"}, 40.0, first)
    assert states(log) == ["active", "rolled_back"]
    assert history(log) == [("1", first), ("2", second), ("1", first)]
    last = log.last_version()
    assert last is not None
    assert (last.digest, last.committed_t) == ("digest-1", 40.0)
    assert last.detail == {"what": "rollback", "update": f"u-{second}"}
    assert record_of(log, second)["ended_t"] == 40.0
    assert records_that_disagree(store) == []


def test_a_roll_back_before_the_commit_leaves_the_active_update_alone(log: UpdateLog) -> None:
    first, second = committed(log, "1"), opened(log, "2")
    log.roll_back(second, {}, 40.0, first)
    assert (states(log), history(log)) == (["active", "rolled_back"], [("1", first)])


def test_a_roll_back_to_nothing_leaves_no_update_active(log: UpdateLog) -> None:
    only = committed(log, "1")
    log.roll_back(only, {}, 40.0, None)
    assert (states(log), history(log)) == (["rolled_back"], [("1", only)])


def test_no_process_can_have_two_active_updates(log: UpdateLog, store: Store) -> None:
    committed(log, "1"), opened(log, "2")
    with pytest.raises(sqlite3.IntegrityError), store.transaction() as db:
        db.execute("UPDATE weight_update SET state = 'active'")
    assert states(log) == ["active", "queued"]


def test_processes_side_by_side_have_a_version_each(tmp_path: Path, log: UpdateLog) -> None:
    beside = UpdateLog(Store(tmp_path, LIMIT))
    committed(log, "1"), committed(beside, "x")
    assert states(log) == ["active", "active"]
    assert [one.last_version() for one in (log, beside)] == log.versions(2)[::-1]
    newest = log.last_version(of_any_process=True)
    assert newest is not None
    assert newest.version == "x"


def test_an_idempotency_key_belongs_to_one_update(log: UpdateLog) -> None:
    first = opened(log, key="step-1", request_digest="abc")
    with pytest.raises(KeyTaken) as taken:
        opened(log, key="step-1", request_digest="def")
    assert taken.value.update == first
    assert log.by_key("step-1") == (first, "abc")
    assert log.by_key("step-2") is None
    assert log.count() == 1
    opened(log), opened(log)
    assert log.count() == 3


def test_of_many_that_ask_with_one_key_at_once_one_opens(tmp_path: Path, log: UpdateLog) -> None:
    beside = UpdateLog(Store(tmp_path, LIMIT))
    start, found = threading.Barrier(8), []

    def ask(one: UpdateLog) -> None:
        start.wait()
        try:
            found.append(("opened", opened(one, key="k")))
        except KeyTaken as taken:
            found.append(("taken", taken.update))

    threads = [threading.Thread(target=ask, args=((log, beside)[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(how for how, _update in found) == ["opened", *["taken"] * 7]
    assert {update for _how, update in found} == {1}


def test_lists_go_backwards_page_by_page(log: UpdateLog) -> None:
    updates = [committed(log, str(n)) for n in range(5)]
    assert [row["id"] for row in log.rows(2)] == ["u-5", "u-4"]
    assert [row["id"] for row in log.rows(2, before=updates[3])] == ["u-3", "u-2"]
    first = log.versions(3)
    assert [one.version for one in first] == ["4", "3", "2"]
    assert [one.version for one in log.versions(3, before=first[-1].seq)] == ["1", "0"]
    assert (log.count(), log.count_versions()) == (5, 5)


def test_of_progress_only_the_last_event_is_kept(log: UpdateLog) -> None:
    update = opened(log)
    log.append_events(update, [(1, 1.0, "state", "{}"), (2, 2.0, "progress", '{"n":1}')])
    log.append_events(update, [(3, 3.0, "progress", '{"n":2}'), (4, 4.0, "bucket", "{}"),
                               (5, 5.0, "progress", '{"n":3}')])  # fmt: skip
    log.append_events(update, [(6, 6.0, "done", "{}")])
    kept = log.events(update, 0, 100)
    assert [(event.seq, event.kind) for event in kept] == [
        (1, "state"), (4, "bucket"), (5, "progress"), (6, "done"),
    ]  # fmt: skip
    assert kept[2] == (5, 5.0, "progress", '{"n":3}')
    assert [event.seq for event in log.events(update, 1, 2)] == [4, 5]
    assert (log.last_seq(update), log.last_seq(99)) == (6, 0)


@pytest.mark.parametrize("state", UNFINISHED_STATES)
def test_what_a_dead_process_did_not_finish_is_interrupted(tmp_path: Path, state: str) -> None:
    store = Store(tmp_path, LIMIT)
    log = UpdateLog(store)
    update = opened(log, "1")
    log.save(update, state, {"buckets": {"received": 3}, "failure": None})
    log.append_events(update, [(1, 55.0, "state", "{}")])
    store.close()
    again = Store(tmp_path, LIMIT)
    record = record_of(UpdateLog(again), update)
    assert (record["state"], record["ended_t"]) == ("interrupted", 55.0)
    assert (record["failure"]["code"], record["failure"]["phase"]) == ("interrupted", state)
    assert state in record["failure"]["message"]
    assert record["buckets"] == {"received": 3}
    assert records_that_disagree(again) == []
    last = UpdateLog(again).events(update, 1, 10)
    assert [(event.seq, event.kind) for event in last] == [(2, "done")]
    assert json.loads(last[0].detail)["state"] == "interrupted"


def test_an_update_ends_with_the_last_event_of_its_loads(tmp_path: Path) -> None:
    store = Store(tmp_path, LIMIT)
    log = UpdateLog(store)
    update = opened(log)
    load = store.create_load("reload", "m", "/x/m", 70.0, update=update)
    log.save(update, "switching", {"loads": [load]})
    store.close()
    record = record_of(UpdateLog(Store(tmp_path, LIMIT)), update)
    assert (record["state"], record["ended_t"]) == ("interrupted", 70.0)


def test_the_active_update_of_a_dead_process_is_retired(tmp_path: Path) -> None:
    store = Store(tmp_path, LIMIT)
    log = UpdateLog(store)
    update = committed(log, "1")
    store.close()
    again = Store(tmp_path, LIMIT)
    log = UpdateLog(again)
    record = record_of(log, update)
    assert (record["state"], record["ended_t"]) == ("retired", 20.0)
    assert record.get("failure") is None
    assert records_that_disagree(again) == []
    assert log.last_version() is None
    newest = log.last_version(of_any_process=True)
    assert newest is not None
    assert newest.version == "1"


@pytest.mark.parametrize("state", ["failed", "rolled_back", "cancelled", "poisoned", "retired"])
def test_what_had_ended_stays_as_it_ended(tmp_path: Path, state: str) -> None:
    store = Store(tmp_path, LIMIT)
    update = opened(UpdateLog(store))
    UpdateLog(store).save(update, state, {"failure": {"code": "truncated"}}, 30.0)
    store.close()
    record = record_of(UpdateLog(Store(tmp_path, LIMIT)), update)
    assert (record["state"], record["failure"], record["ended_t"]) == (
        state, {"code": "truncated"}, 30.0,
    )  # fmt: skip


def test_updates_of_a_living_process_are_left_alone(tmp_path: Path, log: UpdateLog) -> None:
    committed(log, "1"), opened(log, "2")
    beside = UpdateLog(Store(tmp_path, LIMIT))
    beside.mark_interrupted()
    assert states(log) == ["active", "queued"]


def test_old_updates_go_but_not_those_that_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_updates, "KEPT_UPDATES", 3)
    monkeypatch.setattr(store_updates, "KEPT_VERSIONS", 2)
    store = Store(tmp_path, LIMIT)
    log = UpdateLog(store)
    retired, active, running = committed(log, "1"), committed(log, "2"), opened(log)
    loaded, failed = opened(log), opened(log)
    load = store.create_load("reload", "m", "/x", 1.0, update=loaded)
    store.finish(load, "failed", 2.0, {}, 0)
    for update in (loaded, failed):
        log.save(update, "failed", {}, 30.0)
    for update in (retired, loaded, failed):
        log.append_events(update, [(1, 1.0, "done", "{}")])
    newest = [opened(log) for _ in range(3)]
    store.prune()
    left = [int(row["id"].removeprefix("u-")) for row in reversed(log.rows(100))]
    assert left == [active, running, loaded, *newest]
    assert [log.last_seq(update) for update in (retired, loaded, failed)] == [0, 1, 0]
    assert history(log) == [("1", retired), ("2", active)]


def test_the_history_keeps_its_newest_lines_and_the_active_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_updates, "KEPT_VERSIONS", 2)
    first = UpdateLog(Store(tmp_path, LIMIT))
    active = committed(first, "here")
    beside = Store(tmp_path, LIMIT)
    others = [committed(UpdateLog(beside), str(n)) for n in range(4)]
    beside.prune()
    assert history(first) == [("here", active), ("2", others[2]), ("3", others[3])]


def update_until_killed(directory: Path, acknowledge: int) -> None:
    """Open, save and commit without end; every third update returns to the one before."""
    log = UpdateLog(Store(directory, LIMIT))
    previous: int | None = None
    for n in range(1_000_000):
        update = opened(log, str(n), key=f"step-{os.getpid()}-{n}")
        for state in ("receiving", "verifying", "switching"):
            log.save(update, state, {"filler": "x" * 2_000})
        log.append_events(update, [(1, 1.0, "state", "{}"), (2, 2.0, "progress", "{}")])
        log.commit(update, str(n), 20.0, None, {"filler": "x" * 2_000})
        if n % 3 == 2:
            log.roll_back(update, {}, 21.0, previous)
        else:
            previous = update
        os.write(acknowledge, b".")


def killed(directory: Path, after: int, delay_s: float) -> int:
    """Run a writer in a child, kill it some time after its n-th update; how many it finished."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            update_until_killed(directory, writer)
        finally:
            os._exit(1)
    os.close(writer)
    finished = 0
    while finished < after:
        finished += len(os.read(reader, 1))
    time.sleep(delay_s)  # anywhere in the middle of an update
    os.kill(child, signal.SIGKILL)
    _child, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    while chunk := os.read(reader, 65536):
        finished += len(chunk)
    os.close(reader)
    return finished


ACTIVE_WITHOUT_VERSION = """
    SELECT u.id FROM weight_update u WHERE u.state = 'active' AND u.version IS NOT
        (SELECT v.version FROM version v WHERE v.writer = u.writer ORDER BY v.seq DESC LIMIT 1)"""


def test_kill_9_leaves_no_active_update_without_its_version(tmp_path: Path) -> None:
    times = random.Random(4)
    expected = 0
    for _ in range(20):
        finished = killed(tmp_path, after=times.randint(1, 4), delay_s=times.uniform(0.0, 0.005))
        # as the process left it: no store has been opened since
        assert stored_in(tmp_path, ACTIVE_WITHOUT_VERSION) == []
        assert len(stored_in(tmp_path, "SELECT id FROM weight_update WHERE state='active'")) <= 1
        expected += finished
        store = Store(tmp_path, LIMIT)
        log = UpdateLog(store)
        kinds = {record["state"] for record in log.rows(1_000_000)}
        assert kinds <= {"interrupted", "retired", "rolled_back"}
        assert records_that_disagree(store) == []
        assert log.count_versions() >= expected
        for record in log.rows(10):
            assert (record["state"] == "interrupted") == (record["failure"] is not None)
        store.close()


def stored_in(directory: Path, sql: str) -> list[sqlite3.Row]:
    with open_reader(directory / "loads.db") as db:
        return db.execute(sql).fetchall()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_has_a_line_per_mutation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(tmp_path, clock=lambda: 5.0)
    who = Who("127.0.0.1", "trainer/1", key_mark("secret-key"))
    with caplog.at_level(logging.INFO, "loadscope.audit"):
        audit.record("commit", "active", who, update="u-7", version="128", digest="5b1e")
        logged = [json.loads(record.message) for record in caplog.records]
    audit.record("cancel", "refused: unknown_reload", Who())
    first, second = lines_of(audit.path)
    assert first == {
        "t": 5.0,
        "who": {"address": "127.0.0.1", "agent": "trainer/1", "key": key_mark("secret-key")},
        "what": "commit",
        "update": "u-7",
        "version": "128",
        "digest": "5b1e",
        "outcome": "active",
    }
    assert (second["who"]["key"], second["update"], second["digest"]) == (None, None, None)
    assert logged == [first]
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_a_key_is_marked_not_shown() -> None:
    mark = key_mark("secret-key")
    assert mark is not None
    assert (len(mark), mark[-1]) == (5, "…")
    assert "secret-key"[:4] not in mark
    assert mark not in (key_mark("secret-kez"), None)
    assert key_mark(None) is None


def test_what_a_client_sends_stays_in_one_short_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.record("reload", "opened", Who("::1", "a\n{}" * 1_000), version="v\r\n" * 1_000)
    (line,) = lines_of(audit.path)
    assert len(line["who"]["agent"]) == len(line["version"]) == MAX_TEXT
    assert audit.path.read_bytes().count(b"\n") == 1


def test_a_long_audit_is_rotated_and_one_old_file_kept(tmp_path: Path) -> None:
    ticks = iter(range(100))
    audit = Audit(tmp_path, clock=lambda: float(next(ticks)), max_bytes=1_000)
    for _ in range(40):
        audit.record("reload", "opened", Who("::1", "x" * 100))
    old = tmp_path / "audit.jsonl.1"
    times = [line["t"] for path in (old, audit.path) for line in lines_of(path)]
    assert times == [float(t) for t in range(40 - len(times), 40)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    assert 1_000 < old.stat().st_size < 1_400
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    audits = [Audit(tmp_path), Audit(tmp_path)]
    threads = [
        threading.Thread(
            target=lambda n=n: [audits[n % 2].record("bucket", str(n), Who()) for _ in range(100)]
        )
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [line["outcome"] for line in lines_of(audits[0].path)]
    assert sorted(outcomes) == sorted(str(n) for n in range(6) for _ in range(100))


def test_an_audit_that_cannot_be_written_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "loadscope.audit"):
        Audit(tmp_path / "nowhere").record("reload", "opened", Who())
    (record,) = caplog.records
    assert "reload" in record.message
    assert str(tmp_path) not in record.message
