"""A server killed at any moment of an update: what a restart finds is whole, and says what was."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import httpx
import pytest
from support.forked import Forked, forked
from support.pushing import body_of, digest_of
from support.serving import Serving, serving
from support.updates import Files, contents, pieces

from loadscope.app.updates.record import PHASES, Record
from loadscope.loader.topology import Layout

VARIANT = "v3-fp8-block"
KILLS = 50


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def push(server: Forked, files: Files, version: str, seed: int = 1) -> None:
    """A trainer's step; ends quietly when the server dies."""
    weights = files.weights(VARIANT, 2)
    client = server.client
    try:
        body = {"source": {"type": "upload"}, "version": version, "verify": {"level": "loaded"}}
        update = client.post("/reload", json=body).json()["id"]
        for number, names in enumerate(pieces(list(weights), seed, 6)):
            data = body_of(weights, names)
            headers = {
                "content-type": "application/octet-stream",
                "content-digest": digest_of(data),
            }
            client.put(f"/reloads/{update}/buckets/{number}", content=data, headers=headers)
        client.post(f"/reloads/{update}/commit", json={"wait_s": 30})
    except httpx.TransportError:
        return


def die_in(phase: str) -> Callable[[], None]:
    """In the child: killed as soon as the second update enters this phase."""

    def prepare() -> None:
        enter = Record.enter

        def enter_or_die(self: Record, state: str) -> None:
            enter(self, state)
            if self.number > 1 and state == phase:
                os.kill(os.getpid(), signal.SIGKILL)

        Record.enter = enter_or_die  # type: ignore[method-assign]

    return prepare


@pytest.fixture
def restarted(files: Files, tmp_path: Path) -> Iterator[Callable[[], Serving]]:
    """The same state directory in this process, with the same model loaded again."""
    opened = []

    def restart() -> Serving:
        context = serving(tmp_path, files.folder(VARIANT), roots=(files.root,))
        server = context.__enter__()
        opened.append(context)
        # the newest load on record may still be one of the server that was killed
        deadline = time.monotonic() + 30.0
        while server.client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, server.get("/loads")
            time.sleep(0.01)
        return server

    yield restart
    for context in opened:
        context.__exit__(None, None, None)


def check_after(server: Serving, files: Files) -> list[str]:
    """What stands is whole, nothing is active without its version; states of all updates."""
    (store,) = server.services.jobs.stores["target"].values()
    assert contents(store) == contents(files.loaded(VARIANT, Layout(), 0, None, 1))
    current = server.get("/versions/current")
    assert current["state"] == "ready"
    rows = server.items("/reloads")
    versions = {row["update"] for row in server.items("/versions")}
    active = [row["id"] for row in rows if row["state"] == "active"]
    assert active == [current["current"]["update"]]
    assert set(active) <= versions
    assert not any(server.services.settings.spool_root.iterdir())
    for row in rows:
        assert row["state"] in ("active", "retired", "interrupted"), row
        assert (row["state"] == "interrupted") == (row["id"] not in versions)
    return [row["state"] for row in rows]


@pytest.mark.parametrize("phase", PHASES)
def test_killed_in_each_phase(
    phase: str, files: Files, tmp_path: Path, restarted: Callable[[], Serving]
) -> None:
    settings = {"roots": (files.root,)}
    with forked(tmp_path, files.folder(VARIANT), die_in(phase), **settings) as server:
        server.wait_ready()
        push(server, files, "128")
        server.reap()
    assert check_after(restarted(), files) == ["active", "interrupted", "retired"]


def test_killed_at_random_moments(
    files: Files, tmp_path: Path, restarted: Callable[[], Serving]
) -> None:
    random = Random(7)
    for number in range(KILLS):
        with forked(tmp_path, files.folder(VARIANT), roots=(files.root,)) as server:
            server.wait_ready()
            trainer = threading.Thread(target=push, args=(server, files, f"v{number}", number))
            trainer.start()
            time.sleep(random.uniform(0.0, 0.35))
            server.kill()
            trainer.join()
    states = check_after(restarted(), files)
    assert len(states) >= KILLS
    assert "interrupted" in states


def test_a_trainer_that_is_killed_leaves_the_old_weights(files: Files, tmp_path: Path) -> None:
    with serving(
        tmp_path, files.folder(VARIANT), roots=(files.root,), receive_timeout_s=0.3
    ) as server:
        server.wait()
        weights = files.weights(VARIANT, 2)
        opened = server.client.post("/reload", json={"source": {"type": "upload"}}).json()
        data = body_of(weights, list(weights)[:9])
        headers = {"content-type": "application/octet-stream", "content-digest": digest_of(data)}
        server.client.put(f"/reloads/{opened['id']}/buckets/0", content=data, headers=headers)
        assert server.services.jobs.wait_for(2, 30.0)
        record = server.get(f"/reloads/{opened['id']}")
        assert (record["state"], record["weights"]) == ("failed", "unchanged")
        assert record["failure"]["code"] == "receive_timeout"
        (store,) = server.services.jobs.stores["target"].values()
        assert contents(store) == contents(files.loaded(VARIANT, Layout(), 0, None, 1))
