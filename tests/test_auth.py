"""Who needs the key, how it may be shown, and how it is set."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr
from support.asgi import call
from support.serving import serving
from typer.testing import CliRunner

from loadscope.app import auth, hosts, problems, security
from loadscope.app.bodies import Limits
from loadscope.app.cli import app as command_line
from loadscope.app.options import parse_size
from loadscope.app.settings import Settings, make_settings

KEY = "correct-horse-battery"
BYTES = {"content-type": "application/octet-stream"}


def guarded_app(key: str | None = KEY, *, guards_reads: bool = False) -> FastAPI:
    app = FastAPI()

    @app.get("/page")
    def page() -> str:
        return "page"

    @app.post("/pause")
    @app.delete("/reloads/{update}")
    @app.put("/reloads/{update}/buckets/{number}")
    def change() -> str:
        return "changed"

    problems.install(app)
    secret = None if key is None else SecretStr(key)
    names = hosts.allowed_hosts("127.0.0.1")
    security.install(app, names, Limits(1024), secret, guards_reads=guards_reads)
    return app


def basic(password: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def client_of(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8787")


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_of(guarded_app()) as client:
        yield client


CHANGES = [("POST", "/pause"), ("DELETE", "/reloads/u-7"), ("PUT", "/reloads/u-7/buckets/0")]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    "shown", [f"Bearer {KEY}", f"bearer  {KEY}", basic(KEY), basic(KEY, ""), basic(KEY, "a b")]
)
def test_a_change_is_made_with_the_key(
    client: TestClient, method: str, path: str, shown: str
) -> None:
    answer = client.request(method, path, headers={**BYTES, "authorization": shown})
    assert answer.json() == "changed"


@pytest.mark.parametrize(("method", "path"), [*CHANGES, ("PATCH", "/page"), ("POST", "/nowhere")])
@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Token {KEY}",
        KEY,
        basic(KEY + "x"),
        basic(""),
        "Basic " + base64.b64encode(KEY.encode()).decode(),
        "Basic " + base64.b64encode(f"{KEY}:".encode()).decode(),
        "Basic ====",
        f"Basic {KEY}",
        "Bearer \xff\xfe",
    ],
)
def test_a_change_without_the_key_is_refused(
    client: TestClient, method: str, path: str, shown: str | None
) -> None:
    headers = {} if shown is None else {"authorization": shown.encode("latin-1")}
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthorized"
    assert "Bearer <key>" in answer.json()["detail"]
    assert answer.headers["www-authenticate"].startswith('Bearer realm="loadscope"')
    assert KEY not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_key_with_a_colon_may_be_a_password() -> None:
    client = client_of(guarded_app("a:b:cdefgh"))
    assert client.post("/pause", headers={"authorization": basic("a:b:cdefgh")}).status_code == 200


def test_without_a_key_nobody_is_asked() -> None:
    assert client_of(guarded_app(None)).post("/pause").json() == "changed"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reads_are_open_on_loopback(client: TestClient, method: str) -> None:
    assert client.request(method, "/page").status_code in (200, 405)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reads_need_the_key_where_others_reach_the_address(method: str) -> None:
    client = client_of(guarded_app(guards_reads=True))
    assert client.request(method, "/page").status_code == 401
    shown = {"authorization": f"Bearer {KEY}"}
    assert client.request(method, "/page", headers=shown).status_code in (200, 405)


def test_the_key_is_asked_for_before_the_body_is_read() -> None:
    app = guarded_app()
    for path, method in (("/reloads/u-7/buckets/0", "PUT"), ("/pause", "POST")):
        answer = call(app, method, path, BYTES, [b"a" * 1000] * 9)
        assert (answer.status, answer.taken) == (401, 0)
        assert answer.headers["connection"] == "close"


def test_a_whole_server_enforces_its_key(tmp_path: Path) -> None:
    with serving(tmp_path, roots=(tmp_path,), api_key=SecretStr(KEY)) as server:
        assert server.client.get("/healthz").status_code == 200
        assert server.client.post("/pause").status_code == 401
        shown = {"authorization": f"Bearer {KEY}"}
        assert server.client.post("/pause", headers=shown).json()["code"] == "nothing_runs"
    public = {"host": "0.0.0.0", "api_key": SecretStr(KEY)}
    with serving(tmp_path, roots=(tmp_path,), **public) as server:
        assert server.client.get("/healthz").status_code == 401


def test_another_site_is_refused_before_the_key_is_asked_for(client: TestClient) -> None:
    answer = client.post("/pause", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    shown = {"sec-fetch-site": "cross-site", "authorization": basic(KEY)}
    assert client.post("/pause", headers=shown).status_code == 403


@pytest.mark.parametrize("path", ["/pause", "/resume", "/reload"])
def test_the_pages_own_buttons_are_asked_without_a_dialog_of_the_browser(
    client: TestClient, path: str
) -> None:
    sent = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    answer = client.post(path, headers=sent)
    assert answer.status_code == 401
    assert "Basic" not in answer.headers["www-authenticate"]


def test_a_browser_that_opens_the_page_is_asked_for_a_password() -> None:
    client = client_of(guarded_app(guards_reads=True))
    for sent in ({"sec-fetch-mode": "navigate", "sec-fetch-site": "none"}, {}):
        assert (
            'Basic realm="loadscope"'
            in client.get("/page", headers=sent).headers["www-authenticate"]
        )


def test_the_comparison_takes_the_same_time_for_every_key(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return True

    monkeypatch.setattr(auth.secrets, "compare_digest", compare)
    assert client.post("/pause", headers={"authorization": "Bearer x"}).json() == "changed"
    assert compared == [(b"x", KEY.encode())]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "node-7.example"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ValueError, match="--api-key-file FILE or LOADSCOPE_API_KEY.*--insecure"):
        make_settings(host=host)
    assert make_settings(host=host, insecure=True).api_key is None
    made = make_settings(host=host, api_key=SecretStr(KEY))
    assert made.needs_key_to_read
    assert not make_settings(api_key=SecretStr(KEY)).needs_key_to_read


def test_the_environment_sets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADSCOPE_API_KEY", KEY)
    made = make_settings()
    assert made.api_key is not None
    assert made.api_key.get_secret_value() == KEY
    assert KEY not in repr(made)
    assert KEY not in made.model_dump_json()


@pytest.mark.parametrize("key", ["", "short", "two words", "l\u00e4nge-8-und-mehr", "a" * 1025])
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=f"^api_key: found a key of {len(key)} char") as refused:
        make_settings(api_key=SecretStr(key))
    assert not key or key not in str(refused.value)


def test_no_two_servers_share_their_buckets(tmp_path: Path) -> None:
    def root(state: str, **given: Any) -> Path:
        return Settings(state_dir=tmp_path / state, **given).spool_root

    assert root("a") == tmp_path / "a" / "spool"
    shared = tmp_path / "shm"
    assert root("a", spool_dir=shared).parent == shared
    assert root("a", spool_dir=shared) == root("a", spool_dir=shared)
    assert root("a", spool_dir=shared) != root("b", spool_dir=shared)


def test_limits_are_those_of_the_settings() -> None:
    made = Settings(
        max_body_bytes=2000, max_reload_body_bytes=3000, max_bucket_bytes=4000, receive_timeout_s=5
    )
    assert Limits.of(made) == Limits(2000, 3000, 4000, 5.0)
    assert Limits.of(Settings()) == Limits(64 * 2**10, 16 * 2**20, 4 * 2**30, 300.0)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1073741824", 2**30),
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("8Gi", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1.5kB", 1500),
        ("2T", 2 * 10**12),
        ("0.5KiB", 512),
    ],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "8 gigs", "GiB", "1,5GB", "1e9", "0.1", "\u0661"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8GiB"):
        parse_size(text)


def serve(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(command_line, ["serve", "--root", str(folder), *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--api-key-file", "{folder}/none"), "none: No such file"),
        (("--api-key-file", "{folder}"), "Is a directory"),
        (("--api-key-file", "{folder}/empty"), "found a key of 0 characters"),
        (("--api-key-file", "{folder}/binary"), "expected one line of text"),
        (("--api-key-file", "{folder}/lines"), "found a key of 19 characters"),
        (("--api-key", KEY), "No such option"),
        (("--spool-dir", "{folder}/none"), "--spool-dir"),
        (("--spool-dir", "{folder}/empty"), "no such folder"),
        (("--memory-budget", "much"), "--memory-budget: found 'much'"),
        (("--host", "0.0.0.0"), "--api-key-file"),
    ],
)
def test_wrong_usage_says_what(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff" * 9)
    (tmp_path / "lines").write_text("one-line\nanother-le")
    done = serve(tmp_path, *(text.format(folder=tmp_path) for text in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_what_was_given_arrives_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadscope.app import serve_command

    seen: list[Settings] = []

    def run(settings: Settings, checkpoint: object) -> None:
        seen.append(settings)
        raise typer.Exit(0)

    monkeypatch.setattr(serve_command, "run_server", run)
    monkeypatch.setenv("LOADSCOPE_API_KEY", "the-key-of-the-environment")
    (tmp_path / "key").write_text(KEY + "\n")
    given = ("--api-key-file", str(tmp_path / "key"), "--spool-dir", str(tmp_path))
    done = serve(tmp_path, *given, "--memory-budget", "2GiB", "--host", "0.0.0.0")
    assert done.exit_code == 0, done.output
    (settings,) = seen
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == KEY
    assert (settings.spool_dir, settings.memory_budget_bytes) == (tmp_path, 2 * 2**30)
