"""Who sends a request, as the audit names it."""

from fastapi import Request

from loadscope.app.auth import shown_key
from loadscope.app.updates.audit import Who, key_mark


def who_of(request: Request) -> Who:
    """Address, User-Agent, and the mark of the key that was shown, if one was."""
    address = None if request.client is None else request.client.host
    key = shown_key(request.headers.get("authorization", ""))
    mark = None if key is None else key_mark(key.decode("utf-8", "replace"))
    return Who(address, request.headers.get("user-agent"), mark)
