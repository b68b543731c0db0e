"""Bodies of requests: JSON is taken whole, a bucket chunk by chunk, neither beyond its limit."""

import asyncio
import re
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadscope.app.auth import SAFE_METHODS
from loadscope.app.problems import Problem
from loadscope.app.settings import Settings

# a request for an update may bring a manifest of 92,000 checksums
LARGE_JSON = re.compile(r"/reload|/reloads/[^/]+/commit")
BUCKET = re.compile(r"/reloads/[^/]+/buckets/[^/]+")
BUCKET_TYPES = (
    "application/octet-stream",
    "application/x-safetensors",
    "application/vnd.safetensors",
)
CLOSE = {"connection": "close"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of bodies by kind.

    `receive_timeout_s`: how long a JSON body may take, and a bucket may stand still.
    """

    body_bytes: int
    reload_body_bytes: int = 16 * 2**20
    bucket_bytes: int = 4 * 2**30
    receive_timeout_s: float = 300.0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_body_bytes,
            settings.max_reload_body_bytes,
            settings.max_bucket_bytes,
            settings.receive_timeout_s,
        )


class BodyGuard:
    """Takes JSON bodies whole, buckets chunk by chunk, and neither beyond its limit."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            if scope["method"] == "PUT" and BUCKET.fullmatch(scope["path"]):
                body = _StreamedBody(headers, self.limits, receive)
                return await self.app(scope, body.receive, body.closing(send))
            whole = await self._read_json(scope, headers, receive)
        except Problem as problem:
            return await problem.response()(scope, receive, send)
        await self.app(scope, _replay(whole, receive), send)

    async def _read_json(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        is_large = scope["method"] == "POST" and LARGE_JSON.fullmatch(scope["path"])
        limit = self.limits.reload_body_bytes if is_large else self.limits.body_bytes
        declared = _declared_bytes(headers, limit)
        _check_json(scope["method"], headers, has_body=bool(declared))
        timeout_s = self.limits.receive_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                body = await _read(receive, limit)
        except TimeoutError:
            raise _too_slow("the body did not come whole within", timeout_s) from None
        _check_json(scope["method"], headers, has_body=bool(body))
        return body


class _StreamedBody:
    """The body of one bucket on its way to the route: counted and timed, never kept."""

    def __init__(self, headers: Headers, limits: Limits, receive: Receive) -> None:
        self._limit, self._timeout_s = limits.bucket_bytes, limits.receive_timeout_s
        self._declared = _declared_bytes(headers, self._limit)
        kind = _media_type(headers)
        if kind not in BUCKET_TYPES:
            detail = f"found content-type {kind[:100] or 'none'}; expected {BUCKET_TYPES[0]}"
            raise Problem(415, "unsupported-format", detail, CLOSE)
        self._receive = receive
        self._nbytes = 0
        self._is_over = False

    async def receive(self) -> Message:
        if self._is_over:
            return await self._receive()
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow("no byte of the body came for", self._timeout_s) from None
        self._nbytes += len(message.get("body", b""))
        if self._nbytes > self._limit:
            raise _too_large(self._limit)
        if not message.get("more_body", False):
            self._is_over = message["type"] == "http.request"
            self._check_whole()
        return message

    def _check_whole(self) -> None:
        if self._is_over and self._declared not in (None, self._nbytes):
            detail = (
                f"found {self._nbytes:,} bytes; expected {self._declared:,}, the content-length"
            )
            raise Problem(400, "invalid-request", detail, CLOSE)

    def closing(self, send: Send) -> Send:
        """An answer before the end of the body also ends the connection: the rest is not wanted."""

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and not self._is_over:
                MutableHeaders(scope=message).update(CLOSE)
            await send(message)

        return send_and_close


async def _read(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    nbytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        nbytes += len(chunks[-1])
        if nbytes > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _declared_bytes(headers: Headers, limit: int) -> int | None:
    """Content-Length, if there is one; Problem if it is no number, or beyond the limit."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        detail = f"found content-length {text[:40]!r}; expected a number of bytes"
        raise Problem(400, "invalid-request", detail, CLOSE)
    # compared by length first: a number of a thousand digits is not worth reading
    if len(text.lstrip("0")) > len(str(limit)) or int(text) > limit:
        raise _too_large(limit)
    return int(text)


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_json(method: str, headers: Headers, *, has_body: bool) -> None:
    if has_body and method == "DELETE":
        raise Problem(400, "invalid-request", "DELETE takes no body", CLOSE)
    if has_body and _media_type(headers) != "application/json":
        detail = "send the body with content-type: application/json"
        raise Problem(415, "not-json", detail, CLOSE)


def _too_large(limit: int) -> Problem:
    return Problem(413, "too-large", f"the body is larger than {limit:,} bytes", CLOSE)


def _too_slow(what: str, timeout_s: float) -> Problem:
    detail = f"{what} receive_timeout_s = {timeout_s:g} s; send it again"
    return Problem(504, "receive-timeout", detail, CLOSE)
