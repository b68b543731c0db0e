"""Every request is checked for host, origin, size and type; every answer carries the headers."""

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, SecretStr
from support.asgi import call
from support.buckets import bucket, sha256

from loadscope.app import hosts, problems, security
from loadscope.app.bodies import BUCKET_TYPES, Limits
from loadscope.app.content_digest import parse_content_digest
from loadscope.app.updates.spool import Received, Spool

CAP, RELOAD_CAP, BUCKET_CAP = 1024, 8192, 100_000
JSON = {"content-type": "application/json"}
BYTES = {"content-type": BUCKET_TYPES[0]}
PUT = "/reloads/u-7/buckets/4"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


def small_app(
    spool: Spool | None = None, key: SecretStr | None = None, timeout_s: float = 10.0
) -> FastAPI:
    """Routes of each kind of body, behind everything that stands before routes."""
    app = FastAPI()

    @app.post("/order")
    def order(body: Order | None = None) -> dict[str, str]:
        return {"name": body.name if body else "none"}

    @app.post("/reload")
    @app.post("/reloads/{update}/commit")
    @app.post("/reloads/{update}/rollback")
    def reload(document: dict[str, Any]) -> int:
        return len(document)

    @app.delete("/reloads/{update}")
    def cancel(update: str) -> str:
        return update

    @app.put("/reloads/{update}/buckets/{number}")
    async def put(request: Request, number: int) -> int:
        if spool is None:
            return sum([len(chunk) async for chunk in request.stream()])
        digest = parse_content_digest(request.headers.get("content-digest"))
        return (await spool.receive(number, request.stream(), digest)).nbytes

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("/secret/path/to/model is bad")

    problems.install(app)
    limits = Limits(CAP, RELOAD_CAP, BUCKET_CAP, timeout_s)
    security.install(app, hosts.allowed_hosts("127.0.0.1"), limits, key)
    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(small_app(), base_url="http://127.0.0.1:8787") as client:
        yield client


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8787"])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/broken", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:8787", "127.0.0.1:1", "[::1]:8787"])
def test_loopback_hosts_are_served(client: TestClient, host: str) -> None:
    answer = client.post("/order", json={"name": "a"}, headers={"host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_a_post_from_another_site_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/order", json={"name": "a"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:loadscope:cross-origin"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8787"},
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:8787"},
    ],
)
def test_a_post_from_the_page_or_from_curl_passes(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert client.post("/order", json={"name": "a"}, headers=headers).json() == {"name": "a"}


def test_only_json_bodies_are_read(client: TestClient) -> None:
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    for kind in kinds:
        answer = client.post("/order", content=b'{"name":"a"}', headers={"content-type": kind})
        assert answer.status_code == 415
    assert client.post("/order").json() == {"name": "none"}


def test_a_large_body_is_refused_with_and_without_a_declared_length(client: TestClient) -> None:
    large = b'{"name":"' + b"a" * CAP + b'"}'
    headers = {"content-type": "application/json"}
    assert client.post("/order", content=large, headers=headers).status_code == 413
    chunks = iter([large[:500], large[500:]])
    assert client.post("/order", content=chunks, headers=headers).status_code == 413


def test_a_problem_names_its_kind_twice(client: TestClient) -> None:
    answer = client.post("/order", content=b"a" * (CAP + 1), headers=JSON)
    assert answer.json()["type"] == "urn:loadscope:too-large"
    assert answer.json()["code"] == "too_large"
    assert client.get("/nowhere").json()["code"] == "not_found"


@pytest.mark.parametrize(
    ("path", "cap"),
    [
        ("/reload", RELOAD_CAP),
        ("/reloads/u-7/commit", RELOAD_CAP),
        ("/reloads/u-7/rollback", CAP),
        ("/reloads/u-7/x/commit", CAP),
        ("/order", CAP),
    ],
)
def test_only_what_carries_a_manifest_may_be_large(client: TestClient, path: str, cap: int) -> None:
    whole = b'{"a":"' + b"a" * (cap - 8) + b'"}'
    assert len(whole) == cap
    assert client.post(path, content=whole, headers=JSON).status_code != 413
    assert client.post(path, content=whole + b" ", headers=JSON).status_code == 413
    pieces = iter([whole, b" "])
    assert client.post(path, content=pieces, headers=JSON).status_code == 413


def test_a_delete_takes_no_body(client: TestClient) -> None:
    assert client.delete("/reloads/u-7").json() == "u-7"
    for content in (b"{}", iter([b"{}"])):
        answer = client.request("DELETE", "/reloads/u-7", content=content, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("kind", [*BUCKET_TYPES, "Application/Octet-Stream; charset=x"])
def test_a_bucket_is_bytes(client: TestClient, kind: str) -> None:
    answer = client.put(PUT, content=b"a" * BUCKET_CAP, headers={"content-type": kind})
    assert answer.json() == BUCKET_CAP


@pytest.mark.parametrize("kind", [None, "", "application/json", "multipart/form-data; boundary=x"])
def test_a_bucket_of_another_type_is_refused(client: TestClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.put(PUT, content=b"a", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_format")
    assert BUCKET_TYPES[0] in answer.json()["detail"]


def test_a_large_bucket_is_refused_with_and_without_a_declared_length(client: TestClient) -> None:
    large = b"a" * (BUCKET_CAP + 1)
    for content in (large, iter([large[:500], large[500:]])):
        answer = client.put(PUT, content=content, headers=BYTES)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert f"{BUCKET_CAP:,} bytes" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-length": str(BUCKET_CAP + 1)}, "too_large"),
        ({"content-length": "9" * 5000}, "too_large"),
        ({"content-length": "-1"}, "invalid_request"),
        ({"content-length": "1e3"}, "invalid_request"),
        ({"content-length": "\u00b2"}, "invalid_request"),
        ({"content-type": "application/json"}, "unsupported_format"),
        ({"origin": "http://evil.example"}, "cross_origin"),
        ({"sec-fetch-site": "cross-site"}, "cross_origin"),
    ],
)
def test_headers_of_a_bucket_are_judged_before_its_body(headers: dict[str, str], code: str) -> None:
    answer = call(small_app(), "PUT", PUT, {**BYTES, **headers})
    assert answer.json()["code"] == code
    assert answer.taken == 0
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/order", "/reload"])
def test_a_huge_declared_json_body_is_not_read(path: str) -> None:
    answer = call(small_app(), "POST", path, {**JSON, "content-length": "1000000000000"})
    assert (answer.status, answer.taken) == (413, 0)


@pytest.mark.parametrize("declared", ["0", "3", "5"])
def test_a_body_of_another_length_than_declared_is_refused(declared: str) -> None:
    answer = call(small_app(), "PUT", PUT, {**BYTES, "content-length": declared}, [b"ab", b"cd"])
    assert (answer.status, answer.json()["code"]) == (400, "invalid_request")
    assert f"found 4 bytes; expected {declared}" in answer.json()["detail"]


def test_a_chunked_bucket_passes_chunk_by_chunk() -> None:
    pieces = [b"a" * 1000] * 90
    answer = call(small_app(), "PUT", PUT, BYTES, pieces)
    assert (answer.status, answer.json()) == (200, 90_000)
    assert answer.taken == len(pieces)
    assert "connection" not in answer.headers


def test_an_endless_bucket_is_stopped_at_its_limit() -> None:
    answer = call(small_app(), "PUT", PUT, BYTES, [b"a" * 1000] * 500)
    assert answer.status == 413
    assert answer.taken == BUCKET_CAP // 1000 + 1
    assert answer.headers["connection"] == "close"


def test_an_answer_before_the_end_of_the_body_ends_the_connection() -> None:
    answer = call(small_app(), "PUT", "/reloads/u-7/buckets/none", BYTES, [b"a"] * 3)
    assert (answer.status, answer.taken) == (422, 0)
    assert answer.headers["connection"] == "close"


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path, "u-7")
    yield made
    made.remove()


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_client_that_stops_sending_is_given_up(spool: Spool, method: str) -> None:
    path, headers = (PUT, BYTES) if method == "PUT" else ("/reload", JSON)
    body = bucket(1, 3000)
    digest = {"content-digest": str(sha256(body))}
    app = small_app(spool, timeout_s=0.05)
    answer = call(app, method, path, {**headers, **digest}, [body[:1000]], then="silence")
    assert (answer.status, answer.json()["code"]) == (504, "receive_timeout")
    assert "receive_timeout_s = 0.05" in answer.json()["detail"]
    assert answer.tasks_left == 0
    assert list(spool.folder.iterdir()) == []


def test_a_bucket_that_comes_slowly_but_steadily_is_taken() -> None:
    answer = call(small_app(timeout_s=0.2), "PUT", PUT, BYTES, [b"a"] * 10, pause_s=0.04)
    assert answer.json() == 10


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_client_that_leaves_half_way_leaves_nothing(
    spool: Spool, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, headers = (PUT, BYTES) if method == "PUT" else ("/reload", JSON)
    body = bucket(1, 3000)
    digest = {"content-digest": str(sha256(body))}
    with caplog.at_level(logging.INFO):
        answer = call(small_app(spool), method, path, {**headers, **digest}, [body[:9]], "leaves")
    assert (answer.status, answer.tasks_left) == (None, 0)
    assert list(spool.folder.iterdir()) == []
    assert "the client left half way" in caplog.text
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[tuple[str, int]]:
    """The application behind a real server."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield bound.getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def test_the_refusal_of_a_large_body_reaches_a_client_that_still_sends() -> None:
    key = SecretStr("a-key-of-the-server")
    with listening(small_app(key=key)) as (host, port):
        url = f"http://{host}:{port}{PUT}"
        large = b"a" * 30_000_000
        for shown, status in (({}, 401), ({"authorization": "Bearer a-key-of-the-server"}, 413)):
            answer = httpx.put(url, content=large, headers={**BYTES, **shown})
            assert answer.status_code == status
            chunked = iter([large[:1_000_000]] * 30)
            assert httpx.put(url, content=chunked, headers={**BYTES, **shown}).status_code == status


class Watched(Spool):
    """Tells when a delivery is over, however it ended."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "u-7")
        self.is_over = threading.Event()

    async def receive(self, *arguments: Any) -> Received:
        try:
            return await super().receive(*arguments)
        finally:
            self.is_over.set()


def test_a_connection_that_breaks_leaves_no_file(tmp_path: Path) -> None:
    body, spool = bucket(1, 90_000), Watched(tmp_path)
    head = (
        f"PUT {PUT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
        f"content-length: {len(body)}\r\ncontent-digest: {sha256(body)}\r\n\r\n"
    )
    with listening(small_app(spool)) as address:
        with socket.create_connection(address) as client:
            client.sendall(head.encode() + body[:50_000])
        assert spool.is_over.wait(10)
        assert list(spool.folder.iterdir()) == []
        url = f"http://{address[0]}:{address[1]}{PUT}"
        again = httpx.put(url, content=body, headers={**BYTES, "content-digest": str(sha256(body))})
        assert again.json() == len(body)


def test_an_unknown_field_is_named(client: TestClient) -> None:
    answer = client.post("/order", json={"name": "a", "nmae": "b"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == "nmae"


def test_an_unexpected_error_shows_neither_trace_nor_path(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.json()["request_id"] in caplog.text
    assert "/secret/path" in caplog.text


@pytest.mark.parametrize("path", ["/order", "/broken", "/nowhere"])
def test_every_answer_carries_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


def test_missing_pages_and_wrong_methods_are_problems(client: TestClient) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("DELETE", "/order", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False),
     ("192.168.1.4", False), ("example.org", False), ("::", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert hosts.is_loopback(host) is expected
