"""The page of updates in a real Chromium: what each way that an update can go looks like."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser
from support.browser import Watched, chromium, watched
from support.update_endings import ENDINGS, broken, failed, first, history, partial, poisoned
from support.update_records import LAYERS, active, delta, receiving
from support.update_server import Fake, update_server

from loadscope.app import pages

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
EQUAL = "all checksums agree and read back equal"
SENTENCES = {
    "receiving": "129 is receiving: 81 of 170 tensors in 4 buckets, 2 groups wait; "
    "128 serves meanwhile",
    "failed": "129 failed before anything was written: 35 tensors missing; 128 still serves",
    "half missing": "129 failed before anything was written: 1 group incomplete; 128 still serves",
    "mismatched": "129 failed before anything was written: 3 checksums differ from the sender's; "
    "128 still serves",
    "rolled back": "129 failed while it was written: the load failed; rolled back; "
    "128 serves again",
    "poisoned": "129 failed while it was written: the load failed; 25 parameters hold a mixture, "
    "nothing is served",
    "taken back": "129 was rolled back by request; 128 serves again",
    "cancelled": "129 was cancelled before the switch; 128 still serves",
    "interrupted": "129 was interrupted: its process ended before it did",
    "partial": f"129 is active: 38 tensors arrived in 2 buckets, the rest stays, {EQUAL}, "
    "0.94 % of elements changed",
    "two roles": f"129 is active: 170 of 170 tensors arrived in 12 buckets, {EQUAL}, "
    "0.94 % of elements changed",
    "broken": f"129 is active: 170 of 170 tensors arrived in 12 buckets, {EQUAL}, "
    "0.94 % of elements changed, 4 are NaN or Inf",
    "in place": "129 is active: 170 of 170 tensors read from rl/weight_v000129, "
    "no checksum differs",
}
ANSWERS = {
    "failed": ["No", "Not checked", "Nothing", "Unchanged"],
    "mismatched": ["Yes", "No", "Nothing", "Unchanged"],
    "poisoned": ["Yes", "Not checked", "Unknown", "Poisoned"],
    "partial": ["Yes, a part", "Yes", "0.94 %", "New"],
    "receiving": ["Not yet", "Not yet", "Not yet", "As before"],
    "in place": ["Yes", "Yes", "Not measured", "New"],
}
FAILURES = {"failed", "half missing", "mismatched", "rolled back", "poisoned", "interrupted"}
# every visible text against the nearest background below it; returns those that are too faint
FAINT = """() => {
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
  };
  return [...document.querySelectorAll("main *")].filter((node) => {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    const style = getComputedStyle(node);
    if (!own || !node.checkVisibility() || style.clipPath !== "none") return false;
    const [a, b] = [light(numbers(style.color)), light(ground(node))].sort((x, y) => y - x);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.7 && style.fontWeight >= 700);
    return (a + 0.05) / (b + 0.05) < (isLarge ? 3 : 4.5);
  }).map((node) => `${node.tagName}.${node.className} ${node.textContent.slice(0, 40)}`);
}"""  # noqa: E501

# the colour in the middle of each cell of the first row of the map
SHADES = """async () => {
  const { palette } = await import("/static/palette.js");
  const canvas = document.querySelector(".change canvas");
  const { arrange } = await import("/static/geometry.js");
  const context = canvas.getContext("2d");
  const { labelFont } = await import("/static/heatpaint.js");
  const columns = ["embed_tokens", "norm", "lm_head"];
  const width = canvas.parentElement.clientWidth;
  context.font = labelFont(width);
  const measure = (words) => context.measureText(words).width;
  const places = arrange({ rows: ["top"], columns }, width, measure);
  const y = places.y[0] + places.cellHeight / 2;
  const { data } = context.getImageData(0, y, width, 1);
  const at = (x) => [...data].slice(4 * Math.round(x + places.cellWidth / 2)).slice(0, 3);
  const numbers = (colour) => colour.match(/\\d+/g).slice(0, 3).map(Number);
  const { surface, ramp } = palette();
  const told = { surface: numbers(surface).join(), most: numbers(ramp.at(-1)).join() };
  columns.forEach((name, i) => (told[name] = at(places.x[i]).join()));
  return told;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Fake, str]]:
    fake = Fake()
    with update_server(fake) as url:
        yield fake, url


@pytest.fixture
def fake(server: tuple[Fake, str]) -> Fake:
    server[0].begin()
    return server[0]


@pytest.fixture
def page(browser: Browser, server: tuple[Fake, str]) -> Iterator[Watched]:
    """Nothing may be on its console, and nobody but the server be asked."""
    with watched(browser, server[1]) as page:
        yield page
        assert page.complaints == []
        assert page.hosts == {urlsplit(server[1]).netloc}


def show(page: Watched, path: str = "ui/updates") -> None:
    page.open(path)
    page.page.wait_for_selector("#conn[data-s=live]")
    page.wait(lambda: "Fetching" not in page.page.locator("#verdict").inner_text(), "a verdict")


def verdict(page: Watched) -> str:
    return page.page.locator("#verdict").inner_text().replace("\xa0", " ")


def texts(page: Watched, selector: str) -> list[str]:
    return [text.replace("\xa0", " ") for text in page.page.locator(selector).all_inner_texts()]


@pytest.mark.parametrize("name", ENDINGS)
def test_one_sentence_says_how_an_update_went(page: Watched, fake: Fake, name: str) -> None:
    fake.begin(*history(ENDINGS[name]()))
    show(page)
    assert verdict(page) == SENTENCES[name]
    assert page.page.locator("#failures").is_visible() == (name in FAILURES)
    if name in ANSWERS:
        assert texts(page, ".answers b") == ANSWERS[name]


@pytest.mark.parametrize("name", ENDINGS)
def test_no_text_is_faint_and_no_page_scrolls_sideways(
    page: Watched, fake: Fake, name: str
) -> None:
    fake.begin(*history(ENDINGS[name]()), draft="127")
    page.page.emulate_media(reduced_motion="reduce")
    show(page)
    for theme, width in (("light", 1440), ("dark", 390)):
        page.page.emulate_media(color_scheme=theme)
        page.page.set_viewport_size({"width": width, "height": 844})
        assert page.page.evaluate(FAINT) == []
        assert page.page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_what_failed_stands_first_with_names_and_a_way_out(page: Watched, fake: Fake) -> None:
    fake.begin(*history(failed()))
    show(page)
    above, below = (page.page.locator(one).bounding_box() for one in ("#failures", "#timeline"))
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]
    told = page.page.locator("#failed > li")
    for part in (
        "unchanged: nothing was written",
        "missing_tensor",
        "send every tensor of the model",
        "and 15 more",
    ):
        assert part in told.inner_text(), part
    assert told.locator(".names").first.locator("li").count() == 20
    name = "model.layers.4.mlp.experts.0.down_proj.weight"
    assert told.locator("a.name").first.get_attribute("href") == f"/ui/mapping?name={name}"


def test_a_failure_that_a_later_update_answered_is_folded(page: Watched, fake: Fake) -> None:
    fake.begin(failed(8), active(9, "130"))
    show(page)
    assert page.page.locator("#failed > li").count() == 0
    folded = "1 earlier failure, answered by a later update"
    assert texts(page, "#failed-earlier > summary") == [folded]
    page.page.click("#updates a[data-update=u-8]")
    page.page.wait_for_selector("#failed > li")
    assert verdict(page).endswith("35 tensors missing; 128 stayed in its place")


def test_parameters_that_were_touched_are_named(page: Watched, fake: Fake) -> None:
    fake.begin(*history(poisoned()))
    show(page)
    page.page.click(".touched summary")
    assert texts(page, ".touched summary") == ["25 parameters touched, target rank 0"]
    assert page.page.locator(".touched li").count() == 20
    assert texts(page, ".touched .more") == ["and 5 more"]
    assert texts(page, "#versions li") == ["target – poisoned"]


def test_all_bars_have_one_scale_and_the_table_says_the_same(page: Watched, fake: Fake) -> None:
    fake.begin(first(), active(7))
    show(page)
    assert texts(page, "[data-f=scale]") == ["8.6 s"]
    bars = page.page.locator(".bar")
    whole = bars.first.bounding_box()
    last = bars.nth(1).locator("i").last.bounding_box()
    assert whole is not None
    assert last is not None
    shown = (last["x"] + last["width"] - whole["x"]) / whole["width"]
    assert shown == pytest.approx(2.102 / 8.56, abs=0.01)
    drawn = [one.get_attribute("data-phase") for one in bars.first.locator("i").all()]
    assert drawn[:3] == ["receiving", "planning", "verifying"]
    page.page.click("#timeline .as-table")
    assert not bars.first.is_visible()
    row = texts(page, "#phases tr")[0].split("\t")
    assert row[1:5] == ["Active", "400 ms", "3.1 s", "700 ms"]
    assert row[-1] == "8.6 s"


@pytest.mark.parametrize(("motion", "name"), [("reduce", "none"), ("no-preference", "pulse")])
def test_only_the_phase_that_goes_on_pulses_and_only_if_wished(
    page: Watched, fake: Fake, motion: str, name: str
) -> None:
    fake.begin(active(), receiving())
    page.page.emulate_media(reduced_motion=motion)
    show(page)
    current = page.page.locator(".bar i[data-current]")
    assert current.count() == 1
    assert current.evaluate("(node) => getComputedStyle(node).animationName") == name


def test_the_map_of_changes_is_read_with_keys_and_as_a_table(page: Watched, fake: Fake) -> None:
    fake.begin(*history(broken()))
    show(page)
    page.page.focus(".change canvas")
    page.page.keyboard.press("Home")
    readout = page.page.locator(".change .readout")
    page.wait(lambda: readout.inner_text().startswith("top · embed_tokens"), "the cell")
    assert "0.94 % of 1,048,576 elements" in readout.inner_text().replace("\xa0", " ")
    assert [text.lstrip("×·\n") for text in texts(page, ".change .legend li:visible")][1:] == [
        "unchanged", "changed, no size", "NaN or Inf", "no such parameter",
    ]  # fmt: skip
    page.page.click(".change .as-table")
    rows = page.page.locator(".change .twin tbody tr")
    assert rows.count() == LAYERS + 1
    cells = rows.locator("td").all_inner_texts()
    assert cells.count("unchanged") == 4 * 3
    assert cells.count("changed") == 1
    marked = [text.partition(", ")[2] for text in rows.locator("[data-fault]").all_inner_texts()]
    assert marked == ["3 NaN", "1 Inf"]


def test_what_did_not_change_has_no_shade(page: Watched, fake: Fake) -> None:
    """The middle of each cell: the surface where nothing changed, the ramp's end where most did."""
    told = {"layer": "top", "role": "target", "elements": 9, "rms": 1.0, "max_abs": 1.0}
    sizes = {"embed_tokens": 0.0, "norm": 1e-6, "lm_head": 1e-3}
    rows = [
        told | {"module": name, "relative": size, "changed": int(size > 0), "nan": 0, "inf": 0}
        for name, size in sizes.items()
    ]
    fake.begin(active(delta=delta(cells=rows)))
    show(page)
    page.page.wait_for_selector(".change canvas")
    colours = page.page.evaluate(SHADES)
    assert colours["embed_tokens"] == colours["surface"]
    assert colours["lm_head"] == colours["most"]
    assert len({colours[name] for name in sizes}) == len(sizes)


def test_a_role_without_data_is_said_not_to_be_post_processed(page: Watched, fake: Fake) -> None:
    fake.begin(*history(partial()), draft="127")
    show(page)
    told = texts(page, "#roles tr")
    assert "no data: not post-processed (no tensor of this role in the update)" in told[1]
    assert texts(page, "#versions li") == ["target 129", "draft 127"]


def test_halves_that_wait_are_listed_with_what_they_wait_for(page: Watched, fake: Fake) -> None:
    fake.begin(active(), receiving())
    show(page)
    rows = page.page.locator("#open-groups > li")
    assert rows.count() == 2
    assert "since bucket 1" in rows.nth(1).inner_text()
    waits = rows.nth(1).locator("[data-f=waits] li").all_inner_texts()
    assert waits == [f"kv_a_proj_with_mqa.{leaf}" for leaf in ("weight", "weight_scale_inv")]
    shown = page.page.locator("#tensors-bar").evaluate("(bar) => [bar.value, bar.max]")
    assert shown == [81, 170]


def test_before_the_first_push_the_page_says_how(page: Watched, fake: Fake) -> None:
    show(page)
    assert verdict(page) == "No update is on record yet."
    assert "/reloads/u-2/commit" in page.page.locator("#push pre").inner_text()
    assert not page.page.locator("#timeline").is_visible()
    fake.begin(first())
    show(page)
    assert page.page.locator("#push").is_visible()
    fake.begin(first(), active())
    show(page)
    assert not page.page.locator("#push").is_visible()


def test_older_updates_come_when_asked_for(page: Watched, fake: Fake) -> None:
    fake.begin(*(active(number, str(number)) for number in range(1, 26)))
    show(page)
    rows = page.page.locator("#updates tr")
    assert rows.count() == 10
    page.page.click("#more")
    page.wait(lambda: rows.count() == 25, "the older ones")
    assert not page.page.locator("#more").is_visible()


def test_an_update_of_which_little_is_known_is_shown(page: Watched, fake: Fake) -> None:
    little = {
        "id": "u-1", "origin": "load", "version": None, "opened_t": 1.0, "loads": [1],
        "source": {"type": "disk", "name": "DeepSeek-V3"}, "failure": None, "state": "failed",
        "ended_t": 2.0,
    }  # fmt: skip
    fake.begin(little)
    show(page)
    assert verdict(page).startswith("u-1 failed before anything was written")


def test_an_update_that_is_not_there_is_said(browser: Browser, server: tuple[Fake, str]) -> None:
    server[0].begin(active())
    with watched(browser, server[1]) as page:
        show(page, "ui/updates/u-99")
        page.wait(lambda: verdict(page) == "there is no update u-99", "the server's words")
        page.page.click("#updates a[data-update=u-7]")
        page.wait(lambda: verdict(page).startswith("128 is active"), "the one that is there")
        # Chromium itself reports the 404 that the API rightly answers
        assert all("404" in complaint for complaint in page.complaints)


def test_names_and_versions_stay_text(page: Watched, fake: Fake) -> None:
    bad = failed()
    bad["failure"] |= {"names": [HOSTILE], "message": HOSTILE, "fix": HOSTILE}
    source = {"type": "disk", "name": HOSTILE}
    fake.begin(bad | {"version": HOSTILE, "source": source, "previous": HOSTILE})
    show(page)
    assert verdict(page).startswith(HOSTILE)
    assert page.page.locator("main img").count() == 0


def test_templates_keep_the_content_policy() -> None:
    folder = pages.TEMPLATES
    sources = [folder / "updates.html", *sorted((folder / "panels").glob("update_*.html"))]
    assert len(sources) > 8
    for source in sources:
        assert not re.search(r"<script|<style|\sstyle=|\son\w+=|https?://", source.read_text())
