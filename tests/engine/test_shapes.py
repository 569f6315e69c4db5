"""Shapes: published parameter counts, what a config.json says, and contradictions refused with the rule."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import catalogue
from playground.engine.shapes import Experts, from_config, from_fields

V3 = catalogue.shape("deepseek-v3")


def test_deepseek_v3_parameters():
    assert V3.total_parameters == pytest.approx(671.03e9, abs=5e6)
    assert V3.active_parameters == pytest.approx(36.63e9, abs=5e6)
    assert V3.active_parameters + V3.embedding_parameters == pytest.approx(37.55e9, abs=5e6)
    assert V3.kv_values_per_token == 61 * 576


def test_a_config_of_the_hub_gives_the_shape_of_the_catalogue():
    llama = {
        "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    assert from_config(json.dumps(llama)).total_parameters == catalogue.shape("llama-3.3-70b").total_parameters
    v3 = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "tie_word_embeddings": False,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    }  # fmt: skip
    assert from_config(json.dumps(v3)).total_parameters == V3.total_parameters
    assert catalogue.shape(json.dumps(v3)).active_parameters == V3.active_parameters
    mixtral = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }  # fmt: skip
    assert from_config(json.dumps(mixtral)).total_parameters == 46_702_792_704
    own = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128, "vocab": 100}
    assert from_config(json.dumps(own)).name == "typed in"


def test_distinct_experts_under_uniform_routing():
    experts = Experts(256, 8, 2048)
    assert experts.distinct(1) == pytest.approx(8)
    assert experts.distinct(2) == pytest.approx(15.75)
    drawn = np.random.default_rng(0)
    seen = [len({*drawn.choice(256, 8, False), *drawn.choice(256, 8, False), *drawn.choice(256, 8, False)})
            for _ in range(2000)]  # fmt: skip
    assert np.mean(seen) == pytest.approx(experts.distinct(3), abs=0.1)


FIELDS = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128, "vocab": 100}
MOE = {"total": 8, "active": 2, "intermediate": 32}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"experts": {**MOE, "active": 9}}, "active experts must not exceed the total"),
        ({"experts": {**MOE, "dense_layers": 3}}, "do not fit into 2 layers"),
        ({"experts": {"total": 8}}, "experts has the fields"),
        ({"latent": {"rank": 8}}, "latent has the fields"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"layers": 2.5}, "whole number"),
        ({"hidden": "<b>"}, "whole number"),
        ({"vocab": 10**30}, "at most"),
        ({"colour": 1}, "no field 'colour'"),
    ],
)
def test_contradictions_are_refused_with_the_rule(changes, rule):
    with pytest.raises(ValueError, match=rule):
        from_fields(FIELDS | changes)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no valid JSON"),
        ("{", "no valid JSON"),
        ("[" * 5000, "no valid JSON"),
        ("[1]", "JSON object"),
        ("{}", "has no num_hidden_layers"),
        ('{"layers": 2}', "missing"),
        ('{"num_hidden_layers": 2, "hidden_size": "a", "num_attention_heads": 2, "vocab_size": 5}', "whole number"),
        ('{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 4,'
         ' "vocab_size": 5}', "multiple of kv_heads"),
    ],
)  # fmt: skip
def test_bad_configurations_are_refused_in_a_sentence(text, rule):
    with pytest.raises(ValueError, match=rule):
        from_config(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner)
                    | st.dictionaries(st.sampled_from(("layers", "heads", "num_hidden_layers", "hidden_size",
                                                       "num_attention_heads", "vocab_size", "experts", "latent",
                                                       "text_config", "num_experts")), inner)))  # fmt: skip
def test_any_json_gives_a_shape_or_a_sentence(value):
    with contextlib.suppress(ValueError):
        from_config(json.dumps(value))


@given(st.integers(1, 512), st.data())
def test_experts_touched_grow_and_never_exceed_all(total, data):
    experts = Experts(total, data.draw(st.integers(1, total)), 64)
    counts = [experts.distinct(tokens) for tokens in (1, 2, 3, 10, 1000, 10**6)]
    assert counts == sorted(counts)
    assert counts[0] == pytest.approx(experts.active)
    assert counts[-1] <= total
