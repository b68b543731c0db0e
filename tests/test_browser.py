"""The demo in a real Chromium, as a person would use it: watch, pause, search, drill, reload."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser
from support.browser import Watched, chromium, watched
from support.processes import Server, server

from loadscope.loader.events import Event
from loadscope.loader.state import fold

pytestmark = pytest.mark.browser

SECONDS = "6"
TENSOR = "model.layers.5.mlp.experts.7.up_proj.weight"
PARAM = "model.layers.5.mlp.experts.w13_weight"
PAIRED = "model.layers.3.self_attn.q_a_proj.weight"
PAGES = ("/ui/", f"/ui/mapping?name={TENSOR}", "/ui/loads", "/ui/loads/1")
TOTALS = ("bytes_done", "elements_written", "parameters_full", "skipped", "pairs_closed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    with server("demo", "--seconds", SECONDS) as running:
        yield running


@pytest.fixture
def page(browser: Browser, demo: Server) -> Iterator[Watched]:
    """Whatever a test does: nothing on the console, no host but the server's own."""
    with watched(browser, demo.url) as page:
        yield page
        assert page.complaints == []
        assert page.hosts == {urlsplit(demo.url).netloc}


def all_events(demo: Server, load: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    cursor = ""
    while cursor is not None:
        answer = demo.get(f"/events?load={load}&limit=1000{cursor and '&cursor=' + quote(cursor)}")
        events += answer["items"]
        cursor = answer["next"]
    return events


def own_fold(events: list[dict[str, Any]]) -> dict[str, float]:
    """Totals of a load counted from its events, one by one, without the product's fold."""
    written: dict[str, int] = {}
    size: dict[str, int] = {}
    for event in events:
        if event["kind"] == "copied":
            param = event["param"]
            written[param] = written.get(param, 0) + event["detail"]["elements"]
            size[param] = event["detail"]["numel"]
    return {
        "bytes_done": sum(e["bytes"] for e in events if e["kind"] == "copied"),
        "elements_written": sum(written.values()),
        "parameters_full": sum(written[p] == size[p] for p in written),
        "skipped": sum(e["kind"] == "skipped" for e in events),
        "pairs_closed": sum(e["kind"] == "paired" for e in events),
    }


def shown_skips(page: Watched) -> dict[str, int]:
    return {
        row.locator("[data-f=reason]").inner_text(): int(
            row.locator("[data-f=count]").inner_text().replace(",", "")
        )
        for row in page.page.locator("#skips > li").all()
    }


def finished(page: Watched, load: str) -> bool:
    shown = page.page.locator("main").get_attribute("data-load")
    return page.status() == "finished" and shown == load


def test_a_load_is_watched_paused_resumed_and_ends_with_the_verdict(
    page: Watched, demo: Server
) -> None:
    page.open("/")
    assert page.page.url.endswith("/ui/")
    page.page.wait_for_selector("#conn[data-s=live]")
    first = page.total("bytes_done")
    page.wait(lambda: page.total("bytes_done") > first, "bytes to move")
    page.page.click("#pause")
    page.wait(lambda: page.status() == "paused", "the page to say paused")
    assert "paused" in page.page.locator("#status").inner_text().lower()
    # the step that was under way may still end
    page.page.wait_for_timeout(700)
    frozen = [page.total(name) for name in TOTALS]
    page.page.wait_for_timeout(1200)
    assert [page.total(name) for name in TOTALS] == frozen
    page.page.click("#pause")
    page.wait(lambda: page.total("bytes_done") > frozen[0], "bytes to move again")
    page.wait(lambda: finished(page, "1"), "the load to finish", 40)
    sentence = page.page.locator("#verdict").inner_text()
    assert sentence == demo.get("/loads/1")["state"]["sentence"]
    assert "all expected" in sentence


def test_the_pages_totals_are_a_fold_of_the_events(page: Watched, demo: Server) -> None:
    page.open("/ui/")
    page.page.wait_for_selector("#conn[data-s=live]")
    page.wait(lambda: finished(page, "1"), "the load to finish", 40)
    events = all_events(demo, 1)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    counted = own_fold(events)
    folded = fold(Event.from_json(event) for event in events).as_json(0.0)
    for name in TOTALS:
        assert page.total(name) == counted[name] == folded[name], name


def test_a_name_is_searched_and_its_journey_told(page: Watched) -> None:
    page.open("/ui/")
    page.page.keyboard.press("/")
    page.page.keyboard.type("layers.5.mlp.experts.7.up")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/ui/mapping?**")
    page.page.locator("#results a", has_text=TENSOR).first.click()
    # the events come last, with a request of their own
    page.page.wait_for_selector("#journey :text-is('copied')")
    story = page.page.locator("#journey").inner_text()
    for part in (
        TENSOR,
        "model-00003-of-000008.safetensors",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.{leaf}",
        PARAM,
        "slot 7 of 16",
        "rows 256–511 of 512",
        "copied",
    ):
        assert part in story, part
    assert "name=" in page.page.url
    page.page.go_back()
    page.page.wait_for_selector(".stations", state="detached")
    find = page.page.locator("#find")
    page.wait(lambda: find.input_value() == "layers.5.mlp.experts.7.up", "the search to return")


def test_a_paired_name_shows_its_partner_and_a_parameter_its_sources(page: Watched) -> None:
    page.open(f"/ui/mapping?name={PAIRED}")
    page.page.wait_for_selector(".stations")
    assert "kv_a_proj_with_mqa" in page.page.locator("#journey").inner_text()
    page.open(f"/ui/mapping?name={PARAM}")
    page.page.wait_for_selector(".stations")
    story = page.page.locator("#journey").inner_text()
    assert "Filled by 32 tensors" in story
    assert "experts.0.gate_proj.weight" in story


def test_an_unknown_name_shows_the_nearest_ones(browser: Browser, demo: Server) -> None:
    with watched(browser, demo.url) as page:
        page.open(f"/ui/mapping?name={TENSOR.replace('up_proj', 'up_prj')}")
        page.page.wait_for_selector(f"#journey a:has-text('{TENSOR}')")
        # Chromium itself reports the 404 that the API rightly answers
        assert all("404" in complaint for complaint in page.complaints)


def test_the_heat_map_drills_to_experts_and_to_one_parameter(page: Watched) -> None:
    page.open("/ui/")
    page.page.wait_for_selector("#conn[data-s=live]")
    page.page.click(".as-table")
    row = page.page.locator(".coverage tbody tr").nth(6)
    row.locator("button", has_text="").last.click()
    page.page.wait_for_selector("#drill:not([hidden]) .experts canvas, #drill .experts svg")
    heading = page.page.locator("#drill-title").inner_text()
    assert heading.startswith("layer 5 · experts.")
    page.page.focus("#drill .experts canvas")
    for _ in range(4):
        page.page.keyboard.press("ArrowRight")
    assert page.page.locator("#drill .experts .readout").inner_text().startswith("expert 3, slot 3")
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector(".stations")
    story = page.page.locator("#journey").inner_text()
    assert "expert 3 only" in story
    assert "experts.3.down_proj" in story
    page.page.go_back()
    page.page.wait_for_selector("#conn[data-s=live]")


def test_the_heat_map_is_used_with_the_keyboard(page: Watched) -> None:
    page.open("/ui/")
    page.page.wait_for_selector("#conn[data-s=live]")
    page.page.focus(".coverage canvas")
    before = page.page.locator(".coverage .readout").inner_text()
    for key in ("ArrowRight",) * 4 + ("ArrowDown",) * 2:
        page.page.keyboard.press(key)
    page.wait(
        lambda: page.page.locator(".coverage .readout").inner_text() != before, "the cell in words"
    )
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#drill:not([hidden]) a.name")
    page.page.keyboard.press("Escape")
    assert page.page.locator("#drill").is_hidden()


def test_a_reload_runs_in_the_same_page(page: Watched, demo: Server) -> None:
    page.open("/ui/")
    page.page.wait_for_selector("#conn[data-s=live]")
    page.wait(lambda: page.status() == "finished", "the load before to finish", 40)
    number = str(int(page.page.locator("main").get_attribute("data-load") or 0) + 1)
    page.page.click("#reload")
    page.page.click("#reload-form .primary")
    page.wait(lambda: page.page.locator("main").get_attribute("data-load") == number, "load 2")
    page.wait(lambda: finished(page, number), "load 2 to finish", 40)
    assert demo.get(f"/loads/{number}")["state"]["verdict"] == "pass"
    reloaded = all_events(demo, int(number))
    assert {name: page.total(name) for name in TOTALS} == own_fold(reloaded)
    assert shown_skips(page) == Counter(e["reason"] for e in reloaded if e["kind"] == "skipped")
    page.open("/ui/loads")
    page.page.wait_for_selector(f"a[href='/ui/loads/{number}']")
    page.page.click("a[href='/ui/loads/1']")
    page.page.wait_for_selector("#conn[data-s=stored]")
    counted = own_fold(all_events(demo, 1))
    assert {name: page.total(name) for name in TOTALS} == counted


def test_the_theme_is_chosen_and_kept(page: Watched) -> None:
    page.open("/ui/")
    colours = set()
    for _ in range(3):
        page.page.click("#theme")
        colours.add(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    kept = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.reload()
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == kept


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_scrolls_sideways(browser: Browser, demo: Server, path: str, width: int) -> None:
    with watched(browser, demo.url, viewport={"width": width, "height": 844}) as page:
        page.open(path)
        page.page.wait_for_selector("#conn:not([data-s=connecting])")
        page.page.wait_for_timeout(300)
        assert page.page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.complaints == []
