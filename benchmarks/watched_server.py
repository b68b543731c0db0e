"""A server process whose event loop is watched, and a probe of it; `updates.py` measures with them.

python benchmarks/watched_server.py serve MODEL STATE     prints its address
python benchmarks/watched_server.py probe URL             asks until stdin ends
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from fastapi import FastAPI

from loadscope.app.main import create_app
from loadscope.app.server import Server, bind, url_of
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import open_checkpoint

EVERY_S = 0.005


class Lag:
    """How late the server's event loop was at worst, since it was last asked."""

    worst_s = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(EVERY_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - begun - EVERY_S)

    async def take(self) -> dict[str, float]:
        worst_s, self.worst_s = self.worst_s, 0.0
        return {"worst_s": worst_s}


def serve(model: Path, state: Path) -> None:
    """The usual server, with a watch on its loop."""
    settings = Settings(model=model, roots=(model.parent,), state_dir=state)
    app, lag = create_app(settings, open_checkpoint(model)), Lag()
    usual = app.router.lifespan_context

    @asynccontextmanager
    async def watched(app: FastAPI) -> AsyncIterator[None]:
        async with usual(app):
            watch = asyncio.create_task(lag.watch())
            yield
            watch.cancel()

    app.router.lifespan_context = watched
    app.add_api_route("/lag", lag.take)
    bound = bind("127.0.0.1", 0)
    print(url_of(bound), flush=True)
    Server(app, app.state.services.close_streams).run(sockets=[bound])


def probe(url: str) -> None:
    """GET /healthz every few milliseconds until stdin ends; then the seconds of each as JSON."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    connection = HTTPConnection(url.split("/")[2])
    seconds = []
    while not over.is_set():
        begun = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        seconds.append(time.perf_counter() - begun)
        time.sleep(EVERY_S)
    print(json.dumps(seconds))


@contextmanager
def watched_server(model: Path, state: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [sys.executable, __file__, "serve", str(model), str(state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextmanager
def probing(url: str) -> Iterator[list[float]]:
    """Latencies of /healthz meanwhile, in seconds, seen from another process; filled at the end."""
    command = [sys.executable, __file__, "probe", url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds: list[float] = []
    yield seconds
    text, _ = process.communicate()
    seconds += json.loads(text)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    {"serve": lambda: serve(*map(Path, arguments)), "probe": lambda: probe(*arguments)}[what]()
