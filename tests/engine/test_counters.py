"""Counters and windows: core formulas, resets, sums before divisions, and what scrapes may throw at the parser."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.counters import Counts, account, figures
from playground.engine.scrape import Snapshot, parse, split
from playground.engine.windows import between, by_engine, increase, windows

LABELS = '{engine="0",model_name="m"}'


def scrape(drafts=0, draft_tokens=0, accepted=0, positions=(), generation=None, finished=None, start=None, engine="0"):
    labels = LABELS.replace('"0"', f'"{engine}"')
    lines = [
        f"vllm:spec_decode_num_drafts_total{labels} {drafts}",
        f"vllm:spec_decode_num_draft_tokens_total{labels} {draft_tokens}",
        f"vllm:spec_decode_num_accepted_tokens_total{labels} {accepted}",
    ]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{labels[:-1]},position="{i}"}} {n}' for i, n in enumerate(positions)]
    lines += [f"vllm:generation_tokens_total{labels} {generation}"] if generation is not None else []
    success = f'vllm:request_success_total{labels[:-1]},finished_reason="stop"}}'
    lines += [f"{success} {finished}"] if finished is not None else []
    lines += [f"process_start_time_seconds {start}"] if start is not None else []
    return "\n".join(lines) + "\n"


def read(*texts: str) -> list:
    return windows([parse(text) for text in texts])


def shown(found: list) -> dict:
    return figures(list(by_engine(found).values()))


# --- Formulas ---------------------------------------------------------------------------------------------------------


def test_core_formulas():
    found = shown(read(scrape(positions=(0,) * 4), scrape(10, 40, 26, (9, 7, 6, 4))))
    assert found["acceptance_rate"] == 0.65
    assert found["mean_acceptance_length"] == 3.6
    assert found["acceptance_per_position"] == [0.9, 0.7, 0.6, 0.4]
    assert found["conditional_per_position"] == pytest.approx([0.9, 0.778, 0.857, 0.667], abs=5e-4)


def test_public_totals_discard_114_tokens():
    found = figures([Counts(drafts=4816, accepted=12208, generation=16990, finished=80)])
    assert found["discarded_tokens"] == 114
    assert found["mean_acceptance_length"] == pytest.approx(3.535, abs=5e-4)
    assert found["mean_emitted_length"] == pytest.approx(3.511, abs=5e-4)


def test_no_drafts_is_no_data():
    found = shown(read(scrape(generation=0, finished=0), scrape(generation=12, finished=1)))
    assert found["acceptance_rate"] is found["mean_acceptance_length"] is found["mean_emitted_length"] is None
    assert found["acceptance_per_position"] is None
    assert (found["steps_low"], found["discarded_tokens"]) == (11, 0)


def test_end_of_sequence_inside_a_draft_shows_in_both_lengths():
    found = figures([Counts(drafts=1, accepted=5, generation=4, finished=1, per_position=(1,) * 5)])
    assert (found["mean_acceptance_length"], found["mean_emitted_length"], found["discarded_tokens"]) == (6, 3, 3)


def test_several_engines_are_summed_first():
    zero = scrape(engine="0") + scrape(engine="1")
    found = read(zero, scrape(5, 10, 8, engine="0") + scrape(45, 90, 1, engine="1"))
    assert shown(found)["acceptance_rate"] == 0.09
    assert [figures([c])["acceptance_rate"] for c in by_engine(found).values()] == pytest.approx([0.8, 1 / 90])


def test_an_engine_without_drafts_takes_nothing_from_the_others():
    plain = 'vllm:generation_tokens_total{engine="1",model_name="m"} '
    found = read(
        scrape(generation=0, finished=0) + plain + "0", scrape(2, 4, 2, generation=5, finished=1) + plain + "9"
    )
    assert shown(found)["acceptance_rate"] == 0.5
    assert shown(found)["mean_emitted_length"] == 2


# --- Resets -----------------------------------------------------------------------------------------------------------


def test_increase_is_promql_s():
    assert increase([0, 1, 2, 3, 2, 3, 4]) == 7
    assert increase([100, 120, 5, 30]) == 50


def test_a_fall_rejects_the_window_and_promql_patches_it():
    found = read(*(scrape(d, 4 * d, 2 * d) for d in (100, 120, 5, 30)))
    assert [window.reason is None for window in found] == [True, False, True]
    assert by_engine(found)["m, engine 0"].drafts == 45
    assert by_engine(found, patched=True)["m, engine 0"].drafts == 50


def test_a_restart_that_regrew_is_told_by_the_start_time():
    found = read(scrape(10, 40, 20, start=1), scrape(50, 200, 90, start=2))
    assert "started again" in found[0].reason
    assert shown(found)["acceptance_rate"] is None


@pytest.mark.parametrize("value", ["NaN", "-3", "+Inf", "1e300"])
def test_what_no_counter_can_be_rejects_both_windows(value):
    bad = scrape(2, 8, 4).replace("_total" + LABELS + " 2", "_total" + LABELS + " " + value, 1)
    found = read(scrape(1, 4, 2), bad, scrape(3, 12, 6))
    assert all("num_drafts" in window.reason for window in found)


def test_a_series_that_went_away_and_came_back_does_not_count_from_zero():
    short = scrape(12, 44, 20).split("\n", 1)[1]  # no drafts
    found = read(scrape(10, 40, 18, start=1), short + "process_start_time_seconds 1\n", scrape(14, 50, 24, start=1))
    assert "not in snapshot 2" in found[0].reason
    assert "is new in snapshot 3" in found[1].reason


def test_positions_may_begin_late_and_engines_may_not():
    found = read(scrape(5, 5, 0), scrape(6, 8, 2, (1, 1)))
    assert found[0].reason is None
    found = read(scrape(), scrape() + scrape(1, 1, 1, engine="1"))
    assert "engine 1 is new" in found[0].reason


def test_a_new_engine_of_the_same_process_began_at_zero():
    found = read(scrape(start=7), scrape(start=7) + scrape(1, 1, 1, engine="1"))
    assert found[0].reason is None
    assert shown(found)["acceptance_rate"] == 1


def test_one_scrape_counts_since_the_start():
    found = read(scrape(87, 259, 167, (70, 55, 42)))
    assert shown(found)["acceptance_rate"] == pytest.approx(0.64479, abs=5e-6)
    assert sum(shown(found)["acceptance_per_position"]) == pytest.approx(167 / 87)


def test_counters_that_contradict_each_other_are_rejected():
    assert "do not belong together" in read(scrape(), scrape(1, 4, 9))[0].reason


# --- Parser -----------------------------------------------------------------------------------------------------------


def test_names_with_and_without_total_and_created_series():
    text = scrape(10, 40, 26, (9, 7, 6, 4)).replace("_total", "")
    created = "vllm:spec_decode_num_drafts_created" + LABELS + " 1.7e9\n"
    assert parse(text + created) == parse(scrape(10, 40, 26, (9, 7, 6, 4)))
    assert parse(scrape(1, 2, 1).replace("vllm:", "vllm_")) == parse(scrape(1, 2, 1))


def test_both_spellings_in_one_scrape_count_once():
    text = scrape(10, 40, 26)
    assert parse(text + text.replace("_total", "")) == parse(text)


def test_two_scrapes_without_a_line_between_are_refused():
    with pytest.raises(ValueError, match="line --- between"):
        parse(scrape(1) + scrape(2))
    assert len(split(scrape(1) + "\r\n ---\r\n" + scrape(2) + "---")) == 2


def test_sglang_counts_verifications_and_its_gauges_stand_apart():
    def text(calls, tokens, requests, length):
        counters = zip(
            ("spec_verify_calls", "generation_tokens", "num_requests"), (calls, tokens, requests), strict=True
        )
        lines = [f'sglang:{name}_total{{model_name="m"}} {value}' for name, value in counters]
        return "\n".join([*lines, f'sglang:spec_accept_length{{model_name="m"}} {length}'])

    found = read(text(1000, 3120, 20, 3.1), text(1500, 4530, 30, 2.4))
    assert found[0].gauges == (("m", "sglang:spec_accept_length", 2.4),)
    assert shown(found)["mean_emitted_length"] == 2.8
    assert shown(found)["acceptance_rate"] is shown(found)["discarded_tokens"] is None


@given(st.text(max_size=200), st.integers(0, 400))
def test_hostile_and_truncated_text_never_breaks_the_parser(text, cut):
    for each in (text, scrape(3, 12, 7, (3, 2, 2), 11, 1)[:cut], "vllm:generation_tokens_total{" + text):
        with contextlib.suppress(ValueError):  # a series that stands twice
            assert isinstance(parse(each), Snapshot)


# --- Algebra ----------------------------------------------------------------------------------------------------------


@st.composite
def growths(draw, most=6):
    """Counts of windows that a server may have seen: accepted within draft tokens, positions that do not rise."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        per_position = sorted(draw(st.lists(st.integers(0, 20), min_size=3, max_size=3)), reverse=True)
        drafts = draw(st.integers(per_position[0], 30))
        found.append((drafts, 3 * drafts, sum(per_position), tuple(per_position)))
    return found


def scrapes_of(grown):
    at = (0, 0, 0, (0, 0, 0))
    texts = [scrape(*at)]
    for drafts, tokens, accepted, places in grown:
        sums = tuple(a + b for a, b in zip(at[3], places, strict=True))
        at = (at[0] + drafts, at[1] + tokens, at[2] + accepted, sums)
        texts.append(scrape(*at))
    return texts


@given(growths())
def test_windows_add_up_to_the_window_around_them(grown):
    texts = scrapes_of(grown)
    found = read(*texts)
    assert all(window.reason is None for window in found)
    assert by_engine(found) == by_engine(read(texts[0], texts[-1])) == by_engine(found, patched=True)
    rate = shown(found)["acceptance_rate"]
    sums = [sum(each[i] for each in grown) for i in (1, 2)]
    assert rate == (sums[1] / sums[0] if sums[0] else None)


@given(growths(), growths())
def test_a_restart_costs_its_own_window_and_no_other(first, second):
    before, after = (scrapes_of(each) for each in (first, second))
    texts = [text + f"process_start_time_seconds {i}\n" for i, run in enumerate((before, after)) for text in run]
    found = read(*texts)
    assert [i for i, window in enumerate(found) if window.reason] == [len(first)]
    grown = [*first, *second]
    assert by_engine(found)["m, engine 0"].accepted == sum(each[2] for each in grown)


@given(growths())
def test_figures_stay_in_their_bounds(grown):
    found = shown(read(*scrapes_of(grown)))
    if found["acceptance_rate"] is None:
        return
    assert 0 <= found["acceptance_rate"] <= 1
    assert 1 <= found["mean_acceptance_length"] <= 4
    assert sum(found["acceptance_per_position"]) == pytest.approx(found["mean_acceptance_length"] - 1)
    assert all(0 <= rate <= 1 for rate in found["conditional_per_position"] if rate is not None)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(1, 5)), min_size=1, max_size=6)
)
def test_the_bracket_holds_what_really_happened(requests):
    """Requests whose passes accepted so many of 4 drafts each (0: a step without a draft), and a last one cut short."""
    drafts = [n for request, _ in requests for n in request if n]
    plain = sum(n == 0 for request, _ in requests for n in request)
    cut = sum(max(0, request[-1] + 1 - kept) for request, kept in requests)
    counts = Counts(
        drafts=len(drafts),
        draft_tokens=4 * len(drafts),
        accepted=sum(drafts),
        generation=len(requests) + plain + len(drafts) + sum(drafts) - cut,
        first_tokens=len(requests),
        finished=len(requests),
        per_position=tuple(sum(n > i for n in drafts) for i in range(4)),
    )
    found = account(counts)
    assert found.discarded_low <= cut <= found.discarded_high
    assert found.steps_low <= plain + len(drafts) <= found.steps_high
    exact = account(Counts(**{**vars(counts), "plain_passes": plain + len(requests)}))
    assert exact.discarded_low == exact.discarded_high == cut
    assert not math.isnan(found.steps_high)


def test_between_names_the_snapshots_it_stands_between():
    window = between(parse(scrape(5)), parse(scrape(3)), 4)
    assert window.index == 4
    assert "fell from 5 to 3" in window.reason
