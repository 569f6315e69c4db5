"""The lab of draft lengths per batch: what it refuses, what grows, what a config must say."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import catalogue, teaching
from models.load import Models
from playground.engine import engine_configs
from playground.engine.calibrate import FIT, JUDGE, TimedPass, fit, predict
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params
from playground.labs import draft_length_batch as lab_module
from playground.labs.draft_length_batch import LAB, Params, Round, SpeedHere


def last(**changes) -> Trace:
    traces = [u for u in execute(LAB, read_params(Params, changes), Models()) if isinstance(u, Trace)]
    return traces[-1]


def test_every_update_keeps_the_frames_before_it():
    seen: list[str] = []
    for trace in execute(LAB, read_params(Params, {}), Models()):
        frames = [LAB.frame(trace, i).status for i in range(LAB.num_frames(trace))]
        assert frames[: len(seen)] == seen
        seen = frames
    assert len(seen) == len(Params().batches)


def test_a_saved_run_gives_the_same_page():
    trace = last(priced_target="deepseek-v3", priced_drafter="mtp", tensor_parallel=32)
    again = Trace.from_json(trace.to_json())
    assert again.lanes == trace.lanes
    assert LAB.summary(again) == LAB.summary(trace)
    assert [LAB.frame(again, i) for i in range(8)] == [LAB.frame(trace, i) for i in range(8)]
    assert sum(chart.draw(again) is not None for chart in LAB.charts) == 4


def test_nothing_fits():
    result = LAB.summary(last(tensor_parallel=1))
    assert result["max_batch"] == {"256": 0, "1024": 0, "4096": 0, "16384": 0}
    assert set(result["best_k"]["256"].values()) == {None}
    assert result["peak_tokens_per_s"] == {"plain": None, "speculative": None, "best_k": None}
    assert result["buckets"] == []
    assert LAB.figures(result)
    assert "nothing to configure" in LAB.frame(last(tensor_parallel=1), 0).html


def test_a_pasted_config_is_a_target():
    config = json.dumps({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "intermediate_size": 128, "vocab_size": 100, "_name_or_path": "<img src=x>"})  # fmt: skip
    result = LAB.summary(last(priced_target=config, hardware="laptop", tensor_parallel=1))
    assert result["target"] == "<img src=x>"
    assert "<img" not in LAB.frame(last(priced_target=config), 0).html


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"priced_target": "llama-9"}, "llama-3.3-70b"),
        ({"priced_target": '{"layers": 1'}, "no valid JSON"),
        ({"priced_target": '{"layers": 1, "hidden": 8, "heads": 3, "kv_heads": 2, "head_dim": 4, "intermediate": 8,'
                           ' "vocab": 9}'}, "multiple of kv_heads"),
        ({"priced_drafter": "oracle"}, "as drafter also"),
        ({"hardware": "abacus"}, "h100"),
        ({"profile": "dream"}, "profile must be one of"),
        ({"contexts": ""}, "contexts takes one to 40"),
        ({"batches": "1,1"}, "different numbers"),
        ({"batches": "0"}, "between 1 and"),
        ({"fixed_k": 9, "max_k": 8}, "must not exceed max_k"),
        ({"alpha": 1.5}, "between 0 and 1"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(changes, says):
    with pytest.raises(BadInput, match=says):
        last(**changes)


@settings(max_examples=25)
@given(
    st.sampled_from(catalogue.names("models")), st.sampled_from(("eagle3", "medusa", "mtp", "llama-3.2-1b")),
    st.floats(0, 1), st.sampled_from(("data_sheet", "split", "realistic")), st.integers(0, 10**6),
    st.integers(1, 65536),
)  # fmt: skip
def test_any_assumptions_give_a_page_without_nan(target, drafter, alpha, profile, context, batch):
    trace = last(
        priced_target=target, priced_drafter=drafter, alpha=alpha, profile=profile, contexts=(context,),
        batches=tuple({1, batch}),
    )  # fmt: skip
    result = LAB.summary(trace)
    json.dumps(result, allow_nan=False)
    for at in result["best_k"].values():
        assert all(k is None or 0 <= k <= 16 for k in at.values())
    assert [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    for chart in LAB.charts:
        chart.draw(trace)


def test_the_table_for_servers_covers_every_batch_once():
    result = LAB.summary(last())
    ranges = result["buckets"]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 1024
    assert all(later[0] == end + 1 for (_, end, _), later in itertools.pairwise(ranges))
    for batch, k in result["best_k"]["256"].items():
        assert next(length for a, b, length in ranges if a <= int(batch) <= b) == k
    config = json.loads(engine_configs.vllm("eagle", ranges))
    assert config["num_speculative_tokens"] == 10
    assert config["num_speculative_tokens_per_batch_size"] == ranges
    adaptive = json.loads(engine_configs.sglang("eagle", ranges))
    assert adaptive["1"] == {"candidate_steps": [10]}
    assert engine_configs.sglang("ngram", ranges) is None
    assert json.loads(engine_configs.vllm("llama-3.1-8b", ranges))["method"] == "draft_model"


def test_the_measured_lane_shows_its_error(monkeypatch):
    """On made-up times: the page of this machine without measuring anything."""

    def measured(models, trace):
        shape = catalogue.shape("smollm2-135m")
        timed = [TimedPass(n, 64, 60 + 6 * n) for n in FIT] + [TimedPass(n, 512, 65 + 7 * n) for n in JUDGE]
        fitted = fit(shape, timed[:3], 4)
        trace = trace.open("calibration").add("calibration", Round(tuple(timed)))
        trace = trace.add("calibration", Round(tuple(predict(fitted, timed)))).open("machine").add("machine", fitted)
        yield trace.open("speculation").add("speculation", SpeedHere(0, 1.0, 1.0, 1.0))

    monkeypatch.setattr(lab_module, "measure", measured)
    trace = last(profile="this_machine", priced_target="smollm2-135m", priced_drafter="ngram")
    checked = LAB.summary(trace)["calibration"]
    assert checked["worst_error"] < 0.2
    assert set(checked["error_by_pass"]) == {"2", "8", "16", "64"}
    assert "off by at most" in LAB.frame(trace, 1).status
    assert LAB.summary(Trace.from_json(trace.to_json())) == LAB.summary(trace)
    assert sum(chart.draw(trace) is not None for chart in LAB.charts) == 6


def test_measuring_works_on_a_small_model(monkeypatch):
    class Loader(Models):
        def load(self, target, *args):
            return teaching.target()
            yield

    monkeypatch.setattr(lab_module, "TEXT", "the cat sees the dog . ")
    monkeypatch.setattr(lab_module, "CONTEXTS", (16, 48))
    monkeypatch.setattr(teaching.TeachingModel, "max_tokens", 4096, raising=False)
    params = read_params(Params, {"profile": "this_machine", "priced_drafter": "ngram"})
    trace = [u for u in execute(LAB, params, Loader()) if isinstance(u, Trace)][-1]
    checked = LAB.summary(trace)["calibration"]
    assert set(checked["measured_speed"]) == {"0", "1", "3", "7"}
    assert checked["bandwidth"] > 0
