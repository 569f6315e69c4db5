"""The lab of adaptive draft lengths: frames that stay, the real lane, what it refuses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.load import Models
from playground.engine.timing import PassTime
from playground.engine.trace import Trace
from playground.lab import ROOT, BadInput, execute, read_params, read_presets
from playground.labs.adaptive_length import LAB, LONGEST, Params, measured_costs

TABLE = read_presets(ROOT / "presets" / "adaptive_length.json")["table"].params


def traces(**changes) -> list[Trace]:
    params = read_params(Params, changes)
    return [update for update in execute(LAB, params, Models()) if isinstance(update, Trace)]


def test_frames_never_change_while_the_run_grows():
    seen: list[str] = []
    for trace in traces(**TABLE)[::7]:
        frames = [LAB.frame(trace, i).html for i in range(LAB.num_frames(trace))]
        assert frames[: len(seen)] == seen
        seen = frames


def test_a_saved_run_gives_the_same_page():
    trace = traces(**TABLE)[-1]
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert LAB.summary(again) == LAB.summary(trace)
    assert all(LAB.frame(again, i) == LAB.frame(trace, i) for i in range(LAB.num_frames(trace)))
    assert all(chart.draw(again) is not None for chart in LAB.charts)


def test_the_real_lane_changes_lengths_and_no_text():
    result = LAB.summary(traces(**TABLE)[-1])["real"]
    assert result["identical_output"]
    assert result["lanes"]["code, fixed"]["mean_k"] == 4
    assert result["lanes"]["code, controller"]["mean_k"] != 4
    assert LAB.summary(traces()[-1])["real"] is None


def test_figures_exist_before_the_first_block():
    assert len(LAB.figures(LAB.summary(Trace()))) == 5


def test_costs_between_the_timed_passes_are_straight_lines():
    timed = [PassTime(1, 50.0), PassTime(2, 60.0), PassTime(4, 100.0), PassTime(8, 100.0), PassTime(12, 120.0)]
    costs = measured_costs(timed, 0.0)
    assert costs[:5] == pytest.approx((1.0, 1.2, 1.6, 2.0, 2.0))
    assert len(costs) == LONGEST + 1
    assert costs[-1] == pytest.approx(2.4)
    assert measured_costs(timed, 0.1)[3] == pytest.approx(2.3)


@settings(max_examples=20)
@given(st.floats(0, 0.99), st.floats(0, 0.99), st.floats(0, 1), st.integers(0, 32), st.floats(0, 1), st.integers(1, 4))
def test_any_parameters_give_a_page_without_nan(code, chat, cost, k, share, batch):
    first = traces(alpha_code=code, alpha_chat=chat, cost=cost, fixed_k=k, share_code=share, batch=batch)[2]
    json.dumps(LAB.summary(first), allow_nan=False)
    assert LAB.frame(first, LAB.num_frames(first) - 1).status
    for chart in LAB.charts:
        chart.draw(first)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"alpha_code": 1.0}, "between 0 and 0.99"),
        ({"cost": -1}, "between 0"),
        ({"batch": 64}, "between 1 and 32"),
        ({"arrivals": "never"}, "one of in turn"),
        ({**TABLE, "chat_prompt": "zebra"}, "zebra"),
        ({"target": "table", "code_prompt": ""}, "code prompt is empty"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(changes, says):
    with pytest.raises(BadInput, match=says):
        traces(**changes)
