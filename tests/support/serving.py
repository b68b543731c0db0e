"""A server's application in this process, with a small checkpoint, driven by a test client."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from loadscope.app.main import create_app
from loadscope.app.services import Services
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import open_checkpoint

BASE_URL = "http://127.0.0.1:8787"
PATIENCE_S = 20.0


class Serving:
    """The client, and what a test needs to know of the process behind it."""

    def __init__(self, client: TestClient, services: Services) -> None:
        self.client, self.services = client, services

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert isinstance(document, dict)
        return document

    def items(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """All items of a collection, page by page."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = self.get(path, **query, **({"cursor": cursor} if cursor else {}))
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                assert len(found) == page["total"]
                return found

    def reload(self, path: str | Path) -> Any:
        return self.client.post("/reload", json={"source": {"type": "disk", "path": str(path)}})

    def wait(self) -> dict[str, Any]:
        """The newest load, once it and its update have ended."""
        load = self.wait_for(lambda row: row["finished_t"] is not None)
        assert self.services.jobs.wait_for(load["update"], PATIENCE_S)
        return load

    def wait_for(self, is_so: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            rows = self.get("/loads", limit=1)["items"]
            if rows and is_so(rows[0]):
                return self.get(f"/loads/{rows[0]['id']}")
            time.sleep(0.01)
        raise AssertionError(f"still waiting; newest load: {rows}")


@contextmanager
def serving(state_dir: Path, model: Path | None = None, **settings: Any) -> Iterator[Serving]:
    """Started and shut down like a real server; the model's load begins at once."""
    roots = settings.pop("roots", (model,) if model is not None else ())
    chosen = Settings(model=model, roots=roots, state_dir=state_dir, **settings)
    app = create_app(chosen, open_checkpoint(model) if model is not None else None)
    with TestClient(app, base_url=BASE_URL) as client:
        yield Serving(client, app.state.services)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
