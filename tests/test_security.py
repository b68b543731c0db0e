"""Every request is checked for host, origin, size and type; every answer carries the headers."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict

from loadscope.app import hosts, problems, security

CAP = 1024


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


def small_app() -> FastAPI:
    app = FastAPI()

    @app.post("/order")
    def order(body: Order | None = None) -> dict[str, str]:
        return {"name": body.name if body else "none"}

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("/secret/path/to/model is bad")

    problems.install(app)
    security.install(app, hosts.allowed_hosts("127.0.0.1"), CAP)
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
