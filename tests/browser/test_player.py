"""Run, step, stop, share, save and open; and hostile tokens appear as what they are."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.measure import run_and_wait, step_times
from tests.shell.sample import HOSTILE
from tests.shell.serving import Server


def visit(page: Page, address: str) -> None:
    """Open an address and wait until the page has filled its controls: it sets its title then."""
    page.goto("about:blank")
    page.goto(address)
    expect(page).to_have_title("Sample lab · Decoding Playground", timeout=30_000)


@pytest.fixture
def sample(page: Page, server: Server) -> Page:
    visit(page, server.address + "sample")
    return page


def count(page: Page) -> tuple[int, int]:
    at, of = re.findall(r"\d+", page.locator(".player .count").inner_text())
    return int(at), int(of)


def test_before_the_first_run_the_player_invites(sample: Page) -> None:
    expect(sample.locator(".player .invite")).to_contain_text("Press Run")
    expect(sample.locator(".player .seek")).to_be_disabled()
    expect(sample.locator("#stop")).to_be_disabled()


def test_arrows_home_end_and_space_step_without_a_request(sample: Page) -> None:
    run_and_wait(sample)
    requests: list[str] = []
    sample.on("request", lambda request: requests.append(request.url))
    at, of = count(sample)
    assert at == of > 3
    sample.keyboard.press("Home")
    expect(sample.locator(".player .count")).to_have_text(f"1 of {of}")
    sample.keyboard.press("ArrowRight")
    sample.keyboard.press("ArrowRight")
    expect(sample.locator(".player .count")).to_have_text(f"3 of {of}")
    expect(sample.locator(".player > .status b")).to_have_text("Step 3.")
    expect(sample.locator(".player .seek")).to_have_attribute("aria-valuetext", re.compile(f"^Step 3 of {of}: Step 3"))
    sample.keyboard.press("ArrowLeft")
    expect(sample.locator(".player .count")).to_have_text(f"2 of {of}")
    assert "step=2" in sample.url
    sample.evaluate("document.activeElement.blur()")
    sample.keyboard.press("Space")
    expect(sample.get_by_label("Pause")).to_be_visible()
    expect(sample.locator(".player .count")).to_have_text(f"3 of {of}")
    sample.keyboard.press("Space")
    expect(sample.get_by_label("Play", exact=True)).to_be_visible()
    sample.keyboard.press("End")
    assert count(sample) == (of, of)
    assert requests == []


def test_keys_in_a_text_box_belong_to_it(sample: Page) -> None:
    run_and_wait(sample)
    before = count(sample)
    sample.locator("#param-prompt textarea").focus()
    sample.keyboard.press("ArrowLeft")
    sample.keyboard.press("Home")
    assert count(sample) == before


def test_the_range_input_moves_the_player(sample: Page) -> None:
    run_and_wait(sample)
    sample.locator(".player .seek").focus()
    sample.keyboard.press("Home")
    assert count(sample)[0] == 1
    sample.keyboard.press("ArrowRight")
    assert count(sample)[0] == 2


def test_a_step_is_fast(sample: Page) -> None:
    run_and_wait(sample)
    assert min(step_times(sample)) < 10  # the machine may be busy with other tests


def test_hover_and_focus_show_the_figures_of_a_token(sample: Page) -> None:
    run_and_wait(sample)
    token = sample.locator(".picture [data-detail]").first
    token.hover()
    expect(sample.locator(".picture .detail")).to_contain_text("p = 0.")
    sample.mouse.move(0, 0)
    sample.keyboard.press("ArrowLeft")
    expect(sample.locator(".picture .detail")).to_have_text("")
    sample.locator(".picture [data-detail]").first.focus()
    expect(sample.locator(".picture .detail")).to_contain_text("p = 0.")


def test_hostile_tokens_appear_as_what_they_are(sample: Page) -> None:
    sample.locator("#param-prompt textarea").fill("".join(HOSTILE))
    seen: set[str] = set()
    for seed in (3, 4, 5):
        sample.locator("#param-seed input[type=number]").fill(str(seed))
        run_and_wait(sample)
        of = count(sample)[1]
        for _ in range(of):
            tokens = sample.locator(".picture .tok")
            seen |= {tokens.nth(i).evaluate("e => e.textContent") for i in range(tokens.count())}
            for i in range(tokens.count()):
                tokens.nth(i).hover()
            sample.keyboard.press("ArrowLeft")
        visit(sample, sample.url)
    assert seen <= set(HOSTILE)
    assert len(seen) >= 5
    assert sample.evaluate("window.hacked") is None
    assert sample.locator(".player img").count() == 0


def test_stop_ends_the_run_and_keeps_what_it_has_reached(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?pause=0.3&cap=40&run=1")
    before = len(server.ended(0.3))
    expect(sample.locator(".player .count")).to_have_text(re.compile("of [3-9]"))
    sample.locator("#stop").click()
    expect(sample.locator(".player > .status")).to_contain_text("Stopped.")
    expect(sample.locator("#run")).to_be_enabled()
    expect(sample.locator("#figures")).to_contain_text("output tokens")
    give_up = time.monotonic() + 10
    while len(server.ended(0.3)) == before and time.monotonic() < give_up:
        time.sleep(0.1)
    assert len(server.ended(0.3)) == before + 1
    assert count(sample)[1] < 15
    with sample.expect_download() as download:
        sample.get_by_role("button", name="Save this run").click()
    assert json.loads(Path(download.value.path()).read_text())["provenance"]["lab"] == "sample"


def test_closing_the_page_ends_the_run(browser: Browser, server: Server) -> None:
    before = len(server.ended(0.5))
    page = browser.new_page()
    page.goto(server.address + "sample?pause=0.5&cap=40&run=1")
    expect(page.locator(".player .count")).to_have_text(re.compile("of [2-9]"), timeout=30_000)
    page.close()
    give_up = time.monotonic() + 20
    while len(server.ended(0.5)) == before and time.monotonic() < give_up:
        time.sleep(0.1)
    assert server.ended(0.5)[-1] < 12


def test_streaming_follows_until_the_user_steps_back(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?pause=0.2&cap=40&run=1")
    expect(sample.locator(".player .count")).to_have_text(re.compile("of [3-9]$"))
    sample.keyboard.press("Home")
    expect(sample.locator("#run")).to_be_enabled()
    at, of = count(sample)
    assert at == 1
    assert of > 6


def test_the_address_keeps_the_state_over_a_reload(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?hide=seed,rule")
    sample.locator("#param-k input[type=number]").fill("6")
    sample.locator("#param-prompt textarea").fill("`{{value}}")
    sample.get_by_text("More", exact=True).click()
    sample.get_by_label("blue").check()
    run_and_wait(sample)
    expect(sample).to_have_url(re.compile(r"k=6&marks=blue"))
    sample.reload()
    sample.get_by_text("More", exact=True).click()
    expect(sample.get_by_label("blue")).to_be_checked()
    expect(sample.get_by_label("red")).not_to_be_checked()
    expect(sample.locator("#param-k input[type=number]")).to_have_value("6")
    expect(sample.locator("#param-prompt textarea")).to_have_value("`{{value}}")
    expect(sample.locator("#param-seed")).to_be_hidden()
    assert "hide=seed%2Crule" in sample.url


def test_a_bad_value_in_the_address_is_told_and_nothing_runs(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?k=99&seed=5&run=1")
    expect(sample.get_by_role("alert")).to_contain_text("k must lie between 1 and 8")
    expect(sample.locator("#param-k input[type=number]")).to_have_value("3")
    expect(sample.locator("#param-seed input[type=number]")).to_have_value("5")
    expect(sample.locator(".player .invite")).to_be_visible()


def test_an_error_keeps_the_last_result(sample: Page) -> None:
    run_and_wait(sample)
    before = count(sample)
    sample.locator("#param-prompt textarea").fill("unknown words")
    sample.locator("#run").click()
    expect(sample.get_by_role("alert")).to_contain_text("The table model knows only")
    expect(sample.locator("#run")).to_be_enabled()
    assert count(sample) == before
    expect(sample.locator(".player > .progress")).to_be_hidden()
    sample.keyboard.press("Escape")


def refuse(page: Page) -> None:
    page.get_by_role("button", name="More").click()
    page.locator("#param-lengths input, #param-lengths textarea").first.fill("9,9")
    page.locator("#run").click()
    expect(page.get_by_role("alert")).to_contain_text("lengths must lie")
    expect(page.locator(".player > .progress")).to_be_hidden()


def test_a_refused_first_run_leaves_the_invitation(sample: Page) -> None:
    refuse(sample)
    expect(sample.locator(".player .invite")).to_contain_text("Press Run")


def test_a_refused_run_leaves_the_last_one_and_its_save(sample: Page) -> None:
    run_and_wait(sample)
    before = count(sample)
    refuse(sample)
    assert count(sample) == before
    with sample.expect_download():
        sample.get_by_role("button", name="Save this run").click()


def test_stop_before_the_first_step_takes_the_progress_away(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?delay=4&run=1")
    expect(sample.locator(".player > .progress")).to_contain_text("Preparing")
    sample.locator("#stop").click()
    expect(sample.locator("#run")).to_be_enabled()
    expect(sample.locator(".player > .progress")).to_be_hidden()


def test_run_pressed_at_once_runs_what_the_address_says(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?k=1&seed=7")
    sample.locator("#run").click()
    expect(sample.locator(".player .count")).to_have_text(re.compile("of"))
    expect(sample.locator("#run")).to_be_enabled()
    assert "k=1" in sample.url
    assert "seed=7" in sample.url


def test_a_step_in_the_address_that_is_no_whole_number_still_steps(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?step=1.5&run=1")
    expect(sample.locator(".player .count")).to_have_text(re.compile("of"))
    expect(sample.locator("#run")).to_be_enabled()
    sample.keyboard.press("Home")
    sample.keyboard.press("ArrowRight")
    assert count(sample)[0] == 2


def test_a_preset_fills_the_controls_and_its_answer_opens_it(sample: Page) -> None:
    sample.locator("#preset input").click()
    sample.get_by_role("option", name="Slow <b>motion</b>").click()
    expect(sample.locator("#param-k input[type=number]")).to_have_value("2")
    expect(sample.locator(".preset-note")).to_have_text("Watch k.")
    sample.locator("details.ask summary").first.click()
    expect(sample.get_by_role("link", name="See it run: Slow <b>motion</b>")).to_have_attribute(
        "href", "?preset=slow&run=1"
    )


def test_the_panel_copies_the_run_in_three_ways(sample: Page, server: Server) -> None:
    visit(sample, server.address + "sample?k=5")
    run_and_wait(sample)
    sample.get_by_role("button", name="Copy this run").click()
    expect(sample.locator("#share-link textarea, #share-link input")).to_have_value(f"{server.address}sample?k=5")
    expect(sample.locator("#share-command textarea, #share-command input")).to_have_value(
        "python -m playground run sample --set k=5 --json"
    )
    expect(sample.locator("#share-api textarea")).to_have_value(re.compile(r"k=5,\n    api_name='/sample'"))


def test_a_saved_run_opens_without_running(sample: Page, server: Server, tmp_path: Path) -> None:
    visit(sample, server.address + "sample?k=5")
    run_and_wait(sample)
    shown = count(sample)
    with sample.expect_download() as download:
        sample.get_by_role("button", name="Save this run").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    runs = len(server.ended(0))
    visit(sample, server.address + "sample")
    sample.locator(".player .file").set_input_files(file)
    expect(sample.locator(".player .count")).to_have_text(f"{shown[0]} of {shown[1]}")
    expect(sample.locator("#param-k input[type=number]")).to_have_value("5")
    expect(sample.locator("#figures")).to_contain_text("output tokens")
    assert len(server.ended(0)) == runs


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nonsense", "not JSON"),
        ("{}", "not a trace of this app"),
        ('{"format": "decoding-playground-trace/1", "lanes": [], "texts": {}, "provenance": {"lab": "x"}}', "lab 'x'"),
        ('{"format": "decoding-playground-trace/1", "lanes": 3, "texts": {}}', "damaged"),
    ],
)
def test_a_file_that_is_no_run_is_told(sample: Page, tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    sample.locator(".player .file").set_input_files(file)
    expect(sample.get_by_role("alert")).to_contain_text(word)


def test_with_reduced_motion_nothing_moves_by_itself(browser: Browser, server: Server) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(server.address + "sample")
    page.locator("#run").wait_for()
    run_and_wait(page)
    assert count(page)[0] == 1
    context.close()
