"""The page of updates while updates go on: live, never in the way of its reader, obeyed at once."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser
from support.browser import Watched, chromium, watched
from support.golden_checkpoint import write_golden_checkpoint
from support.listening import listening
from support.update_endings import first
from support.update_records import active, receiving
from support.update_server import Fake, update_server
from support.updates import Weights, changed, weights_of

from loadscope.app.client import Client

pytestmark = pytest.mark.browser

# when the text of a node changed, in milliseconds
WATCH = """(selector) => {
  window.changes = [];
  const watch = new MutationObserver(() => window.changes.push(performance.now()));
  watch.observe(document.querySelector(selector), { childList: true, characterData: true, subtree: true });
}"""  # noqa: E501
HALF = "kv_a_proj_with_mqa"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def fake() -> Fake:
    """128 is served, 129 is receiving."""
    return Fake(first(), active(7), receiving(8))


@pytest.fixture
def page(browser: Browser, fake: Fake) -> Iterator[Watched]:
    with update_server(fake) as url, watched(browser, url) as page:
        opened(page)
        yield page


def opened(page: Watched, path: str = "ui/updates") -> None:
    page.open(path)
    page.page.wait_for_selector("#conn[data-s=live]")
    page.wait(lambda: "Fetching" not in verdict(page), "a verdict")


def verdict(page: Watched) -> str:
    return page.page.locator("#verdict").inner_text().replace("\xa0", " ")


def test_what_comes_is_seen_without_a_reload(page: Watched, fake: Fake) -> None:
    groups = page.page.locator("#open-groups > li")
    assert groups.count() == 2
    fake.put(receiving(8, came=6, waiting=1))
    fake.publish("u-8", "bucket", bucket=5, received=121, of=170, groups_open=1)
    page.wait(lambda: "121 of 170 tensors in 6 buckets, 1 group waits" in verdict(page), "a bucket")
    assert groups.count() == 1
    fake.put(receiving(8, came=8, waiting=0) | {"state": "staging"})
    fake.publish("u-8", "state", state="staging")
    fake.publish("u-8", "progress", phase="staging", bytes=250, of=1000, gbps=1.5)
    moving = page.page.locator("#bytes-line")
    page.wait(lambda: "staging 25.0 %" in moving.inner_text(), "progress")
    assert "1.5 GB/s" in moving.inner_text()
    fake.put(active(8, "129"))
    fake.put(active(7, state="retired"))
    fake.publish("u-8", "state", state="active")
    fake.publish("u-8", "done", state="active")
    page.wait(lambda: verdict(page).startswith("129 is active"), "the end")
    page.wait(lambda: page.page.locator("#versions").inner_text() == "target 129", "the version")
    assert not moving.is_visible()
    assert page.complaints == []


def test_the_newest_update_is_opened_when_it_appears(page: Watched, fake: Fake) -> None:
    assert verdict(page).startswith("129 is receiving")
    fake.put(receiving(9, "130"))
    page.wait(lambda: verdict(page).startswith("130 is receiving"), "the new update")
    assert page.page.url.endswith("/ui/updates")


def test_an_update_that_was_chosen_stays(page: Watched, fake: Fake) -> None:
    page.page.focus("#updates a[data-update=u-7]")
    page.page.keyboard.press("Enter")
    page.wait(lambda: verdict(page).startswith("128 is active"), "the chosen update")
    assert page.page.url.endswith("/ui/updates/u-7")
    assert page.page.evaluate("document.activeElement.id") == "verdict"
    fake.put(receiving(9, "130"))
    page.page.wait_for_selector("#updates a[data-update=u-9]")
    assert verdict(page).startswith("128 is active")
    page.page.go_back()
    page.wait(lambda: verdict(page).startswith("130 is receiving"), "the newest again")


def test_focus_and_selection_survive_news(page: Watched, fake: Fake) -> None:
    select = "getSelection().selectAllChildren(document.querySelector('#open-groups b'))"
    page.page.focus("#updates a[data-update=u-7]")
    page.page.evaluate(select)
    chosen = page.page.evaluate("String(getSelection())")
    assert chosen == "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa"
    fake.put(receiving(8, came=6, waiting=1))
    fake.publish("u-8", "bucket", bucket=5)
    page.wait(lambda: "in 6 buckets" in verdict(page), "a bucket")
    assert page.page.evaluate("String(getSelection())") == chosen
    fake.put(receiving(9, "130"))
    page.wait(lambda: verdict(page).startswith("130 is receiving"), "a row above")
    assert page.page.evaluate("document.activeElement.dataset.update") == "u-7"


def test_a_flood_of_buckets_is_drawn_at_most_four_times_a_second(page: Watched, fake: Fake) -> None:
    page.page.evaluate(WATCH, "#verdict")
    before = fake.reads["u-8"]
    for number in range(60):
        fake.put(receiving(8, came=number, waiting=0))
        fake.publish("u-8", "bucket", bucket=number)
        page.page.wait_for_timeout(20)
    page.wait(lambda: "in 59 buckets" in verdict(page), "the last bucket")
    times = page.page.evaluate("window.changes")
    gaps = [later - sooner for sooner, later in zip(times, times[1:], strict=False)]
    assert len(times) > 2
    assert min(gaps) > 200
    assert fake.reads["u-8"] - before < 20


def test_a_voice_is_not_flooded(page: Watched, fake: Fake) -> None:
    page.page.evaluate(WATCH, "#announce")
    for number in range(5, 12):
        fake.put(receiving(8, came=number, waiting=0))
        fake.publish("u-8", "bucket", bucket=number)
        page.wait(lambda: f"in {number} buckets" in verdict(page), "a bucket")  # noqa: B023
    assert len(page.page.evaluate("window.changes")) <= 1


def test_old_data_looks_old_until_the_server_is_back(page: Watched, fake: Fake) -> None:
    fake.is_down = True
    page.page.wait_for_selector("#conn[data-s=disconnected]")
    page.wait(lambda: "s old" in page.page.locator("#conn").inner_text(), "the age")
    assert page.page.locator("main").get_attribute("data-stale") is not None
    fake.put(active(8, "129"))
    fake.is_down = False
    page.page.wait_for_selector("#conn[data-s=live]")
    page.wait(lambda: verdict(page).startswith("129 is active"), "what happened meanwhile")
    assert page.page.locator("main").get_attribute("data-stale") is None
    assert all("503" in complaint for complaint in page.complaints)


def test_cancelling_is_asked_for_once_more(page: Watched, fake: Fake) -> None:
    page.page.click("#cancel")
    assert "128 is served on" in page.page.locator("#confirm").inner_text()
    page.page.click("#confirm-no")
    assert fake.asked == []
    page.page.click("#cancel")
    page.page.click("#confirm-yes")
    page.wait(lambda: verdict(page).startswith("129 was cancelled"), "the end")
    assert fake.asked == ["cancel u-8"]
    assert not page.page.locator("#cancel").is_visible()
    assert page.complaints == []


def test_rolling_back_is_offered_while_the_old_version_is_kept(page: Watched, fake: Fake) -> None:
    assert not page.page.locator("#rollback").is_visible()
    fake.put(active(8, "129", can_roll_back=True))
    page.page.wait_for_selector("#rollback:visible")
    page.page.click("#rollback")
    assert "Put 128 back in place of 129?" in page.page.locator("#confirm").inner_text()
    page.page.click("#confirm-yes")
    page.wait(lambda: verdict(page).startswith("129 was rolled back by request"), "the end")
    assert fake.asked == ["rollback u-8"]


@pytest.mark.parametrize(
    ("status", "slug", "detail", "fix", "words"),
    [
        (401, "unauthorized", "this needs the key", None, "-H 'Authorization: Bearer KEY'"),
        (409, "not-idle", "update u-8 is switching", "roll it back", "What to do: roll it back."),
        (412, "version-conflict", "expected 127, found 128", None, "Expected 127, found 128."),
    ],
)
def test_a_refusal_is_told_in_words(
    page: Watched, fake: Fake, status: int, slug: str, detail: str, fix: str | None, words: str
) -> None:
    fake.refuse(status, slug, detail, **({"fix": fix} if fix else {}))
    page.page.click("#cancel")
    page.page.click("#confirm-yes")
    page.page.wait_for_selector("#confirm-error:visible")
    assert words in page.page.locator("#confirm-error").inner_text()
    assert page.page.locator("#confirm").is_visible()
    # Chromium itself reports the refusal
    assert all(str(status) in complaint for complaint in page.complaints)


def test_a_push_to_a_real_server_is_followed_to_its_end(browser: Browser, tmp_path: Path) -> None:
    """A trainer pushes twice: once all tensors, once without a half of each pair."""
    model = write_golden_checkpoint("v32-fp8-block", tmp_path / "model")
    weights = changed(weights_of(model))
    with (
        listening(tmp_path / "state", model) as server,
        watched(browser, server.url) as page,
        Client(server.url) as client,
    ):
        opened(page)
        page.wait(lambda: verdict(page).startswith("u-1 is active"), "the first weights")
        push(page, client, weights)
        with client.update(version="2") as upload:
            upload.send({name: weights[name] for name in weights if HALF not in name})
            page.wait(lambda: "wait; 1 serves" in verdict(page), "the halves that wait")
            assert page.page.locator("#open-groups > li").count() > 0
        page.wait(lambda: verdict(page).startswith("2 was cancelled"), "the end of the second")
        page.open("ui/loads")
        page.page.wait_for_selector("#served:has-text('weights 1')")
        assert page.complaints == []
        assert page.hosts == {urlsplit(server.url).netloc}


def push(page: Watched, client: Client, weights: Weights) -> None:
    with client.update(version="1") as upload:
        upload.send(weights)
        page.wait(lambda: verdict(page).startswith("1 is receiving"), "the update to be opened")
        upload.commit()
    page.wait(lambda: verdict(page).startswith("1 is active"), "the switch", 40)
    assert "all checksums agree and read back equal" in verdict(page)
    assert page.page.locator(".change .coverage").count() == 1
    assert page.page.locator("#digest").inner_text() == upload.overall
