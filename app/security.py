"""What every request passes before it reaches a route: host, origin, key, size, type.

    TrustedHost -> SecurityHeaders -> ErrorGuard -> OriginGuard -> KeyGuard -> BodyGuard -> routes

All are plain ASGI: a wrapper that copies the response body would break the event stream. Headers
are judged before a byte of the body is taken; what is refused then ends the connection.
"""

import logging
import secrets
from collections.abc import Sequence

from fastapi import FastAPI
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadscope.app.auth import SAFE_METHODS, KeyGuard
from loadscope.app.bodies import CLOSE, BodyGuard, Limits
from loadscope.app.problems import Problem, problem_response

log = logging.getLogger("loadscope.http")

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
        except ClientDisconnect:
            log.info("%s %s: the client left half way", scope["method"], scope["path"])
        except Exception:
            request_id = secrets.token_hex(8)
            log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if not started:
                detail = f"unexpected error; the server's log has it under {request_id}"
                answer = problem_response(500, "internal-error", detail, request_id=request_id)
                await answer(scope, receive, send)


class OriginGuard:
    """Lets a changing request in only from the same site, or from outside a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            try:
                _check_origin(Headers(scope=scope))
            except Problem as problem:
                return await problem.response()(scope, receive, send)
        await self.app(scope, receive, send)


def _check_origin(headers: Headers) -> None:
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Problem(403, "cross-origin", "requests from other sites are refused", CLOSE)
        return
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Problem(403, "cross-origin", "the Origin header names another site", CLOSE)


def install(
    app: FastAPI,
    hosts: Sequence[str],
    limits: Limits,
    key: SecretStr | None = None,
    *,
    guards_reads: bool = False,
) -> None:
    """Wrap the application; what is added last is outermost. Without a `key` none is asked for."""
    app.add_middleware(BodyGuard, limits=limits)
    if key is not None:
        app.add_middleware(KeyGuard, key=key, guards_reads=guards_reads)
    app.add_middleware(OriginGuard)
    app.add_middleware(ErrorGuard)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
