"""Requests of the client: tried again where that can do no harm, refusals as exceptions."""

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import httpx

from loadscope.app.client_answers import Event, UpdateRefused

MAX_DELAY_S = 5.0
# a silent stream carries a comment this often
KEEP_ALIVE_S = 15.0
# of the server's errors, those that come again however often one asks
LASTING = frozenset({"insufficient_memory", "load_failed", "finalize_failed", "poisoned"})
# what broke on its way is whole the next time
DAMAGED = frozenset({"checksum_mismatch"})


class Wire:
    """One server. Errors are UpdateRefused, or ConnectionError if no answer comes.

    `retries`: how often a request is sent again that changes nothing when it comes twice;
    `backoff_s` is the first pause, each later one is twice as long, five seconds at most.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout_s: float,
        retries: int,
        backoff_s: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=url, headers=key, timeout=timeout_s, transport=transport)
        self._url, self._timeout_s = url, timeout_s
        self._retries, self._backoff_s = retries, backoff_s

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: str | None) -> Any:
        params = {name: value for name, value in query.items() if value is not None}
        return self.ask("GET", path, params=params)

    def ask(
        self,
        method: str,
        path: str,
        body: Callable[[], Iterable[bytes]] | None = None,
        *,
        is_repeatable: bool = True,
        **request: Any,
    ) -> Any:
        """The JSON of a good answer. `body` gives the content, once for every try."""
        tries = 1 + self._retries if is_repeatable else 1
        for attempt in range(1, tries + 1):
            if body is not None:
                request["content"] = body()
            try:
                answer = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if attempt == tries:
                    raise self._silence(method, path, error, tries) from error
            else:
                if answer.is_success:
                    return answer.json()
                refusal = _refusal(answer)
                if attempt == tries or not _may_pass(refusal, has_body=body is not None):
                    raise refusal
            self.pause(attempt)
        raise AssertionError("the last try returns or raises")

    def pause(self, attempt: int) -> None:
        """Back off; a little by chance, for whoever lost the same server at the same time."""
        delay_s = min(MAX_DELAY_S, self._backoff_s * 2 ** (attempt - 1))
        time.sleep(delay_s * random.uniform(0.75, 1.25))

    def _silence(
        self, method: str, path: str, error: httpx.TransportError, tries: int
    ) -> ConnectionError:
        told = str(error) or type(error).__name__
        often = "once" if tries == 1 else f"{tries} times"
        return ConnectionError(
            f"{self._url}: no answer to {method} {path}, tried {often}: {told}; "
            "is the server running, and is this its address?"
        )

    def events(self, path: str, after: int | None, until: float | None) -> Iterator[Event]:
        """Events after a number, in order, to the end of the update, over broken connections.

        TimeoutError once the monotonic clock has passed `until`, at the next event or comment.
        """
        failures, is_over = 0, False
        while True:
            cause = "the stream ended early"
            try:
                for event in self._stream(path, after, until):
                    after, failures, is_over = event.id, 0, event.kind == "done"
                    yield event
            except httpx.TransportError as error:
                cause = str(error) or type(error).__name__
                _check(until)
            else:
                if is_over or self._is_ended(path):
                    return
            failures += 1
            if failures > self._retries:
                raise ConnectionError(f"{self._url}: {path} broke off: {cause}")
            self.pause(failures)

    def _is_ended(self, path: str) -> bool:
        """A stream may end without `done`: the log of an old update is cut, a server stops."""
        return self.get(path.removesuffix("/events")).get("ended_t") is not None

    def _stream(self, path: str, after: int | None, until: float | None) -> Iterator[Event]:
        headers = {} if after is None else {"last-event-id": str(after)}
        silence_s = max(self._timeout_s, 2 * KEEP_ALIVE_S)
        if until is not None:
            silence_s = min(silence_s, max(0.01, until - time.monotonic()))
        timeout = httpx.Timeout(self._timeout_s, read=silence_s)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise _refusal(answer)
            lines: list[str] = []
            for line in _lines(answer.iter_bytes()):
                _check(until)
                if line:
                    lines.append(line)
                elif lines:
                    yield from _events(lines)
                    lines.clear()


def _check(until: float | None) -> None:
    if until is not None and time.monotonic() >= until:
        raise TimeoutError


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # not str.splitlines: JSON may hold other characters that it takes for ends of lines
    waiting = b""
    for chunk in chunks:
        *whole, waiting = (waiting + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()


def _events(lines: Iterable[str]) -> Iterator[Event]:
    """The event of one frame; a comment, sent to keep the connection alive, has none."""
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        values[name] = value.removeprefix(" ")
    if "data" in values and "id" in values:
        yield Event(int(values["id"]), values.get("event", ""), json.loads(values["data"]))


def _refusal(answer: httpx.Response) -> UpdateRefused:
    """Of a problem document, or of whatever a proxy in between has answered."""
    told: Mapping[str, Any] | None = None
    if answer.headers.get("content-type", "").startswith("application/"):
        told = _object(answer.content)
    if told is None or "code" not in told:
        told = {"code": f"http_{answer.status_code}", "message": answer.reason_phrase}
    return UpdateRefused(told, answer.status_code)


def _object(text: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _may_pass(refusal: UpdateRefused, *, has_body: bool) -> bool:
    """Whether the same request may be taken the next time."""
    if has_body and refusal.code in DAMAGED:
        return True
    return (refusal.status or 0) >= 500 and refusal.code not in LASTING
