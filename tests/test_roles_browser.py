"""Target and draft on one page, in a real Chromium: side by side, told apart, summed up."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator
from support.browser import Watched, chromium, watched
from support.processes import Server, server
from support.two_roles import write_two_roles

pytestmark = pytest.mark.browser

EH_PROJ = "model.layers.12.eh_proj.weight"
SUMS = ("bytes_done", "elements_written", "parameters_full", "skipped", "pairs_closed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    with server("demo", "--seconds", "3", "--roles", "target,draft") as running:
        yield running


@pytest.fixture
def page(browser: Browser, demo: Server) -> Iterator[Watched]:
    with watched(browser, demo.url) as page:
        yield page
        assert page.complaints == []
        assert page.hosts == {urlsplit(demo.url).netloc}


def opened(page: Watched, path: str = "/ui/") -> None:
    page.open(path)
    page.page.wait_for_selector("#conn[data-s=live]")


def card(page: Watched, role: str) -> Locator:
    return page.page.locator(f".coverage[data-key={role}]")


def test_both_heat_maps_are_there_before_the_draft_has_begun(page: Watched, demo: Server) -> None:
    opened(page)
    page.wait(lambda: page.page.locator(".coverage canvas").count() == 2, "two heat maps")
    sentences = page.page.locator(".coverage [data-f=sentence]")
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    for number, role in enumerate(("target", "draft")):
        told = demo.get(f"/loads/{number + 1}")["state"]["sentence"]
        assert sentences.nth(number).inner_text() == told
        assert card(page, role).locator("[data-f=chip]").first.inner_text() == role
        assert card(page, role).locator("[data-f=word]").inner_text() == "Finished"
    assert "of target and draft fully written" in page.page.locator("#verdict").inner_text()


def test_totals_are_the_sum_of_both_loads(page: Watched, demo: Server) -> None:
    opened(page)
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    states = [demo.get(f"/loads/{number}")["state"] for number in (1, 2)]
    for name in SUMS:
        assert page.total(name) == sum(state[name] for state in states), name


def test_lists_name_the_role(page: Watched, demo: Server) -> None:
    opened(page)
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    for rows in ("#skips > li", "#ranks > li", "#kernels > tr"):
        chips = {row.locator("[data-f=chip]").inner_text() for row in page.page.locator(rows).all()}
        assert chips == {"target", "draft"}, rows
    link = page.page.locator("#skips a", has_text="shared_with_target")
    assert "role=draft" in str(link.get_attribute("href"))


def test_a_cell_of_the_draft_opens_the_drafts_parameters(page: Watched) -> None:
    opened(page)
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    card(page, "draft").locator(".as-table").click()
    card(page, "draft").locator("tbody button").last.click()
    page.page.wait_for_selector("#drill:not([hidden]) .experts canvas")
    assert page.page.locator("#drill-title").inner_text().endswith(" · draft")
    name = page.page.locator("#drill a.name").first
    assert name.inner_text().startswith("model.decoder.")
    name.click()
    page.page.wait_for_selector(".stations")
    assert page.page.locator("#journey .badge.role").inner_text() == "draft"
    assert "role=draft" in page.page.url


def test_the_role_is_chosen_on_the_mapping_page(page: Watched) -> None:
    page.open(f"/ui/mapping?name={EH_PROJ}")
    page.page.wait_for_selector("#journey .badge:has-text('beyond_model')")
    page.page.select_option("#role", "draft")
    page.page.wait_for_selector("#journey .badge:text-is('loaded')")
    assert "role=draft" in page.page.url
    page.page.fill("#find", "decoder")
    page.page.wait_for_selector("#results .name:has-text('model.decoder.')")
    page.page.go_back()
    page.page.wait_for_selector("#journey .badge:has-text('beyond_model')")
    assert page.page.locator("#role").input_value() == "target"


def test_a_stored_load_is_shown_alone(page: Watched) -> None:
    opened(page)
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    page.open("/ui/loads/2")
    page.page.wait_for_selector("#conn[data-s=stored]")
    page.wait(lambda: page.page.locator(".coverage").count() == 1, "one heat map")
    assert card(page, "draft").locator("[data-f=chip]").first.inner_text() == "draft"


def test_reloading_keeps_both_cards(page: Watched, demo: Server) -> None:
    opened(page)
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    page.page.click("#reload")
    page.page.click("#reload-form .primary")
    main = page.page.locator("main")
    page.wait(lambda: main.get_attribute("data-load") == "3", "the next update")
    page.wait(lambda: page.status() == "finished", "both loads to finish", 30)
    assert page.page.locator(".coverage").count() == 2
    assert [row["update"] for row in demo.get("/loads")["items"]] == [2, 2, 1, 1]
    page.open("/ui/loads")
    page.page.wait_for_selector("#loads tr")
    chips = page.page.locator("#loads .badge.role").all_inner_texts()
    assert chips == ["draft", "target"] * 2


@pytest.mark.parametrize("path", ["/ui/", f"/ui/mapping?name={EH_PROJ}&role=draft", "/ui/loads"])
@pytest.mark.parametrize("width", [390, 1440])
def test_two_roles_scroll_no_page_sideways(
    browser: Browser, demo: Server, path: str, width: int
) -> None:
    with watched(browser, demo.url, viewport={"width": width, "height": 844}) as page:
        page.open(path)
        page.page.wait_for_selector("#conn:not([data-s=connecting])")
        page.page.wait_for_timeout(500)
        assert page.page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("roles", "status", "place"),
    [("target", "finished", "#no-draft"), ("target,draft", "refused", "#blockers")],
)
def test_a_draft_that_is_announced_but_missing_is_said_on_top(
    browser: Browser, tmp_path: Path, roles: str, status: str, place: str
) -> None:
    model = write_two_roles(tmp_path / "no-draft", has_draft=False)
    with (
        server("serve", str(model), "--roles", roles, state_dir=tmp_path / "state") as running,
        watched(browser, running.url) as page,
    ):
        opened(page)
        page.page.wait_for_selector(f"{place}:not([hidden])")
        assert "num_nextn_predict_layers = 1" in page.page.locator(place).inner_text()
        assert page.status() == status
