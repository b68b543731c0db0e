"""A headless Chromium whose console, errors and requests are all kept."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def executable() -> str | None:
    """The system's Chromium; None leaves the choice to Playwright's own."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skipped where there is no Chromium; in CI that is a failure."""
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=executable(), args=FLAGS)
        except Exception as error:
            message = f"no Chromium to test the pages with: {str(error).splitlines()[0]}"
            if os.environ.get("CI"):
                raise AssertionError(message) from error
            pytest.skip(message)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page and all it said and asked for."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> None:
        self.page.goto(self.url + path.lstrip("/"))

    def total(self, name: str) -> float:
        """A number the page shows, as the machine-readable twin gives it."""
        value = self.page.locator(f"[data-total={name}]").first.get_attribute("data-value")
        assert value is not None, name
        return float(value)

    def status(self) -> str:
        return str(self.page.locator("#status").get_attribute("data-status"))

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Poll from here: a function inside the page would need what its policy forbids."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s for {what}"
            self.page.wait_for_timeout(50)


@contextmanager
def watched(browser: Browser, url: str, **context: Any) -> Iterator[Watched]:
    """A page in a context of its own, 1440 pixels wide unless said otherwise."""
    opened = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **context})
    try:
        yield Watched(opened.new_page(), url)
    finally:
        opened.close()
