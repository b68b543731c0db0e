"""Frames of the live stream: a snapshot first, then deltas; any gap is one merged delta."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.sse import ServerSentEvent
from support.golden_checkpoint import write_golden_checkpoint

from loadscope.app.main import create_app
from loadscope.app.server import Server, bind, url_of
from loadscope.app.services import Services
from loadscope.app.settings import Settings
from loadscope.app.stream import Full, Hub
from loadscope.app.tick import MAX_POINTS, Picture, Tick, delta, snapshot, thin
from loadscope.loader.checkpoint import open_checkpoint

GRID = {"rows": ["0", "1"], "columns": ["attn"], "cells": [{"row": 0}, {"row": 1}]}


def tick(version: int, written: tuple[int, int], versions: tuple[int, int], load: int = 3) -> Tick:
    points = [(float(v), v * 10) for v in range(1, version + 1)]
    picture = Picture(
        load=load, role="target", state={"bytes_done": version}, grid=GRID, written=written,
        cell_versions=versions, points=points, point_versions=list(range(1, version + 1)),
        count=version,
    )  # fmt: skip
    return Tick(version=version, t=float(version), loads=[picture], since=1)


def test_a_snapshot_holds_everything() -> None:
    document = snapshot(tick(4, (5, 7), (4, 2)), "boot")
    assert [cell["written"] for cell in document["grid"]["cells"]] == [5, 7]
    assert len(document["throughput"]) == 4
    assert (document["v"], document["load"], document["boot"]) == (4, 3, "boot")


def test_a_delta_holds_what_changed_since() -> None:
    document = delta(tick(4, (5, 7), (4, 2)), since=3)
    assert document["cells"] == [0, 5]
    assert document["throughput"] == [(4.0, 40)]


def test_a_long_gap_is_one_merged_delta() -> None:
    document = delta(tick(4, (5, 7), (4, 2)), since=1)
    assert document["cells"] == [0, 5, 1, 7]
    assert document["throughput"] == [(2.0, 20), (3.0, 30), (4.0, 40)]


@pytest.mark.parametrize("count", [0, 1, 5, MAX_POINTS, MAX_POINTS + 1, 10_000])
def test_thinned_points_keep_the_last(count: int) -> None:
    points = [(float(i), i) for i in range(count)]
    kept = thin(points)
    assert len(kept) <= MAX_POINTS
    assert kept[-1:] == points[-1:]
    assert kept == sorted(kept)


async def take(frames: AsyncIterator[ServerSentEvent], count: int) -> list[ServerSentEvent]:
    return [await asyncio.wait_for(anext(frames), 5) for _ in range(count)]


def body(frame: ServerSentEvent) -> dict[str, Any]:
    assert frame.raw_data is not None
    document = json.loads(frame.raw_data)
    assert isinstance(document, dict)
    return document


def test_a_new_client_gets_a_snapshot_and_then_the_shared_delta() -> None:
    async def scenario() -> None:
        hub = Hub(max_clients=2)
        hub.publish(tick(4, (5, 7), (4, 2)))
        one, two = hub.frames(None), hub.frames("garbage")
        (first,), (second,) = await take(one, 1), await take(two, 1)
        assert first.event == second.event == "snapshot"
        assert first.retry == 2000
        assert first.id == f"{hub.boot}.3.4"
        hub.publish(tick(5, (6, 7), (5, 2)))
        (first,), (second,) = await take(one, 1), await take(two, 1)
        assert first is second
        assert body(first)["cells"] == [0, 6]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("last_id", "event"),
    [("{boot}.3.2", "delta"), ("{boot}.2.2", "snapshot"), ("other.3.2", "snapshot"),
     ("{boot}.3.99", "snapshot"), ("{boot}.3.0", "snapshot"), ("{boot}.3.x", "snapshot"),
     ("", "snapshot"), ("{boot}.3.-1", "snapshot")],
)  # fmt: skip
def test_resume_by_id(last_id: str, event: str) -> None:
    async def scenario() -> None:
        hub = Hub(max_clients=2)
        hub.publish(tick(4, (5, 7), (4, 2)))
        (frame,) = await take(hub.frames(last_id.format(boot=hub.boot)), 1)
        assert frame.event == event

    asyncio.run(scenario())


def test_a_new_load_sends_a_new_snapshot() -> None:
    async def scenario() -> None:
        hub = Hub(max_clients=2)
        hub.publish(tick(4, (5, 7), (4, 2)))
        frames = hub.frames(None)
        await take(frames, 1)
        hub.publish(tick(5, (0, 0), (5, 5), load=4))
        (frame,) = await take(frames, 1)
        assert (frame.event, body(frame)["load"]) == ("snapshot", 4)

    asyncio.run(scenario())


def test_closing_says_goodbye_to_a_waiting_client() -> None:
    async def scenario() -> None:
        hub = Hub(max_clients=2)
        frames = hub.frames(None)
        await take(frames, 1)
        waiting = asyncio.create_task(take(frames, 1))
        await asyncio.sleep(0)
        hub.close()
        (frame,) = await waiting
        assert (frame.event, frame.data) == ("bye", {"reason": "server-shutdown"})
        with pytest.raises(StopAsyncIteration):
            await anext(frames)

    asyncio.run(scenario())


def test_the_number_of_clients_is_capped() -> None:
    async def scenario() -> None:
        hub = Hub(max_clients=1)
        hub.join()
        with pytest.raises(Full):
            hub.join()
        hub.leave()
        hub.join()

    asyncio.run(scenario())


class LiveServer(NamedTuple):
    url: str
    services: Services
    server: Server
    thread: threading.Thread

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < deadline, "still waiting"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A real uvicorn in a thread, paused in the middle of a load; two clients at most."""
    model = write_golden_checkpoint("v3-bf16", tmp_path_factory.mktemp("disk") / "model")
    settings = Settings(
        model=model, state_dir=tmp_path_factory.mktemp("state"), pace_s=30, max_clients=2
    )
    bound = bind("127.0.0.1", 0)
    app = create_app(settings, open_checkpoint(model))
    services = app.state.services
    server = Server(app, services.hub.close)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield LiveServer(url_of(bound), services, server, thread)
    server.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive()


class Frame(NamedTuple):
    event: str
    id: str
    document: dict[str, Any]


@contextmanager
def opened(server: LiveServer, after: str = "", **headers: str) -> Iterator[Iterator[Frame]]:
    query = f"?after={after}" if after else ""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    with httpx.stream("GET", f"{server.url}events/stream{query}", headers=names) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-security-policy" in answer.headers
        yield parsed(answer.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Frame(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
            fields = {}


def test_deltas_applied_to_the_snapshot_give_the_next_snapshot(live_server: LiveServer) -> None:
    with opened(live_server) as frames:
        first = next(frames)
        assert first.event == "snapshot"
        while first.document["grid"] is None:
            first = next(frames)
        written = [cell["written"] for cell in first.document["grid"]["cells"]]
        for _ in range(8):
            frame = next(frames)
            assert frame.event == "delta"
            for index, value in zip(*[iter(frame.document["cells"])] * 2, strict=True):
                written[index] = value
        live_server.services.jobs.hold(paused=True)
        while frame.document["state"]["status"] != "paused":
            frame = next(frames)
            for index, value in zip(*[iter(frame.document["cells"])] * 2, strict=True):
                written[index] = value
    live_server.services.live.flush()
    grid = live_server.services.hub.document()["grid"]
    assert [cell["written"] for cell in grid["cells"]] == written
    assert sum(written) > 0


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_client_resumes_where_it_stopped(live_server: LiveServer, how: str) -> None:
    live_server.services.live.flush()
    position = live_server.services.hub.latest.position
    last_id = f"{live_server.services.hub.boot}.{position.load}.{position.version}"
    given = {"Last_Event_ID": last_id} if how == "header" else {}
    with opened(live_server, after=last_id if how == "query" else "", **given) as frames:
        frame = next(frames)
        assert frame.event == "delta"
        assert frame.document["v"] > position.version


@pytest.mark.parametrize("last_id", ["17", "a.b.c", "💥".encode().hex(), "0.0.0"])
def test_a_foreign_id_gets_a_snapshot(live_server: LiveServer, last_id: str) -> None:
    with opened(live_server, Last_Event_ID=last_id) as frames:
        assert next(frames).event == "snapshot"


def test_places_are_counted_given_back_and_refused_when_full(live_server: LiveServer) -> None:
    hub = live_server.services.hub
    live_server.until(lambda: hub.clients == 0)
    with opened(live_server) as one, opened(live_server) as two:
        next(one), next(two)
        assert hub.clients == 2
        refused = httpx.get(f"{live_server.url}events/stream")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.headers["content-type"] == "application/problem+json"
    live_server.until(lambda: hub.clients == 0)
    assert httpx.get(f"{live_server.url}events/stream?x=1").status_code == 422
    assert hub.clients == 0
