"""A trace travels as JSON and comes back the same; a damaged file is one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.engine.sampling import chain
from playground.engine.trace import FORMAT, Lane, Trace
from playground.engine.verify import verify_sampling
from tests.engine.tables import drafters, outputs, run, table


def a_trace(seed: int = 0, name: str = "trees", num_tokens: int = 6) -> Trace:
    model = table(4, seed)
    drafter = drafters(model, [0, 1], [0] * 20, seed)[name]
    knobs = chain(temperature=0.8, top_k=3)
    steps = run(model, [0, 1], drafter, rule=verify_sampling, knobs=knobs, seed=seed, max_new_tokens=num_tokens)
    return Trace((Lane("speculative", (0, 1), tuple(steps)), Lane("plain", (0, 1))), model.texts(range(4)))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 999),
    name=st.sampled_from(["trees", "ngram", "draft_model"]),
    texts=st.dictionaries(st.integers(0, 9), st.text(st.characters(), max_size=5)),
    provenance=st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5) | st.booleans()),
)
def test_round_trip(seed, name, texts, provenance):
    trace = replace(a_trace(seed, name), texts=texts, provenance=provenance)
    text = trace.to_json()
    assert Trace.from_json(text) == trace
    assert Trace.from_json(Trace.from_json(text).to_json()).to_json() == text
    text.encode("ascii")


def test_growing_leaves_the_old_trace_alone():
    full = a_trace()
    trace = Trace().open("speculative", (0, 1)).open("plain", (0, 1))
    grown = trace
    for step in full["speculative"].steps:
        grown = grown.add("speculative", step, {step.outputs[0].token: "x"})
    assert grown["speculative"] == full["speculative"]
    assert trace["speculative"].steps == grown["plain"].steps == ()
    assert grown["speculative"].output_tokens == outputs(full["speculative"].steps)
    assert grown["speculative"].finish == "length"
    with pytest.raises(KeyError, match="no lane named 'other'"):
        grown["other"]


def test_nan_does_not_leave_the_engine():
    with pytest.raises(ValueError, match="JSON"):
        replace(a_trace(), provenance={"speed": float("nan")}).to_json()


TEXT = a_trace().to_json()


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        ("", "not JSON"),
        (TEXT[:-40], "not JSON"),
        ("[" * 100_000, "not JSON"),
        (TEXT.replace('"coin": ', '"coin": 1e999, "was": ', 1), "1e999 is not a finite number"),
        (TEXT.replace('"coin": ', '"coin": NaN, "was": ', 1), "NaN is not a finite number"),
        ("[]", "not a trace of this app"),
        ('{"format": "decoding-playground-trace/99"}', "not a trace of this app"),
        (f'{{"format": "{FORMAT}"}}', "'lanes' is missing"),
        (TEXT.replace('"prompt"', '"promt"'), "'prompt' is missing"),
        (TEXT.replace('"step": "Pass"', '"step": "Leap"'), "unknown kind of step 'Leap'"),
        (TEXT.replace('"nodes": [', '"nodes": [17, ', 1), r"nodes\.0"),
        (TEXT.replace('"finish": null', '"finish": [1]', 1), "finish"),
        (TEXT.replace('"state": "', '"state": "<b>', 1), "unknown state"),
        (TEXT.replace('"kind": "', '"kind": "<b>', 1), "unknown kind"),
        (TEXT.replace('"parent": -1', '"parent": 40', 1), "node 0 has parent 40"),
        (TEXT.replace('"rows": [', '"rows": [], "was": [', 1), "a pass has"),
        (TEXT.replace('"lanes": [', '"lanes": [3, ', 1), "damaged"),
        (TEXT.replace('"texts": {', '"texts": {"x": "y", ', 1), "damaged"),
    ],
)
def test_a_damaged_file_is_one_sentence(damaged, says):
    assert damaged != TEXT
    with pytest.raises(ValueError, match=says) as caught:
        Trace.from_json(damaged)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 200


@settings(max_examples=60)
@given(st.data())
def test_no_damage_raises_anything_else(data):
    """Any value of the file replaced by any other."""
    tree = json.loads(TEXT)
    at = tree
    for _ in range(data.draw(st.integers(1, 7))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        if not keys:
            break
        parent, key = at, data.draw(st.sampled_from(keys))
        at = at[key]
    parent[key] = data.draw(st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2))
    try:
        trace = Trace.from_json(json.dumps(tree))
    except ValueError:
        return
    assert Trace.from_json(trace.to_json()) == trace


def test_a_trace_longer_than_any_run_is_refused():
    text = json.dumps({"format": FORMAT, "lanes": [{"name": "a", "prompt": [], "steps": [{}] * 3000}], "texts": {}})
    with pytest.raises(ValueError, match="3,000 steps"):
        Trace.from_json(text)
