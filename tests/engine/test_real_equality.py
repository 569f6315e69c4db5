"""On the default model, in fp32: greedy output is that of plain decoding, for every drafter as chain and as tree."""

from __future__ import annotations

import pytest

from models.load import Models
from playground.bench import ours, setups
from playground.engine.drafters import NoDrafter

PROMPTS = ("Write a Python function that reverses a string.", "Name three rivers as a JSON array.")
NUM_TOKENS = 12

pytestmark = pytest.mark.default_model


def test_greedy_output_is_that_of_plain_decoding(default_model):
    if default_model.dtype_name != "fp32":
        pytest.skip("this machine runs the default model in bf16, where rounding may part the outputs")
    models, names = Models(), set()
    for text in PROMPTS:
        prompt = default_model.chat(text)
        plain, _, _ = ours(default_model, NoDrafter(), prompt, NUM_TOKENS, 0)
        for name, drafter, k in setups(default_model, models, prompt):
            tokens, _, passes = ours(default_model, drafter, prompt, NUM_TOKENS, k)
            assert tokens == plain, name
            assert not any(step.note for step in passes), name
            if any(step.nodes for step in passes):
                names.add(name)
    assert {"ngram", "eagle3", "eagle3, ten", "eagle3, dynamic", "combination"} <= names
