"""A trainer's side of an upload, request by request, over a test client."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safetensors.torch import save
from torch import Tensor

from support.serving import Serving

PATIENCE_S = 60.0


def body_of(weights: Mapping[str, Tensor], names: Iterable[str]) -> bytes:
    """One bucket: a safetensors file in memory."""
    return save({name: weights[name].contiguous() for name in names})


def digest_of(body: bytes) -> str:
    """The Content-Digest header of a body."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


class Pusher:
    """One upload; requests are made as they are asked for, answers come back unjudged."""

    def __init__(self, server: Serving, **fields: Any) -> None:
        self.server = server
        self.opened = server.client.post("/reload", json={"source": {"type": "upload"}, **fields})
        self.id = self.opened.json().get("id")

    def put(self, number: int, body: bytes, **headers: str) -> Any:
        told = {
            "content-type": "application/octet-stream",
            "content-digest": digest_of(body),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        path = f"/reloads/{self.id}/buckets/{number}"
        return self.server.client.put(path, content=body, headers=told)

    def send(self, weights: Mapping[str, Tensor], buckets: Sequence[Sequence[str]]) -> None:
        """All of the buckets, each of which must be taken."""
        for number, names in enumerate(buckets):
            answer = self.put(number, body_of(weights, names))
            assert answer.status_code == 200, answer.text

    def commit(self, **fields: Any) -> Any:
        path = f"/reloads/{self.id}/commit"
        return self.server.client.post(path, json={"wait_s": PATIENCE_S, **fields})

    def record(self) -> dict[str, Any]:
        return self.server.get(f"/reloads/{self.id}")

    def cancel(self) -> Any:
        return self.server.client.delete(f"/reloads/{self.id}")
