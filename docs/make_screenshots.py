"""Takes docs/screenshots/*.png of a demo: every page, light and dark, narrow and wide."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs" / "examples")]

from playwright.sync_api import Page, sync_playwright  # noqa: E402
from push_weights import demo_weights, trained  # noqa: E402
from support.browser import FLAGS, executable  # noqa: E402
from support.processes import Server, server  # noqa: E402
from torch import Tensor  # noqa: E402

from loadscope.app.client import Client, UpdateRefused  # noqa: E402

OUT = ROOT / "docs" / "screenshots"
SECONDS = 20
SIZES = {390: 844, 1440: 900}
THEMES = ("light", "dark")
NAME = "model.layers.3.self_attn.q_a_proj.weight"
HALVES = tuple(f"model.layers.{n}.self_attn.kv_a_proj_with_mqa.weight" for n in (3, 4))
VERSION = 128
POLL_MS = 100
SETTLE_MS = 700
GLIMPSE = 0.55


class Views:
    """The same page open in every theme and width at once."""

    def __init__(self, url: str, pages: dict[str, Page]) -> None:
        self.url, self.pages = url, pages

    def open(self, path: str, ready: str) -> None:
        for page in self.pages.values():
            page.goto(self.url + path)
        for page in self.pages.values():
            page.wait_for_selector(ready)
            page.wait_for_timeout(SETTLE_MS)

    def take(self, name: str) -> None:
        for view, page in self.pages.items():
            page.screenshot(path=OUT / f"{name}-{view}.png", full_page=True)

    def pause(self) -> None:
        next(iter(self.pages.values())).wait_for_timeout(POLL_MS)


@contextmanager
def views(url: str) -> Iterator[Views]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=FLAGS)
        pages = {}
        for theme in THEMES:
            for width, height in SIZES.items():
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=theme
                )
                pages[f"{theme}-{width}"] = context.new_page()
        yield Views(url, pages)
        browser.close()


def share(demo: Server) -> float:
    """How much of the newest load is done; 1 when it has ended."""
    newest = demo.get("/loads?limit=1")["items"][0]
    state = demo.get(f"/loads/{newest['id']}")["state"]
    done = state["bytes_done"] / max(1, state["bytes_total"])
    return 1.0 if state["finished_t"] is not None else min(done, 0.999)


def wait(demo: Server, shots: Views, wanted: float) -> None:
    while share(demo) < wanted:
        shots.pause()


def reload(demo: Server) -> None:
    body = json.dumps({"source": {"type": "disk", "path": "demo"}}).encode()
    headers = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{demo.url}reload", body, headers)).close()


def push(demo: Server, shots: Views) -> None:
    """One update while it comes and when it is served; then one without two halves."""
    weights = trained(demo_weights(), VERSION)
    halves = {name: weights.pop(name) for name in HALVES}
    with Client(demo.url) as client:
        with client.update(version=str(VERSION), bucket_bytes=8 << 20) as upload:
            upload.send(weights)
            shots.open("ui/updates", "#status[data-status=receiving]")
            shots.take("updates-receiving")
            upload.send(halves)
            upload.commit()
        shots.open("ui/updates", "#status[data-status=active] ~ .details .change canvas")
        shots.take("updates-active")
        push_without(client, weights)
    shots.open("ui/updates", "#status[data-status=failed]")
    shots.take("updates-failed")


def push_without(client: Client, weights: dict[str, Tensor]) -> None:
    try:
        with client.update(version=str(VERSION + 1)) as upload:
            upload.send(weights)
            upload.commit()
    except UpdateRefused:
        return
    raise AssertionError("an update without its halves counted")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with server("demo", "--seconds", str(SECONDS)) as demo, views(demo.url) as shots:
        shots.open("ui/", "#conn[data-s=live]")
        wait(demo, shots, GLIMPSE)
        shots.take("overview-loading")
        wait(demo, shots, 1.0)
        shots.open("ui/", "#status[data-status=finished]")
        shots.take("overview-done")
        shots.open(f"ui/mapping?name={quote(NAME)}", ".stations .events .name")
        shots.take("mapping")
        reload(demo)
        wait(demo, shots, 1.0)
        shots.open("ui/loads", "#loads tr")
        shots.take("loads")
        push(demo, shots)


if __name__ == "__main__":
    main()
