"""The lab on counters as a person uses it: pasted scrapes, a rejected window, and this app while a run goes on."""

from __future__ import annotations

import re

from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.browser.measure import run_and_wait
from tests.shell.serving import Server


def test_a_preset_shows_the_figures_that_it_claims(page: Page, server: Server) -> None:
    page.goto(server.address + "acceptance_metrics?preset=discarded")
    run_and_wait(page)
    expect(page.locator(".figures")).to_contain_text("114")
    expect(page.locator(".figures")).to_contain_text("3.535")
    expect(page.locator(".figures")).to_contain_text("3.511")


def test_a_rejected_window_says_why(page: Page, server: Server) -> None:
    page.goto(server.address + "acceptance_metrics?preset=regrown")
    run_and_wait(page)
    page.keyboard.press("Home")
    statuses = set()
    while page.locator(".player .next").is_enabled():
        statuses.add(page.locator(".player > .status").inner_text())
        page.keyboard.press("ArrowRight")
    assert any("is rejected whole" in status for status in statuses), statuses
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_this_app_is_read_while_a_run_goes_on(page: Page, server: Server) -> None:
    page.goto(server.address + "acceptance_metrics?scrapes=4&every_s=0.5")
    page.locator("#run:not([disabled])").wait_for()
    job = Client(server.address, verbose=False).submit(preset="", pause=0.4, cap=30, k=1, api_name="/sample")
    run_and_wait(page)
    assert not job.done()  # the run outlasts the scrapes
    job.cancel()
    seen = []
    while page.locator(".player .prev").is_enabled():
        seen.append(page.locator(".picture").inner_text())
        page.keyboard.press("ArrowLeft")
    assert any(re.search(r"generation tokens, after the stop\s+[1-9]", text) for text in seen), seen
