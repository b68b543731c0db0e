"""A server that listens on a free port, in a thread of this process: its parameters can be seen."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadscope.app.main import create_app
from loadscope.app.server import Server, bind, url_of
from loadscope.app.services import Services
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.parameters import ParameterStore

PATIENCE_S = 20.0


class Listening(NamedTuple):
    """Its address, and what a test needs to know of what is behind it."""

    url: str
    services: Services

    @property
    def live(self) -> ParameterStore:
        """The parameters of the target's first rank."""
        return self.services.jobs.stores["target"][0]


@contextmanager
def listening(state_dir: Path, model: Path, **settings: Any) -> Iterator[Listening]:
    """With the model loaded as u-1; shut down like a real server."""
    roots = settings.pop("roots", (model,))
    chosen = Settings(model=model, roots=roots, state_dir=state_dir, **settings)
    app = create_app(chosen, open_checkpoint(model))
    services = app.state.services
    bound = bind("127.0.0.1", 0)
    server = Server(app, services.close_streams)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        url = url_of(bound)
        yield Listening(url, services)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        bound.close()
