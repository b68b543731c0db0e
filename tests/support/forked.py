"""Servers in forked children: torch and the application are imported, so they start at once."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loadscope.app.main import create_app
from loadscope.app.server import Server, bind
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import open_checkpoint

START_S = 30.0
Prepare = Callable[[], None]


class Forked:
    """A server in a child: its address, and its end."""

    def __init__(self, child: int, url: str) -> None:
        self.child, self.url = child, url
        self.client = httpx.Client(base_url=url, timeout=30.0)
        self.is_dead = False

    def wait_ready(self) -> None:
        """Until its first weights stand."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        raise AssertionError("the server has not become ready")

    def kill(self) -> None:
        if not self.is_dead:
            os.kill(self.child, signal.SIGKILL)
            self.reap()

    def reap(self) -> None:
        """Wait until the child is gone, whoever killed it."""
        if not self.is_dead:
            os.waitpid(self.child, 0)
            self.is_dead = True


@contextmanager
def forked(
    state_dir: Path, model: Path, prepare: Prepare | None = None, **settings: Any
) -> Iterator[Forked]:
    """Serving a model; `prepare` is called in the child before it starts. Killed at the end."""
    bound = bind("127.0.0.1", 0)
    child = os.fork()
    if child == 0:
        try:
            _serve(bound, state_dir, model, prepare, settings)
        finally:
            os._exit(1)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    bound.close()
    server = Forked(child, url)
    try:
        yield server
    finally:
        server.kill()
        server.client.close()


def _serve(
    bound: socket.socket,
    state_dir: Path,
    model: Path,
    prepare: Prepare | None,
    settings: dict[str, Any],
) -> None:
    if prepare is not None:
        prepare()
    chosen = Settings(model=model, state_dir=state_dir, **settings)
    app = create_app(chosen, open_checkpoint(model))
    Server(app, app.state.services.close_streams).run(sockets=[bound])
