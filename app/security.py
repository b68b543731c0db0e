"""What every request passes before it reaches a route: host, origin, size, type.

    TrustedHost -> SecurityHeaders -> ErrorGuard -> PostGuard -> routes

All are plain ASGI: a wrapper that copies the response body would break the event stream.
"""

import logging
import secrets
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadscope.app.problems import Problem, problem_response

log = logging.getLogger("loadscope.http")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds the security headers to every response, the event stream included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class ErrorGuard:
    """Turns an unexpected exception into a 500 problem with an id; the log has the trace."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:
            request_id = secrets.token_hex(8)
            log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if not started:
                detail = f"unexpected error; the server's log has it under {request_id}"
                answer = problem_response(500, "internal-error", detail, request_id=request_id)
                await answer(scope, receive, send)


def _check_origin(headers: Headers) -> None:
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Problem(403, "cross-origin", "requests from other sites are refused")
        return
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Problem(403, "cross-origin", "the Origin header names another site")


def _check_type(headers: Headers, body: bytes) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise Problem(415, "not-json", "send the body with content-type: application/json")


class PostGuard:
    """Lets a changing request in only from the same site, with a small JSON body."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            _check_origin(headers)
            body = await self._read(receive)
            _check_type(headers, body)
        except Problem as problem:
            return await problem.response()(scope, receive, send)
        await self.app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.max_body_bytes:
                limit = f"the body is larger than {self.max_body_bytes} bytes"
                raise Problem(413, "body-too-large", limit, {"connection": "close"})
        return body


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def install(app: FastAPI, hosts: Sequence[str], max_body_bytes: int) -> None:
    """Wrap the application; what is added last is outermost."""
    app.add_middleware(PostGuard, max_body_bytes=max_body_bytes)
    app.add_middleware(ErrorGuard)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
