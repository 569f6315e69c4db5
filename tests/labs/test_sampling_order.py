"""The sampling order lab: reference figures, edge cases that are answers, refusals in one sentence, frames."""

from __future__ import annotations

import json
import math

import pytest
import torch

from models.load import Models
from models.table import TableSession
from playground.engine.model import Scores
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params
from playground.labs.sampling_order import LAB

SIX = {
    "p": "0.40,0.25,0.15,0.10,0.06,0.04",
    "temperature": 2,
    "top_k": 4,
    "top_p": 0.7,
    "order_a": "KPT",
    "order_b": "TPK",
}
OFF = {"temperature": 1, "top_k": 0, "top_p": 1}


def traces(**raw) -> list[Trace]:
    updates = execute(LAB, read_params(LAB.params, raw), Models())
    return [update for update in updates if isinstance(update, Trace)]


def result(**raw) -> dict:
    return LAB.summary(traces(**raw)[-1])


def test_reference():
    found = result(**SIX)
    assert found["candidates_by_order"] == {"KPT": 2, "KTP": 3, "PKT": 3, "PTK": 3, "TKP": 3, "TPK": 4}
    assert found["laws_by_order"]["KPT"][:2] == pytest.approx((0.558, 0.442), abs=1e-3)
    assert found["engines"] == {"transformers": 3, "vLLM": 3, "llama.cpp": 2, "SGLang": 4}
    assert found["sets"] == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert found["only_some_orders"] == {"C": 5, "D": 1}
    assert found["logprobs"]["raw"][3] == pytest.approx(math.log(0.1))
    assert found["logprobs"]["order_a"][3] is None
    json.dumps(found, allow_nan=False)


def test_frames_name_what_removed_a_token_and_keep_it_visible():
    trace = traces(**SIX)[-1]
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert len(frames) == 1 + 3 + 2
    assert frames[1].status == "A: top-k cuts 2, 4 left; B: temperature cuts none, 6 left."
    assert frames[3].html.count("removed by K, top-k") == 2
    assert frames[3].html.count("removed by P, top-p") == 2 + 2
    assert all(f">{letter}</s>" in frames[3].html for letter in "CDEF")
    assert "3 different sets" in frames[4].status
    assert "raw" in frames[5].html
    assert LAB.charts[0].draw(trace) is not None
    assert Trace.from_json(trace.to_json()) == trace


def test_every_trace_of_a_stream_has_figures_and_frames():
    for trace in traces(**SIX):
        assert LAB.figures(LAB.summary(trace))
        assert [LAB.frame(trace, i).status for i in range(LAB.num_frames(trace))]


def test_lanes_of_different_length_end_each_at_its_own_step():
    trace = traces(**{**SIX, "order_a": "JT", "order_b": "KPT"})[-1]
    assert "A is done with 3 tokens" in LAB.frame(trace, 3).status
    assert LAB.summary(trace)["candidates_a"] == 3  # top-4 and the three that reach .7, on the same law


@pytest.mark.parametrize(
    ("knobs", "left"),
    [
        ({"temperature": 0}, 1),
        ({"temperature": 1e-7}, 1),
        ({"temperature": 1e-4}, 6),
        ({"top_p": 0}, 1),
        ({"top_p": 1}, 6),
        ({"top_k": -1}, 6),
        ({"top_k": 0}, 6),
        ({"top_k": 1}, 1),
        ({"top_k": 1000}, 6),
        ({"min_p": 1}, 1),
        ({"typical_p": 0}, 1),
        ({"top_n_sigma": 0}, 6),
    ],
)
def test_edges_are_answers(knobs, left):
    found = result(**{**SIX, **OFF, **knobs})
    assert found["candidates_a"] == found["candidates_b"] == left
    assert sum(found["law_a"]) == pytest.approx(1)


def test_typed_zero_is_never_a_candidate():
    found = result(**{**SIX, **OFF, "p": "0.5,0.5,0", "top_k": 3})
    assert found["candidates_a"] == 2
    assert found["logprobs"]["raw"][2] is None


def test_without_knobs_there_is_one_order_and_one_law():
    found = result(**{**SIX, **OFF})
    assert found["candidates_by_order"] == {"": 6}
    assert found["distance"] == 0


def test_knob_not_named_acts_last_and_the_page_says_so():
    trace = traces(**{**SIX, "order_a": "PT"})[-1]
    assert LAB.summary(trace)["order_a"] == "PTK"
    assert "applied last" in LAB.frame(trace, 0).html


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"p": "0.5,0.4"}, "sums to 0.9"),
        ({"p": "1"}, "1 token"),
        ({"p": ",".join(["0.05"] * 20)}, "20 tokens"),
        ({"p": "1.5,-0.5"}, "-0.5"),
        ({"p": "nan,1"}, "must be a number"),
        ({"p": "0,0"}, "sums to 0"),
        ({"top_p": 1.5}, "top_p must lie"),
        ({"top_p": -0.1}, "top_p must lie"),
        ({"top_k": -2}, "top_k must lie"),
        ({"temperature": "inf"}, "temperature"),
        ({"order_a": "KQ"}, "'Q'"),
        ({"order_b": "KK"}, "twice"),
        ({"p": "0.5,0.5", "history": "C"}, "A to B"),
        ({"target": "table", "prompt": "", "reply": ""}, "prompt is empty"),
        ({"min_p": 0.1, "typical_p": 0.9, "top_n_sigma": 1}, "6 knobs"),
    ],
)
def test_refusals_are_one_sentence(raw, says):
    with pytest.raises(BadInput) as caught:
        result(**raw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_and_a_penalty_on_its_reply():
    asked = {"target": "table", "prompt": "the cat", "reply": " sees", "order_a": "FTKP", "order_b": "TKPF"}
    trace = traces(**asked, frequency_penalty=2, presence_penalty=2)[-1]
    found = LAB.summary(trace)
    assert found["source"] == "measured"
    assert len(found["candidates_by_order"]) == 24
    for i in range(LAB.num_frames(trace)):
        assert "nan" not in LAB.frame(trace, i).html.lower()


def test_logits_that_are_no_numbers_are_said_and_never_drawn(monkeypatch):
    score = TableSession.score

    def spoilt(session, draft):
        logits = score(session, draft).logits.clone()
        logits[:, 1] = torch.nan
        return Scores(logits)

    monkeypatch.setattr(TableSession, "score", spoilt)
    raw = {"target": "table", "prompt": "the cat", "reply": "", "temperature": 2.0, "top_k": 0, "top_p": 1.0}
    trace = traces(**raw)[-1]
    assert "put out NaN" in LAB.frame(trace, 0).html
    assert 1 not in LAB.summary(trace)["sets"][0]
    json.dumps(LAB.summary(trace), allow_nan=False)


def test_hostile_token_text_is_escaped():
    trace = traces(**SIX)[-1]
    spoilt = Trace(trace.lanes, {0: "<img src=x onerror=1>", 1: "${x}"}, trace.provenance)
    for i in range(LAB.num_frames(spoilt)):
        assert "<img" not in LAB.frame(spoilt, i).html
