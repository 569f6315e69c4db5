"""The lab on the table model; its presets run on the default model in ``test_presets``."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import jsonschema
import pytest

from models.load import Models
from playground.bench import finish
from playground.engine.grammar.compiled import workshop
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params, read_presets
from playground.labs.grammar_bitmask import LAB, compile_other, compile_own, lane, make_drafter

MODELS = Models()
PRESETS = read_presets(Path(__file__).parents[2] / "presets" / "grammar_bitmask.json")
REGEX = "( the| a) (cat|dog)( (sees|hears)( the| a) (cat|dog|bird)){0,2}\\."
TABLE = {"target": "table", "prompt": "the dog sees a", "max_new_tokens": 12}


def run(**params):
    last = None
    for update in execute(LAB, read_params(LAB.params, {**TABLE, **params}), MODELS):
        if isinstance(update, Trace):
            last = update
    return last


@pytest.mark.parametrize("engine", ["ours", "xgrammar"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "layer_skip", "forced"])
def test_a_regex_on_the_table_model(engine, drafter):
    trace = run(regex=REGEX, engine=engine, drafter=drafter)
    summary = LAB.summary(trace)
    assert summary["finish_reason"] == "eos"
    assert summary["valid_json"] is None
    assert summary["audit"] == {}
    assert len(summary["legal_tokens"]) == len(summary["feasible_mass"]) == summary["output_tokens"]
    assert all(0 <= mass <= 1 + 1e-9 for mass in summary["feasible_mass"])
    assert min(summary["legal_tokens"]) >= 1
    assert summary["output_text"].endswith(".")
    assert summary["bitmask_bytes"] == 4
    assert summary["naive_ms"] > 0
    assert summary["precompiled_us_mean"] > 0
    assert summary["xgrammar_us_mean"] > 0
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert len(frames) == summary["target_passes"] + 1
    assert all(frame.status and frame.html for frame in frames)
    assert LAB.summary(Trace.from_json(trace.to_json())) == summary
    assert len(LAB.figures(summary)) == 5


def test_both_engines_leave_the_same_tokens():
    ours, theirs = (LAB.summary(run(regex=REGEX, engine=engine)) for engine in ("ours", "xgrammar"))
    assert ours["legal_tokens"] == theirs["legal_tokens"]
    assert ours["output_text"] == theirs["output_text"]


def test_a_draft_model_that_is_not_masked_gets_blocked():
    params = {"regex": "( the cat)+\\.", "drafter": "layer_skip", "k": 4, "max_new_tokens": 8}
    free, masked = LAB.summary(run(**params)), LAB.summary(run(**params, mask_drafter=True))
    assert free["blocked_tokens"] > 0
    assert masked["blocked_tokens"] == 0
    assert free["output_text"] == masked["output_text"]


def test_ebnf_is_read_by_xgrammar():
    summary = LAB.summary(run(ebnf='root ::= " the" (" cat" | " dog") "."'))
    assert summary["output_text"] in (" the cat.", " the dog.")
    assert summary["naive_ms"] is None
    assert summary["xgrammar_us_mean"] > 0


def test_a_schema_that_the_engine_refuses_is_audited_all_the_same():
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    trace = run(schema=json.dumps(schema))
    summary = LAB.summary(trace)
    assert "#/uniqueItems is not supported" in summary["refusal"]
    assert summary["audit"]["uniqueItems"]["verdict"] == "refused"
    assert summary["audit"]["items"]["verdict"] == "enforced"
    assert summary["valid_json"] is None
    assert "uniqueItems" in LAB.frame(trace, 0).html


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "a("}, "character 2: this \\( is never closed"),
        ({"schema": "{"}, "no JSON: line 1, column 2"),
        ({"schema": "[]"}, "A schema is an object"),
        ({"schema": '{"type": "integer", "minimum": 5, "maximum": 4}'}, "no number lies between"),
        ({"schema": '{"$ref": "#"}'}, "refers to itself"),
        ({"schema": '{"type": "string", "maxLength": 100000000}'}, "too large"),
        ({"ebnf": "root ::= nothing"}, "xgrammar refuses this EBNF"),
        ({"regex": "( the)", "prompt": ""}, "prompt is empty"),
        ({"regex": "[0-9]+"}, "dead end"),
    ],
)
def test_bad_input_is_one_sentence(params, message):
    with pytest.raises(ValueError, match=message) as caught:
        run(**params)
    assert "\n" not in str(caught.value)
    if "dead end" not in message:
        assert isinstance(caught.value, BadInput)


DRAFTED_BY = ("none", "ngram", "layer_skip")
EVERY = [(name, drafter) for name in PRESETS for drafter in DRAFTED_BY]
IN_TURN = [(name, DRAFTED_BY[i % len(DRAFTED_BY)]) for i, name in enumerate(PRESETS)]


@pytest.mark.default_model
@pytest.mark.parametrize(("name", "drafter"), EVERY if os.environ.get("PLAYGROUND_LONG_TESTS") else IN_TURN)
def test_constrained_output_is_valid_on_the_default_model(name, drafter):
    """Greedy once and sampled three times: it ends valid, or is cut where it can still be completed."""
    preset = PRESETS[name].params
    params = read_params(LAB.params, {**preset, "max_new_tokens": 16})
    model = finish(MODELS.load(params.target, params.dtype, params.device))
    prompt = model.chat(params.prompt)
    shop = workshop(model)
    own, _ = compile_own(shop, params.kind, params.grammar, params)
    other = compile_other(shop, params.kind, params.grammar, params)
    runs = ((0, 0), (1, 0), (1, 1), (1, 2)) if os.environ.get("PLAYGROUND_LONG_TESTS") else ((0, 0), (1, 0))
    for temperature, seed in runs:
        settings = dataclasses.replace(params, drafter=drafter, temperature=temperature, seed=seed, draft_layers=6, k=3)
        chosen = own if settings.engine == "ours" else other
        guesser, grammar = finish(make_drafter(settings, MODELS, model, prompt, chosen)), chosen.matcher()
        steps = list(lane(settings, model, prompt, guesser, grammar))
        text = b"".join(model.token_bytes()[o.token] or b"" for step in steps for o in step.outputs)
        if steps[-1].finish == "eos":
            assert chosen.reads(text), text
            if params.kind == "json_schema" and settings.engine == "ours":
                jsonschema.validate(json.loads(text), params.grammar)
        else:
            assert steps[-1].finish == "length"
            assert not grammar.is_terminated
