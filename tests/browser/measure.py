"""Budgets of the pages, measured in headless Chromium: cold bytes, and the time of a step in the player."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page

from playground.lab import discover, folders
from tests.browser.chromium import NoBrowser, Watch, open_browser
from tests.shell.serving import serve

STEP_MS = """() => {
  const next = document.querySelector(".player .next"), first = document.querySelector(".player .prev");
  const step = (button) => {
    const began = performance.now();
    button.click();
    document.body.offsetHeight;
    return performance.now() - began;
  };
  const times = [];
  while (!first.disabled) times.push(step(first));
  while (!next.disabled) times.push(step(next));
  return times;
}"""


def cold_bytes(browser: Browser, url: str) -> tuple[int, Watch]:
    """Bytes over the network for a first visit, all requests together, and what the page said."""
    page = browser.new_context().new_page()
    watch = Watch(page, url.split("/", 3)[0] + "//" + url.split("/", 3)[2] + "/")
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(url)
    page.locator("h1").wait_for(timeout=60_000)
    while True:  # the page keeps one request open for good, so wait until a second passes without another
        seen = len(sizes)
        page.wait_for_timeout(1000)
        if len(sizes) == seen:
            break
    page.context.close()
    return int(sum(sizes)), watch


def step_times(page: Page, rounds: int = 5) -> list[float]:
    """Milliseconds of each step, layout included, back to the start and forward to the end; needs a finished run.

    Of each step the fastest of ``rounds``: what is longer is another process's share of the processor.
    """
    return [min(times) for times in zip(*(page.evaluate(STEP_MS) for _ in range(rounds)), strict=True)]


def run_and_wait(page: Page, timeout_s: float = 300) -> None:
    """Press Run and wait until it has ended."""
    page.locator("#run").click()
    page.locator(".player .count").filter(has_text="of").wait_for(timeout=1000 * timeout_s)
    page.locator("#run:not([disabled])").wait_for(timeout=1000 * timeout_s)


def measure_pages() -> Iterator[Any]:
    """The lines of the benchmark: each lab's page cold, and the slowest step of its default run."""
    from playground.bench import Line, at_most

    try:
        with open_browser() as browser, serve() as server:
            for lab in discover(folders()).values():
                total, watch = cold_bytes(browser, server.address + lab.slug)
                yield at_most(f"{lab.slug}: page, cold", total / 1000, "KB", 2000 if lab.charts else 700)
                yield at_most(f"{lab.slug}: requests to other hosts", float(len(watch.strangers)), "", 0)
                yield at_most(f"{lab.slug}: console messages", float(len(watch.messages)), "", 0)
                page = browser.new_page()
                page.goto(server.address + lab.slug)
                run_and_wait(page)
                yield at_most(
                    f"{lab.slug}: a step in the player, slowest", max(step_times(page), default=0.0), "ms", 10
                )
                page.close()
    except NoBrowser as error:
        yield Line("pages in a browser", None, "", note=str(error))
