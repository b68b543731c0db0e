"""Asks for the key before anything else of a request is looked at: headers to pass or 401.

    without a key set      everybody may do everything; only loopback addresses start like that
    key, loopback address  reads are open, whatever changes something needs the key
    key, other address     everything needs the key, the page too

The page's own buttons are asked as well: a page in a browser is no proof of who sits there. On an
address that others can reach, the browser asks for the key once, as the password of any user.
"""

import base64
import binascii
import secrets

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from loadscope.app.problems import Problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BEARER = 'Bearer realm="loadscope"'
BASIC = 'Basic realm="loadscope", charset="UTF-8"'
HOW = "send Authorization: Bearer <key>, or Basic with any user and the key as the password"


class KeyGuard:
    """Lets a request in that shows the key; reads may go without if `guards_reads` is false."""

    def __init__(self, app: ASGIApp, key: SecretStr, *, guards_reads: bool) -> None:
        self.app = app
        self._key = key.get_secret_value().encode()
        self._guards_reads = guards_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (self._guards_reads or scope["method"] not in SAFE_METHODS):
            try:
                self._check(Headers(scope=scope))
            except Problem as problem:
                return await problem.response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        shown = shown_key(headers.get("authorization", ""))
        if shown is not None and secrets.compare_digest(shown, self._key):
            return
        what = "this needs the key" if shown is None else "found another key than the server's"
        # the body is not read: the connection cannot be used again
        answer = {"www-authenticate": _challenge(headers), "connection": "close"}
        raise Problem(401, "unauthorized", f"{what}: {HOW}", answer)


def shown_key(authorization: str) -> bytes | None:
    """The key in an Authorization header, Bearer or Basic; None if there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode() or None
    if scheme.lower() != "basic":
        return None
    try:
        pair = base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return pair.partition(b":")[2] or None


def _challenge(headers: Headers) -> str:
    """What to answer with. A script in a page must not make the browser open its own dialog."""
    is_script = headers.get("sec-fetch-mode", "navigate") != "navigate"
    return BEARER if is_script else f"{BEARER}, {BASIC}"
