"""Headless Chromium: the one named by PLAYGROUND_CHROMIUM, or on the PATH, or Playwright's own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import Error as BrowserError

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


class NoBrowser(RuntimeError):
    """There is no Chromium to drive; the message says what to install."""


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Raises ``NoBrowser``."""
    path = os.environ.get("PLAYGROUND_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        except BrowserError as error:
            reason = str(error).splitlines()[0]
            raise NoBrowser(
                f"No Chromium starts ({reason}): install chromium, or name one in PLAYGROUND_CHROMIUM."
            ) from None
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What a page said on its console, and which other hosts it asked."""

    def __init__(self, page: Page, address: str) -> None:
        self.messages: list[str] = []
        self.strangers: list[str] = []
        page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("request", lambda request: self._note(request.url, address))

    def _note(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            self.strangers.append(url)


def open_page(browser: Browser, url: str, **context: object) -> Page:
    """A page in a context of its own, loaded, its controls there."""
    page = browser.new_context(**context).new_page()
    page.goto(url)
    page.locator("h1").wait_for(timeout=60_000)
    return page
