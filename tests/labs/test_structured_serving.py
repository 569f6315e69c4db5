"""The lab on a table model; its presets run on the default model in ``test_presets``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from models import catalogue
from models.table import TableModel, random_law
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params, read_presets
from playground.labs.structured_serving import LAB, TARGETS, WAYS

PRESETS = read_presets(Path(__file__).parents[2] / "presets" / "structured_serving.json")
WORDS = (
    "", '{"a"', ":", " ", " 1", " 2", "1", "2", "-", "}", ', "', 'b"', " true", " false", "true", "false", "{", '"',
    "a", "b", ",",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, 12]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}
MODEL = TableModel(WORDS, random_law(len(WORDS), 3, 1.5), eos_ids=frozenset({0}))


class Loader:
    """Hands out the table model; shapes and hardware are the catalogue's."""

    def load(self, target, dtype="auto", device="auto"):
        yield from ()
        return MODEL

    def shape(self, name):
        return catalogue.shape(name)

    def hardware(self, name):
        return catalogue.hardware(name)


SMALL = {"schema": json.dumps(SCHEMA), "prompt": "a", "max_new_tokens": 30, "num_requests": 20, "output_tokens": 20}


def run(**params):
    updates = []
    for update in execute(LAB, read_params(LAB.params, {**SMALL, **params}), Loader()):
        if isinstance(update, Trace):
            updates.append(update)
    return updates


@pytest.fixture(scope="module")
def traces():
    return run(remedies=True)


def test_every_figure_is_there(traces):
    summary = LAB.summary(traces[-1])
    for name in ("cold", "cached", "renamed"):
        assert summary[f"compile_ms_{name}"] > 0
    assert summary["leaves"] == 2
    for name in ("stall_steps", "tokens_lost", "p50_itl_ms", "p99_itl_ms"):
        assert list(summary[name]) == ["free", "scheduler", "worker", "cache"]
    assert summary["tokens_lost"]["worker"] == summary["tokens_lost"]["free"] == 0
    assert summary["mask_us_p99"] >= summary["mask_us_mean"] > 0
    assert 0 < summary["forced_bytes_share"] < 1
    assert summary["sampled_tokens_with"] < summary["sampled_tokens_without"]
    assert summary["num_seams"] >= summary["non_canonical_seams"] >= 0
    assert summary["valid_json"] is True
    assert len(summary["ways"]) == len(WAYS)
    assert summary["ways"]["draft"]["identical_text"] is True
    assert all(way["valid_json"] for way in summary["ways"].values())
    json.dumps(summary, allow_nan=False)
    assert len(LAB.figures(summary)) == 5


def test_the_schedule_without_a_grammar_comes_before_any_model():
    updates = execute(LAB, read_params(LAB.params, SMALL), None_())
    trace = next(updates)
    assert LAB.num_frames(trace) == 1
    assert "without" in LAB.frame(trace, 0).status.lower() or "no grammar" in LAB.frame(trace, 0).status.lower()
    assert LAB.figures(LAB.summary(trace))


class None_(Loader):
    def load(self, *args, **kwargs):
        raise AssertionError("no model is needed yet")


def test_frames_only_grow_and_never_change(traces):
    seen = []
    for trace in traces:
        count = LAB.num_frames(trace)
        assert count >= len(seen)
        seen += [LAB.frame(trace, i) for i in range(len(seen), count)]
    assert seen == [LAB.frame(traces[-1], i) for i in range(LAB.num_frames(traces[-1]))]
    assert all(frame.status and frame.html for frame in seen)
    for chart in LAB.charts:
        assert chart.draw(traces[-1]) is not None
        chart.draw(traces[0])


def test_a_trace_survives_json(traces):
    assert LAB.summary(Trace.from_json(traces[-1].to_json())) == LAB.summary(traces[-1])


def test_without_new_tokens_only_the_server_is_looked_at():
    summary = LAB.summary(run(max_new_tokens=0)[-1])
    assert summary["compile_ms_cold"] > 0
    assert summary["sampled_tokens_with"] is None
    assert summary["ways"] == {}


def test_the_same_seed_gives_the_same_arrivals():
    first, second, other = (run(max_new_tokens=0, seed=seed)[0] for seed in (1, 1, 2))
    assert first["schedules"] == second["schedules"] != other["schedules"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"schema": "{"}, "no JSON: line 1, column 2"),
        ({"schema": '{"type": "intger"}'}, "#/type is not valid in a JSON schema"),
        ({"schema": '{"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}'}, "refuses this schema"),
        ({"schema": '{"type": "integer", "minimum": 5, "maximum": 4}'}, "refuses this schema"),
        ({"priced_target": "nobody"}, "nobody"),
        ({"hardware": "abacus"}, "abacus"),
        ({"num_requests": 500, "output_tokens": 4096}, "at most 400,000 tokens"),
        ({"batch": 0}, "between 1 and 512"),
        ({"prompt": ""}, "prompt is empty"),
    ],
)
def test_bad_input_is_one_sentence(params, message):
    with pytest.raises(BadInput, match=message) as caught:
        run(**params)
    assert "\n" not in str(caught.value)


def test_an_explosion_is_stopped_in_time_and_the_next_run_goes_on():
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(80)}, "minProperties": 40}
    with pytest.raises(BadInput, match=r"did not compile|needed more than 1,024 MB"):  # time or memory
        run(schema=json.dumps(many), max_new_tokens=0)
    assert LAB.summary(run(max_new_tokens=0)[-1])["compile_ms_cold"] > 0


def test_every_priced_target_is_known():
    assert all(catalogue.shape(name) for name in TARGETS)


def test_presets_stand_on_the_parameters():
    for preset in PRESETS.values():
        params = read_params(LAB.params, preset.params)
        assert params.grammar
        assert dataclasses.is_dataclass(params)
