"""One request to an application without a server between: what it takes of a body, and when."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    """`taken`: how many chunks of the body were asked for. `status` is None without an answer."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    taken: int = 0
    tasks_left: int = 0

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Mapping[str, str],
    chunks: Sequence[bytes] = (),
    then: Literal["end", "silence", "leaves"] = "end",
    pause_s: float = 0.0,
) -> Answer:
    """Send the chunks; after them the body ends, or nothing comes, or the client leaves."""
    return asyncio.run(_call(app, method, path, headers, chunks, then, pause_s))


async def _call(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Mapping[str, str],
    chunks: Sequence[bytes],
    then: str,
    pause_s: float,
) -> Answer:
    answer, left = Answer(), list(chunks)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        if left:
            answer.taken += 1
            more = len(left) > 1 or then != "end"
            return {"type": "http.request", "body": left.pop(0), "more_body": more}
        if then == "silence":
            await asyncio.Event().wait()
        if then == "leaves" or answer.taken:
            return {"type": "http.disconnect"}
        answer.taken += 1
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.body += message["body"]

    given = {"host": "127.0.0.1", **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8787),
    }
    before = asyncio.all_tasks()
    await app(scope, receive, send)
    answer.tasks_left = len(asyncio.all_tasks() - before)
    return answer
