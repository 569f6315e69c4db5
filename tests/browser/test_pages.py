"""Every page: it loads in silence, fits a phone, is accessible in light and dark, and keeps its budget."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from playground.lab import discover, folders
from tests.browser.chromium import open_page
from tests.browser.measure import cold_bytes, run_and_wait
from tests.shell.serving import Server

SLUGS = [*discover(folders()), "sample"]


@pytest.mark.parametrize("slug", ["", *SLUGS])
def test_a_page_loads_in_silence_and_within_its_budget(browser: Browser, server: Server, slug: str) -> None:
    total, watch = cold_bytes(browser, server.address + slug)
    assert watch.messages == []
    assert watch.strangers == []
    charts = slug in SLUGS[:-1] and discover(folders())[slug].charts
    assert total < (2_000_000 if charts else 700_000)


@pytest.mark.parametrize("slug", ["", *SLUGS])
def test_nothing_scrolls_sideways_on_a_phone(browser: Browser, server: Server, slug: str) -> None:
    page = open_page(browser, server.address + slug, viewport={"width": 390, "height": 844})
    if slug == "sample":
        run_and_wait(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("slug", ["", *SLUGS])
def test_axe_finds_nothing_serious(browser: Browser, server: Server, slug: str, scheme: str) -> None:
    page = open_page(browser, server.address + slug, color_scheme=scheme)
    if slug:
        page.locator("#run:not([disabled])").wait_for()
    if slug == "sample":
        run_and_wait(page)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_function("document.getAnimations().every(a => a.playState !== 'running')")  # colours half faded in
    found = Axe().run(page).response["violations"]
    serious = [
        (v["id"], [node["html"][:160] for node in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.context.close()


def test_the_home_page_leads_to_every_lab(page: Page, server: Server) -> None:
    page.goto(server.address)
    page.locator("a.card").first.wait_for()
    assert [a.get_attribute("href") for a in page.locator("a.card").all()] == [f"./{slug}" for slug in SLUGS]
    page.get_by_role("link", name="Sample lab").click()
    page.locator("h1", has_text="Sample lab").wait_for()
    page.get_by_role("link", name="Decoding Playground").click()
    page.locator("a.card").first.wait_for()
