"""The cards of an order: keys and mouse move them, the text box follows, a card in a picture runs the lab again."""

from __future__ import annotations

from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from tests.browser.chromium import open_page
from tests.shell.serving import Server

LETTERS = "items => items.map(item => item.dataset.letter).join('')"


def cards(page: Page, place: str) -> str:
    return page.locator(f"{place}[data-order=order_a] > .card").evaluate_all(LETTERS)


def place_of(card: Locator) -> FloatRect:
    """Where ``card`` is; cards are drawn anew when their text box answers."""
    card.page.wait_for_timeout(200)
    for _ in range(100):
        if (box := card.bounding_box()) is not None:
            return box
        card.page.wait_for_timeout(50)
    raise AssertionError("the card is not shown")


def test_cards_move_by_key_and_by_mouse(browser: Browser, server: Server) -> None:
    page = open_page(browser, server.address + "sampling_order?preset=reference")
    box = page.locator("#param-order_a :is(input, textarea)")
    card = page.locator("ol.order[data-order=order_a] > .card")
    expect(card).to_have_count(3)
    assert (box.input_value(), cards(page, "ol.order")) == ("KPT", "KPT")
    card.first.focus()
    page.keyboard.press("ArrowRight")
    expect(box).to_have_value("PKT")
    assert page.evaluate("document.activeElement.dataset.letter") == "K"
    grip, goal = place_of(card.last), place_of(card.first)
    page.mouse.move(grip["x"] + 20, grip["y"] + 8)
    page.mouse.down()
    page.mouse.move(goal["x"] + 5, goal["y"] + 8, steps=12)
    page.mouse.up()
    expect(box).to_have_value("TPK")
    assert cards(page, "ol.order") == "TPK"
    box.fill("top_k, temperature, top_p")
    expect(card.first).to_have_attribute("data-letter", "K")
    page.context.close()


def test_a_card_in_a_picture_runs_again_and_keeps_step_and_focus(browser: Browser, server: Server) -> None:
    page = open_page(browser, server.address + "sampling_order?preset=reference&run=1&step=2")
    pictured = page.locator(".picture [data-order=order_a] > .card")
    expect(pictured).to_have_count(3, timeout=60_000)
    page.locator("#run:not([disabled])").wait_for()
    pictured.first.focus()
    page.keyboard.press("End")
    expect(page.locator("#param-order_a :is(input, textarea)")).to_have_value("PTK")
    page.wait_for_function("document.querySelector('#figures').innerText.includes('PTK')")
    page.wait_for_function("document.activeElement?.dataset.letter === 'K'")
    assert cards(page, ".picture ") == "PTK"
    page.context.close()
