"""Transports between a client and a server on which things go wrong, as scripted."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import httpx

Answers = Callable[[httpx.Request], httpx.Response]


class Scripted(httpx.BaseTransport):
    """Answers every request with the next of the answers; an exception among them is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = deque(answers)
        self.seen: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.seen.append(request)
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Flaky(httpx.BaseTransport):
    """Passes requests on; each fault happens once, to a request whose method and path have it."""

    def __init__(
        self, inner: httpx.BaseTransport, faults: Iterable[tuple[str, "Fault"]] = ()
    ) -> None:
        self._inner = inner
        self._faults = list(faults)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for at, (part, fault) in enumerate(self._faults):
            if part in f"{request.method} {request.url.path}":
                del self._faults[at]
                return fault(self._inner, request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


Fault = Callable[[httpx.BaseTransport, httpx.Request], httpx.Response]


def unreachable(inner: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def answer_lost(inner: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    """The server has done it, the client does not hear of it."""
    inner.handle_request(request).read()
    raise httpx.ReadError("connection reset")


def damaged(inner: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    """The last byte of the body arrives as another one."""
    body = bytearray(request.read())
    body[-1] ^= 1
    stream = httpx.ByteStream(bytes(body))
    broken = httpx.Request(request.method, request.url, headers=request.headers, stream=stream)
    return inner.handle_request(broken)


def broken_stream(inner: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    """The connection is lost in the middle of the second frame."""
    answer = inner.handle_request(request)
    return httpx.Response(answer.status_code, headers=answer.headers, stream=_Broken(answer))


class _Broken(httpx.SyncByteStream):
    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        text = b""
        for chunk in self._answer.iter_raw():
            text += chunk
            first, _, rest = text.partition(b"\n\n")
            if len(rest) > 5:
                self._answer.close()
                yield first + b"\n\n" + rest[:5]
                raise httpx.ReadError("connection reset")
