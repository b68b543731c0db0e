"""Loads over HTTP: one at a time, planned first, in place, paused, refused, failed, remembered."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import write_golden_checkpoint
from support.serving import Serving, edit_config, serving
from support.updates import contents

from loadscope.app.live import Live
from loadscope.app.readiness import reasons_against
from loadscope.app.settings import Settings
from loadscope.app.store import Store
from loadscope.app.tick import Tick
from loadscope.app.updates.update import Update
from loadscope.loader.control import Control
from loadscope.loader.events import Recorder
from loadscope.loader.topology import Layout

# slow enough to act upon, fast enough to wait for
PACE_S = 0.7


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    write_golden_checkpoint("v3-fp8-block", folder / "good")
    return folder


@pytest.fixture
def server(disk: Path, tmp_path: Path) -> Iterator[Serving]:
    """With the good checkpoint loaded; reloads may read all of the disk folder."""
    with serving(tmp_path, disk / "good", roots=(disk,)) as server:
        server.wait()
        yield server


@pytest.fixture
def slow(disk: Path, tmp_path: Path) -> Iterator[Serving]:
    """Bytes of a paced load are moving."""
    with serving(tmp_path, disk / "good", roots=(disk,), pace_s=PACE_S) as server:
        server.wait_for(is_moving)
        yield server


def is_moving(row: dict[str, Any]) -> bool:
    return row["status"] == "loading" and row["bytes_done"] > 0


def addresses(server: Serving) -> dict[str, int]:
    (store,) = server.services.jobs.stores["target"].values()
    return {name: tensor.data_ptr() for name, tensor in store.parameters.items()}


def copy_of(disk: Path, name: str) -> Path:
    return Path(shutil.copytree(disk / "good", disk / name, dirs_exist_ok=True))


def damaged(disk: Path) -> Path:
    """A checkpoint that lacks its last shard's file."""
    folder = copy_of(disk, "damaged")
    max(folder.glob("*.safetensors")).unlink()
    return folder


def test_a_reload_fills_the_same_memory(server: Serving) -> None:
    before = addresses(server)
    answer = server.reload("good")
    assert (answer.status_code, answer.json()["loads"]) == (202, [2])
    assert answer.headers["location"] == answer.json()["url"] == "/reloads/u-2"
    assert server.wait()["state"]["verdict"] == "pass"
    assert addresses(server) == before
    assert server.get("/readyz")["ready"]


@pytest.mark.parametrize("path", ["good", "{root}/good", "{folder}/good"])
def test_a_path_may_be_relative_absolute_or_begin_with_the_roots_name(
    server: Serving, disk: Path, path: str
) -> None:
    answer = server.reload(path.format(root=disk, folder=disk.name))
    assert answer.status_code == 202
    server.wait()


def test_paths_outside_the_roots_are_refused_without_a_record(
    server: Serving, disk: Path, tmp_path: Path
) -> None:
    link = disk / "link-out"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path)
    for path in ("/etc", "../", "good/../..", "link-out", "nothing-here", str(tmp_path)):
        answer = server.reload(path)
        assert answer.status_code == 403
        assert answer.json()["roots"] == [disk.name]
        assert str(disk.parent) not in answer.text
    assert server.get("/loads")["total"] == 1


def test_unknown_fields_are_named(server: Serving) -> None:
    bodies = ({"source": {"type": "disk", "path": "good", "x": 1}}, {"source": {"type": "s3"}}, {})
    for body, field in zip(bodies, ("source.x", "source.type", "source"), strict=True):
        answer = server.client.post("/reload", json=body)
        assert answer.status_code == 422
        assert field in [error["field"] for error in answer.json()["errors"]]


@pytest.mark.parametrize("fault", ["damaged", "misfit", "empty"])
def test_a_refused_reload_leaves_the_weights_alone(server: Serving, disk: Path, fault: str) -> None:
    folder = {"damaged": damaged, "misfit": misfit, "empty": empty}[fault](disk)
    before = addresses(server), server.services.jobs.stores["target"][0].epoch
    answer = server.reload(folder.name)
    assert answer.status_code == (404 if fault == "empty" else 422)
    problem = answer.json()
    assert problem["load"] == 2
    assert str(disk) not in answer.text
    assert fault == "empty" or any(f["level"] == "error" for f in problem["findings"])
    assert (addresses(server), server.services.jobs.stores["target"][0].epoch) == before
    assert server.get("/readyz")["ready"]
    record = server.get("/loads/2")
    assert (record["status"], record["verdict"]) == ("refused", "fail")
    assert "refused" in record["sentence"]
    told = problem.get("findings", [])
    assert record["findings"][: len(told)] == told


def misfit(disk: Path) -> Path:
    """A good checkpoint of another size than what is loaded."""
    return write_golden_checkpoint("v3-bf16", disk / "misfit")


def empty(disk: Path) -> Path:
    (disk / "empty").mkdir(exist_ok=True)
    return disk / "empty"


def test_one_load_at_a_time(slow: Serving) -> None:
    answer = slow.reload("good")
    assert answer.status_code == 409
    assert (answer.json()["code"], answer.json()["update"]) == ("reload_in_progress", "u-1")
    assert slow.wait()["status"] == "finished"
    assert slow.reload("good").status_code == 202


def test_not_ready_while_bytes_move(slow: Serving) -> None:
    answer = slow.client.get("/readyz")
    assert answer.status_code == 503
    assert "being written" in answer.json()["reasons"][0]
    assert slow.get("/healthz") == {"status": "ok"}


def test_a_paused_load_stands_still_and_says_so(slow: Serving) -> None:
    assert slow.client.post("/pause").json() == {"paused": True}
    paused = slow.wait_for(lambda row: row["status"] == "paused")["state"]
    time.sleep(0.3)
    later = slow.get("/loads/1")["state"]
    assert later["bytes_done"] <= paused["bytes_done"] + 2**20
    time.sleep(0.2)
    assert slow.get("/loads/1")["state"]["bytes_done"] == later["bytes_done"]
    assert (later["paused"], later["rate_bps"], later["eta_s"]) == (True, None, None)
    assert slow.services.hub.document()["state"]["status"] == "paused"
    assert slow.client.post("/resume", json={}).json() == {"paused": False}
    assert slow.wait()["state"]["verdict"] == "pass"
    assert slow.client.post("/pause").status_code == 409


def test_queries_answer_while_a_load_runs(slow: Serving) -> None:
    for path in ("/coverage", "/parameters", "/pairings", "/kernels", "/events", "/loads/1"):
        assert slow.client.get(path).status_code == 200
    partial = slow.items("/parameters", state="unwritten")
    assert partial


@contextmanager
def shrinking(server: Serving, disk: Path) -> Iterator[Path]:
    """A shard of a good checkpoint, which is cut as soon as its plan has been made."""
    folder = copy_of(disk, "shrinking")
    shard = min(folder.glob("*.safetensors"))
    admission, whole = server.services.jobs._admission, shard.read_bytes()
    prepare = admission.prepare

    def cut_after_planning(update: Update) -> None:
        prepare(update)
        shard.write_bytes(whole[: len(whole) // 3])

    admission.prepare = cut_after_planning  # type: ignore[method-assign]
    yield shard
    admission.prepare = prepare  # type: ignore[method-assign]


def reload_with(server: Serving, **fields: Any) -> dict[str, Any]:
    """The record of an update from the shrinking folder, once it has ended."""
    source = {"type": "disk", "path": "shrinking"}
    answer = server.client.post("/reload", json={"source": source, "wait_s": 20, **fields})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_a_failed_load_in_place_poisons_and_a_reload_repairs(server: Serving, disk: Path) -> None:
    with shrinking(server, disk) as shard:
        update = reload_with(server, atomic="off", verify={"level": "none"})
    assert (update["state"], update["weights"]) == ("poisoned", "poisoned")
    (store,) = server.services.jobs.stores["target"].values()
    assert set(update["touched"]["names"]["target"]["0"]) == set(store.touched)
    assert server.get("/versions/current")["current"] is None
    record = server.wait()
    assert record["status"] == "failed"
    assert record["state"]["failure"]["file"] == shard.name
    assert [f["code"] for f in record["findings"]][0] == "LS601"
    answer = server.client.get("/readyz")
    assert answer.status_code == 503
    assert "parameters were written" in answer.json()["reasons"][0]
    server.reload("good")
    server.wait()
    assert server.get("/readyz")["ready"]


@pytest.mark.parametrize(
    ("level", "code", "status"),
    [("bytes", "truncated", "failed"), ("none", "load_failed", "failed")],
)
def test_a_file_that_shrinks_leaves_the_old_weights_behind_a_second_copy(
    server: Serving, disk: Path, level: str, code: str, status: str
) -> None:
    before = contents(server.services.jobs.stores["target"][0])
    with shrinking(server, disk):
        update = reload_with(server, verify={"level": level})
    assert (update["state"], update["weights"]) == (status, "unchanged")
    assert update["failure"]["code"] == code
    assert contents(server.services.jobs.stores["target"][0]) == before
    assert server.get("/readyz")["ready"]
    assert server.get("/loads/2")["status"] == "failed"


def test_a_server_whose_first_plan_fails_still_answers(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, damaged(disk), roots=(disk,)) as server:
        record = server.wait()
        assert record["status"] == "refused"
        assert any(one["level"] == "error" for one in record["findings"])
        assert server.client.get("/readyz").status_code == 503
        assert server.client.get("/ui/").status_code == 200
        assert server.reload("good").status_code == 202
        assert server.wait()["status"] == "finished"


def test_a_layout_that_does_not_divide_is_refused(disk: Path, tmp_path: Path) -> None:
    folder = copy_of(disk, "odd-heads")
    edit_config(folder, num_hidden_layers="many")
    with serving(tmp_path, disk / "good", roots=(disk,)) as server:
        server.wait()
        assert server.reload("odd-heads").status_code == 422


def test_a_finished_load_looks_the_same_after_a_restart(disk: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.5.gate_proj.weight"
    paths = ("/loads/1", "/loads", "/coverage?load=1", f"/mapping?name={name}&load=1",
             "/events?load=1&limit=1000", "/plan?load=1", "/skips?load=1", "/pairings?load=1",
             "/kernels?load=1", "/parameters?load=1", "/ranks?load=1", "/timings?load=1",
             "/findings?load=1")  # fmt: skip
    with serving(tmp_path, disk / "good", roots=(disk,)) as server:
        server.wait()
        before = {path: server.client.get(path).json() for path in paths}
    with serving(tmp_path, None, roots=(disk,)) as server:
        after = {path: server.client.get(path).json() for path in paths}
        assert after == before
        assert server.get("/coverage") == before["/coverage?load=1"]
        assert server.client.get("/readyz").status_code == 503
        assert server.get("/healthz") == {"status": "ok"}


def test_an_idle_server_says_that_nothing_has_started(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, None, roots=(disk,)) as server:
        assert server.client.get("/readyz").json()["reasons"] == ["no load has finished"]
        for path in ("/coverage", "/plan", "/mapping?name=x", "/findings"):
            answer = server.client.get(path)
            assert answer.status_code == 404
            assert "POST /reload" in answer.json()["detail"]
        assert server.get("/loads")["total"] == 0


def nobody(tick: Tick) -> None:
    """Takes ticks and shows them to nobody."""


def test_dispensable_events_are_dropped_and_counted_when_the_queue_is_full(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    live = Live(store, nobody, max_queued=3)
    recorder: Recorder = live.begin(store.create_load("load", "f", "/f", 1.0), Control())
    recorder.emit("load_started")
    for _ in range(5):
        recorder.emit("read", 0, bytes=1, seconds=0.1)
    recorder.emit("skipped", 0, tensor="t", reason="rotary", bytes=1)
    recorder.emit("load_finished", detail={"status": "finished"})
    live.flush()
    assert live.view is not None
    document = live.view.document(2.0)
    assert document["events_dropped"] == 3
    assert document["skipped"] == 1
    row = store.queries.load(1)
    assert row is not None
    assert row["events_dropped"] == 3


def test_events_that_cannot_be_stored_are_kept_until_they_can(tmp_path: Path) -> None:
    store = Store(tmp_path, 2**20)
    live = Live(store, nobody)
    recorder = live.begin(store.create_load("load", "f", "/f", 1.0), Control())
    store._db.execute("ALTER TABLE event_batch RENAME TO away")
    recorder.emit("load_started")
    live.flush()
    store._db.execute("ALTER TABLE away RENAME TO event_batch")
    recorder.emit("load_finished", detail={"status": "finished"})
    live.flush()
    (batch,) = store.queries.batches(1)
    assert [event.kind for event in batch] == ["load_started", "load_finished"]
    row = store.queries.load(1)
    assert row is not None
    assert row["status"] == "finished"


def load_until_killed(state: Path, model: Path) -> None:
    from loadscope.app.load_command import load_once
    from loadscope.loader.checkpoint import open_checkpoint

    settings = Settings(model=model, origin="load", state_dir=state, ranks="0", pace_s=30.0)
    load_once(settings, open_checkpoint(model), None, show_progress=False)


def test_a_load_cut_by_kill_9_reopens_as_interrupted(disk: Path, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        load_until_killed(tmp_path, disk / "good")
    with serving(tmp_path, None, roots=(disk,)) as server:
        running = server.wait_for(lambda row: server.get("/loads/1")["state"]["bytes_done"] > 0)
        assert running["status"] == "loading"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        record = server.wait()
        assert (record["status"], record["verdict"]) == ("interrupted", "fail")
        seen = running["state"]
        assert record["state"]["bytes_done"] >= seen["bytes_done"] > 0
        numbers = [event["seq"] for event in server.items("/events", load=1, limit=1000)]
        assert numbers == list(range(1, len(numbers) + 1))


class Rank:
    def __init__(self, state: str, epoch: int = 0, touched: tuple[str, ...] = ()) -> None:
        self.state, self.epoch, self.touched = state, epoch, touched


@pytest.mark.parametrize(
    ("ranks", "is_writing", "words"),
    [
        ({}, False, "no load has finished"),
        ({0: Rank("ready", 2)}, False, None),
        ({0: Rank("ready", 2)}, True, "being written"),
        ({0: Rank("ready", 2), 1: Rank("writing", 3)}, False, "rank 1"),
        ({0: Rank("ready", 2), 1: Rank("empty")}, False, "rank 1"),
        ({0: Rank("poisoned", 4, ("a", "b", "c", "d"))}, False, "4 parameters"),
    ],
)
def test_readiness(ranks: dict[int, Rank], is_writing: bool, words: str | None) -> None:
    reasons = reasons_against({"target": ranks}, None, is_writing=is_writing)
    assert (words is None) == (reasons == [])
    assert words is None or words in reasons[0]


def test_the_events_of_one_expert_are_those_of_its_rank_and_file(
    disk: Path, tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.experts.5.gate_proj.weight"
    layout = Layout(tp_size=2, ep_size=2)
    with serving(tmp_path, disk / "good", layout=layout, ranks="all") as server:
        server.wait()
        where = server.get("/mapping", name=name)
        moved = [e for e in server.items("/events", name=name) if e["kind"] in ("read", "copied")]
    assert [place["rank"] for place in where["destinations"]] == [1]
    assert {event["rank"] for event in moved} == {1}
    assert {event["detail"]["file"] for event in moved} == {where["file"]}
