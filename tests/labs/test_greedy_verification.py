"""The lab of greedy verification on the table model: equality with plain decoding, figures, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from models.load import Models
from playground.engine.trace import Lane, Trace
from playground.lab import Progress, read_params
from playground.labs import greedy_verification as lab_module
from playground.labs.greedy_verification import FORESIGHT, LAB

DRAFTERS = ("none", "ngram", "layer_skip", *FORESIGHT)
KEYS = {
    "other_ms",
    "conditional_per_position",
    "output_tokens",
    "tokens_per_second",
    "plain_tokens_per_second",
    "draft_ms",
    "acceptance_rate",
    "identical_to_plain",
    "first_divergence",
    "divergence_margin",
    "target_passes",
    "measured_speedup",
    "accepted_tokens",
    "finish_reason",
    "verify_ms",
    "mean_acceptance_length",
    "acceptance_per_position",
    "drafted_tokens",
}


@pytest.fixture(autouse=True)
def few_pass_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module, "PASS_SIZES", (1, 4))


def updates(**values: Any) -> Iterator[Trace]:
    params = read_params(LAB.params, {"target": "table", "prompt": "the cat", "max_new_tokens": 16, **values})
    return (update for update in LAB.run(params, Models()) if not isinstance(update, Progress))


def last(**values: Any) -> Trace:
    *_, trace = updates(**values)
    return trace


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("prompt", ["the cat", "a small bird sees the old dog and"])
def test_output_is_that_of_plain_decoding(drafter: str, k: int, prompt: str) -> None:
    found = LAB.summary(last(drafter=drafter, k=k, prompt=prompt))
    assert found["identical_to_plain"] is True
    assert (found["first_divergence"], found["divergence_margin"]) == (None, None)


def test_bonus_from_the_wrong_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lab_module.verify_greedy

    def off_by_one(draft: Any, p: Any, coin: Any, start: int) -> Any:
        verdict = right(draft, p, coin, start)
        row = min(len(verdict.path) + 1, len(p) - 1)
        return replace(verdict, token=int(p[row].argmax())) if draft else verdict

    monkeypatch.setattr(lab_module, "verify_greedy", off_by_one)
    found = LAB.summary(last(drafter="always_wrong"))
    assert found["identical_to_plain"] is False
    assert found["first_divergence"] is not None


def test_summary_has_its_keys_on_every_partial_trace() -> None:
    for trace in (Trace(), *updates(drafter="layer_skip")):
        assert set(LAB.summary(trace)) == KEYS
        assert LAB.figures(LAB.summary(trace))


def test_identity_is_open_until_both_lanes_have_ended() -> None:
    first, *_, end = updates(drafter="layer_skip")
    assert LAB.summary(first)["identical_to_plain"] is None
    assert LAB.summary(end)["identical_to_plain"] is True


def test_without_drafts_rates_are_undefined() -> None:
    found = LAB.summary(last(drafter="none"))
    assert found["acceptance_rate"] is None
    assert found["mean_acceptance_length"] is None
    assert found["acceptance_per_position"] == ()


def test_a_drafter_that_is_always_wrong_costs_no_token() -> None:
    found = LAB.summary(last(drafter="always_wrong"))
    assert found["accepted_tokens"] == 0
    assert found["target_passes"] == found["output_tokens"]


def test_the_oracle_reaches_the_ceiling() -> None:
    found = LAB.summary(last(drafter="oracle", k=3))
    assert found["acceptance_rate"] == 1.0
    assert found["target_passes"] == 4  # 16 tokens, four per pass


def test_frames_are_one_per_pass_and_one_of_the_whole() -> None:
    trace = last(drafter="layer_skip")
    assert LAB.num_frames(trace) == len(trace["speculative"].steps) + 1
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert all("<section" in frame.html for frame in frames)
    assert "Both lanes put out the same tokens." in frames[-1].html


def test_a_frame_of_a_step_stays_the_same_while_the_run_goes_on() -> None:
    traces = list(updates(drafter="layer_skip"))
    early = next(trace for trace in traces if len(trace["speculative"].steps) == 1)
    assert LAB.frame(early, 0) == LAB.frame(traces[-1], 0)


def test_where_outputs_part_is_told_with_margin_and_verdict() -> None:
    trace = last(drafter="ngram", k=2)
    lane = trace["speculative"]
    step = lane.steps[0]
    forged = replace(step, outputs=(replace(step.outputs[0], token=0), *step.outputs[1:]))
    changed = replace(trace, lanes=(Lane(lane.name, lane.prompt, (forged, *lane.steps[1:])), *trace.lanes[1:]))
    found = LAB.summary(changed)
    assert found["identical_to_plain"] is False
    assert found["first_divergence"] == 0
    assert "Verdict: bug" in LAB.frame(changed, 0).html


def test_charts_need_something_to_show() -> None:
    assert all(chart.draw(Trace()) is None for chart in LAB.charts)
    assert all(chart.draw(last(drafter="layer_skip")) is not None for chart in LAB.charts)
