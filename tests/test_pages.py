"""Pages: they render from any snapshot, keep the content policy, and never trust a name."""

import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from jinja2 import meta

from loadscope.app import pages, static
from loadscope.app.pages import page_router
from loadscope.app.panels import PANELS, format, views
from loadscope.app.panels.snapshot import IDLE, blank
from loadscope.app.roles import Role

HOSTILE = "<img src=x onerror=alert(1)>"
STATIC = Path(static.__file__).parent
SCRIPTS = sorted(STATIC.glob("*.js"))
PAGES = ("/ui/", "/ui/mapping", "/ui/loads", "/ui/loads/3", "/ui/updates")
TIMING = {"count": 9, "bytes": 9000, "seconds": 0.5, "p50_s": 0.05, "p90_s": 0.06, "p99_s": 0.06}


def snapshot(**changes: Any) -> dict[str, Any]:
    """A load at half way in which every panel has something to show."""
    state: dict[str, Any] = {
        **IDLE,
        "load": 3,
        "status": "loading",
        "model": "deepseek_v3",
        "source": "DeepSeek-V3",
        "layout": {"tp_size": 8, "ep_size": 8, "pp_size": 1, "ranks": 8},
        "elapsed_s": 12.0,
        "bytes_done": 500,
        "bytes_total": 1000,
        "rate_bps": 26.9e9,
        "eta_s": 12.5,
        "parameters_full": 145,
        "parameters_total": 291,
        "elements_written": 145_000,
        "elements_total": 291_000,
        "pairs_closed": 60,
        "pairs_total": 122,
        "pairs_held": [{"param": HOSTILE, "have": HOSTILE, "waits_for": ["b", "c"], "rank": 0}],
        "skips": {
            "rotary": {"count": 61, "bytes": 9, "expected": True},
            HOSTILE: {"count": 1, "bytes": 9, "expected": False},
        },
        "skipped": 62,
        "skips_unexpected": 1,
        "sentence": "145 of 291 parameters fully written",
        "kernels": {"split_kv_b": {**TIMING, "max_s": 0.07}, "read": {**TIMING, "max_s": 0.07}},
        "ranks": [
            {"rank": 0, "status": "loading", "bytes_done": 5, "bytes_total": 9, "seconds": 1.5}
        ],
        **changes,
    }
    grid = {
        "rows": ["top", "0"],
        "columns": ["norm", HOSTILE],
        "cells": [
            {"row": 0, "column": 0, "total": 8, "written": 8, "parameters": 1, "unexpected": 0},
            {"row": 1, "column": 1, "total": 8, "written": 7, "parameters": 2, "unexpected": 1},
        ],
    }
    return {"v": 12, "load": 3, "role": "target", "state": state, "grid": grid, "throughput": []}


FAILED = snapshot(
    status="failed",
    failure={
        "message": f"{HOSTILE} is cut short",
        "tensor": HOSTILE,
        "file": "model-1.safetensors",
        "rule": None,
        "param": "norm.weight",
        "fix": "Copy the file again.",
    },
    store={"state": "poisoned", "epoch": 5},
)
BOTH = {
    **snapshot(role="target"),
    "also": [
        {**snapshot(role="draft", status="waiting", bytes_done=0), "load": 4, "role": "draft"}
    ],
    "together": {**snapshot()["state"], "bytes_total": 2000, "sentence": "both"},
}
SNAPSHOTS = {
    "before the first load": {
        "v": 0,
        "load": None,
        "role": None,
        "state": {"load": None, "status": "idle"},
        "grid": None,
        "throughput": [],
    },
    "blank": blank(3),
    "loading": snapshot(),
    "paused": snapshot(paused=True, status="paused"),
    "finished": snapshot(status="finished", verdict="fail", finished_t=9.0, mean_bps=5.0),
    "failed": FAILED,
    "two roles": BOTH,
}


def client(live: dict[str, Any]) -> TestClient:
    app = FastAPI()
    app.include_router(page_router(lambda: live))
    return TestClient(app)


def page(path: str, live: dict[str, Any]) -> str:
    answer = client(live).get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("live", SNAPSHOTS.values(), ids=SNAPSHOTS)
@pytest.mark.parametrize("path", PAGES)
def test_pages_keep_the_content_policy(path: str, live: dict[str, Any]) -> None:
    for tag, attributes in Elements(page(path, live)).found:
        assert tag not in ("style", "iframe", "object", "base")
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or attributes.get("src", "") != ""
        for address in (attributes.get("src"), attributes.get("href"), attributes.get("action")):
            assert address is None or address == "" or address[0] in "/#", address


@pytest.mark.parametrize("live", [snapshot(), FAILED], ids=["loading", "failed"])
def test_a_hostile_name_stays_text(live: dict[str, Any]) -> None:
    text = page("/ui/", live)
    assert HOSTILE not in text
    assert "&lt;img src=x" in text
    assert not [tag for tag, _attributes in Elements(text).found if tag == "img"]


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_template_sees_its_own_view_only(name: str) -> None:
    env = pages.environment()
    source = (pages.TEMPLATES / "panels" / f"{name}.html").read_text()
    # every panel may be told which load the page is about; ranks repeat the verdict's layout
    allowed = {name, "load", "pinned"} | ({"verdict"} if name == "ranks" else set())
    assert meta.find_undeclared_variables(env.parse(source)) <= allowed


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_view_is_a_value(name: str) -> None:
    view = views(snapshot())[name]
    for value in view if isinstance(view, tuple) else (view,):
        assert dataclasses.is_dataclass(value)
        assert hash(value) is not None


def test_totals_carry_raw_numbers() -> None:
    found = [attributes for _tag, attributes in Elements(page("/ui/", snapshot())).found]
    totals = {one["data-total"]: one["data-value"] for one in found if "data-total" in one}
    assert totals["bytes_done"] == "500"
    assert totals["elements_written"] == "145000"
    assert totals["parameters_full"] == "145"
    assert totals["pairs_closed"] == "60"
    assert totals["skipped"] == "62"


@pytest.mark.parametrize(
    ("live", "status", "tone"),
    [
        (SNAPSHOTS["before the first load"], "idle", "calm"),
        (snapshot(), "loading", "busy"),
        (snapshot(paused=True), "paused", "warn"),
        (snapshot(status="finished", verdict="pass", skips_unexpected=0), "finished", "good"),
        (snapshot(status="finished", verdict="fail"), "finished", "bad"),
        (snapshot(status="interrupted", verdict="fail"), "interrupted", "warn"),
        (snapshot(status="refused", verdict="fail"), "refused", "bad"),
        (FAILED, "poisoned", "bad"),
    ],
)
def test_the_verdict_has_a_word_and_a_tone(live: dict[str, Any], status: str, tone: str) -> None:
    assert f'data-status="{status}" data-tone="{tone}"' in page("/ui/", live)


def test_a_failure_says_what_to_do() -> None:
    text = page("/ui/", FAILED)
    assert "Copy the file again." in text
    assert text.index("Copy the file again.") < text.index('id="verdict"')


@pytest.mark.parametrize(
    ("changes", "eta"),
    [
        ({"elapsed_s": 1.9}, "–"),
        ({"elapsed_s": 2.0}, "12.5 s"),
        ({"paused": True}, "held"),
        ({"finished_t": 9.0, "status": "finished"}, "done"),
        ({"finished_t": 9.0, "status": "failed"}, "–"),
    ],
)
def test_the_time_left_is_honest(changes: dict[str, Any], eta: str) -> None:
    assert f'data-f="eta">{eta}<' in page("/ui/", snapshot(**changes))


def test_a_lone_target_has_no_chip() -> None:
    chips = re.findall(r'data-f="chip"[^>]*>([^<]*)<', page("/ui/", snapshot()))
    assert set(chips) == {""}


def test_two_roles_have_a_card_and_chips_each() -> None:
    text = page("/ui/", BOTH)
    cards = [
        a["data-key"] for _t, a in Elements(text).found if "coverage" in str(a.get("class")).split()
    ]
    assert sorted(filter(None, cards)) == ["draft", "target"]
    assert 'data-f="word">Loading<' in text
    assert 'data-f="word">Waiting<' in text
    assert "500 B of 2.0 kB" in text
    assert '<span class="badge">target · load 3</span>' in text
    assert '<span class="badge">draft · load 4</span>' in text
    chips = re.findall(r'data-f="chip"[^>]*>([^<]*)<', text)
    assert {"target", "draft"} < set(chips)


def test_a_page_of_one_load_of_an_update_shows_it_alone() -> None:
    text = page("/ui/loads/4", BOTH)
    assert 'data-load="4"' in text
    assert "draft · load 4" in text
    assert "target · load 3" not in text


@pytest.mark.parametrize("roles", [("target",), ("target", "draft")])
def test_the_mapping_page_offers_the_roles_that_are_served(roles: tuple[Role, ...]) -> None:
    app = FastAPI()
    app.include_router(page_router(lambda: snapshot(), roles))
    text = TestClient(app).get("/ui/mapping").text
    offered = re.search(r"<label( hidden)?>role\s+<select.*?</select>", text, re.S)
    assert offered is not None
    assert (offered[1] is None) == (len(roles) > 1)
    assert re.findall(r"<option>(\w+)", offered[0]) == list(roles)


def test_a_page_of_another_load_starts_blank() -> None:
    text = page("/ui/loads/2", snapshot())
    assert 'data-load="2"' in text
    assert "145 of 291" not in text


def test_a_page_of_the_newest_load_starts_full() -> None:
    assert "145 of 291 parameters fully written" in page("/ui/loads/3", snapshot())


def test_the_root_leads_to_the_overview() -> None:
    answer = client(snapshot()).get("/", follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == "/ui/"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_writes_text_not_markup(script: Path) -> None:
    text = script.read_text()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in text
    addresses = re.findall(r"https?://[^\"'`\s]+", text)
    assert [one for one in addresses if one != "http://www.w3.org/2000/svg"] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_what_is_there(script: Path) -> None:
    for names, source in re.findall(r"import \{([^}]+)\} from \"\./([^\"]+)\"", script.read_text()):
        exported = (STATIC / source).read_text()
        for name in filter(None, map(str.strip, names.split(","))):
            pattern = rf"export (async )?(function|const|class) {re.escape(name)}[^\w$]"
            assert re.search(pattern, exported), name


NUMBERS: list[tuple[str, list[Any], str]] = [
    ("count", [0], "0"),
    ("count", [1564], "1,564"),
    ("count", [684531386000], "684,531,386,000"),
    ("size", [812], "812 B"),
    ("size", [999_949], "999.9 kB"),
    ("size", [999_951], "1.0 MB"),
    ("size", [688574839360], "688.6 GB"),
    ("rate", [None], "–"),
    ("rate", [26.9e9], "26.9 GB/s"),
    ("seconds", [None], "–"),
    ("seconds", [0], "0 s"),
    ("seconds", [0.000655], "655 µs"),
    ("seconds", [0.0011], "1.1 ms"),
    ("seconds", [0.31], "310 ms"),
    ("seconds", [11.84], "11.8 s"),
    ("seconds", [125.9], "2 min 05 s"),
    ("seconds", [3725], "1 h 02 min"),
    ("percent", [0, 0], "–"),
    ("percent", [0, 9], "0 %"),
    ("percent", [1, 10**12], "0.1 %"),
    ("percent", [469, 1000], "46.9 %"),
    ("percent", [10**12 - 1, 10**12], "99.9 %"),
    ("percent", [9, 9], "100 %"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), NUMBERS)
def test_numbers_read_well(name: str, arguments: list[Any], words: str) -> None:
    assert getattr(format, name)(*arguments) == words


@pytest.fixture
def address() -> Iterator[str]:
    """A server that has the pages and their scripts, and no API."""
    app = FastAPI()
    app.include_router(page_router(lambda: snapshot()))
    app.mount("/static", StaticFiles(directory=STATIC))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.browser
def test_the_browser_writes_numbers_as_the_server_does(address: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    script = (
        "async ([calls]) => { const f = await import('/static/format.js');"
        " return calls.map(([name, arguments_]) => f[name](...arguments_)); }"
    )
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        tab = browser.new_page()
        tab.goto(f"{address}/ui/loads")
        calls = [[name, arguments] for name, arguments, _words in NUMBERS]
        assert tab.evaluate(script, [calls]) == [words for _name, _arguments, words in NUMBERS]
        browser.close()
