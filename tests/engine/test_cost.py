"""The cost model against figures derived independently, and its limits for any shape and hardware."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import catalogue
from playground.engine.cost import (
    Hardware,
    Shape,
    break_even_batch,
    cost_ratio,
    expected_tokens,
    losing_batch,
    max_batch,
    pass_time,
    spare_batch,
    speedup,
    tensor_parallel,
)

L70, L8, H100 = catalogue.shape("llama-3.3-70b"), catalogue.shape("llama-3.1-8b"), catalogue.hardware("h100")


def test_llama_parameters_and_kv():
    assert L70.total_parameters == pytest.approx(70.554e9, abs=5e5)
    assert L70.read_parameters == pytest.approx(69.503e9, abs=5e5)
    assert L70.kv_bytes_per_token() == 320 * 1024
    assert L8.total_parameters == pytest.approx(8.030e9, abs=5e5)
    assert L8.read_parameters == pytest.approx(7.505e9, abs=5e5)
    assert L8.kv_bytes_per_token() == 128 * 1024


def test_a_tied_model_streams_its_only_table():
    tied = catalogue.shape("smollm2-135m")
    assert tied.total_parameters == tied.read_parameters == 134_515_008


@pytest.mark.parametrize(
    ("key", "total"),
    [("llama-3.2-1b", 1_235_814_400), ("qwen3-8b", 8_190_735_360), ("qwen3-0.6b", 596_049_920)],
)
def test_published_parameter_counts(key, total):
    assert catalogue.shape(key).total_parameters == total


def test_every_entry_of_the_catalogue_reads_and_has_a_source():
    for kind, read in (("models", catalogue.shape), ("hardware", catalogue.hardware)):
        for key in catalogue.names(kind):
            assert read(key).name
            assert catalogue.entry(kind, key)["source"].startswith("https://")
    with pytest.raises(ValueError, match="it has llama"):
        catalogue.shape("gpt-9")


def test_expected_tokens():
    assert expected_tokens(0.6, 4) == pytest.approx(2.306, abs=5e-4)
    assert expected_tokens(0.8, 4) == pytest.approx(3.362, abs=5e-4)
    assert expected_tokens(1, 4) == 5
    assert expected_tokens(0.3, 0) == 1


def test_spare_compute_and_break_even():
    assert H100.ridge() == pytest.approx(295, abs=0.5)
    for k, batch in {1: 148, 3: 74, 4: 59, 7: 37}.items():
        assert spare_batch(H100, k) == pytest.approx(batch, abs=0.5)
    assert math.floor(break_even_batch(H100, 4, expected_tokens(0.8, 4))) == 198
    assert break_even_batch(H100, 4, 5) == math.inf
    assert speedup(L70, H100, 1024, 4, expected_tokens(0.8, 4)) == pytest.approx(0.67, abs=5e-3)


def test_break_even_is_where_the_speedup_is_one():
    tokens = expected_tokens(0.8, 4)
    assert speedup(L70, H100, break_even_batch(H100, 4, tokens), 4, tokens) == pytest.approx(1, abs=1e-9)


def test_losing_batch_is_the_first_that_loses():
    pod = tensor_parallel(H100, 8)
    tokens = expected_tokens(0.8, 4)
    first = losing_batch(L70, pod, tokens, 5, 1024)
    ratios = [cost_ratio(L70, pod, batch, 5, 1024) for batch in (first - 1, first)]
    assert ratios[0] <= tokens < ratios[1]
    assert losing_batch(L70, pod, tokens, 5) == math.floor(break_even_batch(pod, 4, tokens)) + 1
    assert losing_batch(L70, pod, 5, 5) is None
    assert losing_batch(L70, pod, 7.4, 7.4, 1024) is None
    assert losing_batch(L70, pod, 1.5, 2, 131_072) is None  # bound by KV at every batch
    assert losing_batch(L70, pod, 0.9, 5, 1024) == 1


@pytest.mark.parametrize(("batch", "ratio"), [(1, 1.0), (32, 1.0), (64, 1.72), (128, 3.04)])
def test_cost_of_verifying_eight_drafts_at_context_1024(batch, ratio):
    assert cost_ratio(L70, tensor_parallel(H100, 8), batch, 9, 1024) == pytest.approx(ratio, abs=5e-3)


def test_the_binding_term_is_named():
    pod = tensor_parallel(H100, 8)
    assert pass_time(L70, pod, 1).binding == "weights"
    assert pass_time(L70, pod, 64, 1, 32_768).binding == "kv"
    assert pass_time(L70, pod, 512).binding == "gemm"
    assert pass_time(L70, pod, 64, 64, 131_072).binding == "attention"


def test_tensor_parallel_pools_everything_and_keeps_the_ridge():
    pod = tensor_parallel(H100, 8)
    assert (pod.bandwidth, pod.peak_flops, pod.memory_bytes) == (8 * 3.35e12, 8 * 989.4e12, 640e9)
    assert pod.ridge() == pytest.approx(H100.ridge())
    assert tensor_parallel(H100, 1) == H100


def test_memory_bounds_the_batch():
    assert max_batch(L70, H100, 1024) == 0
    pod = tensor_parallel(H100, 4)
    fits = max_batch(L70, pod, 1024)
    used = 2 * L70.total_parameters + fits * 1024 * L70.kv_bytes_per_token()
    assert used <= pod.memory_bytes < used + 1024 * L70.kv_bytes_per_token()
    assert max_batch(L70, pod, 0) is None


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Shape("x", 2, 64, 6, 4, 16, 128, 100), "heads must be a multiple of kv_heads"),
        (lambda: Shape("x", 0, 64, 4, 4, 16, 128, 100), "layers must be at least 1"),
        (lambda: Hardware("x", 0, 1, 1), "bandwidth must be above 0"),
        (lambda: tensor_parallel(H100, 0), "at least 1"),
        (lambda: pass_time(L8, H100, 0), "batch > 0"),
        (lambda: expected_tokens(1.5, 2), "between 0 and 1"),
    ],
)
def test_contradictions_are_refused_with_the_rule(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


shapes = st.builds(
    lambda layers, heads, group, head_dim, hidden, tied: Shape(
        "any", layers, hidden, heads * group, heads, head_dim, 3 * hidden, 1000, tied
    ),
    st.integers(1, 100),
    st.integers(1, 16),
    st.integers(1, 8),
    st.sampled_from((64, 128)),
    st.integers(64, 8192),
    st.booleans(),
)
chips = st.builds(Hardware, st.just("any"), st.floats(1e9, 1e13), st.floats(1e10, 1e16), st.floats(1e9, 1e12))


@given(shapes, chips, st.integers(1, 4096), st.integers(1, 32), st.integers(0, 131_072))
def test_more_never_costs_less(shape, chip, batch, new_tokens, context):
    time = pass_time(shape, chip, batch, new_tokens, context).total_s
    assert pass_time(shape, chip, batch + 1, new_tokens, context).total_s >= time
    assert pass_time(shape, chip, batch, new_tokens + 1, context).total_s >= time
    assert pass_time(shape, chip, batch, new_tokens, context + 1).total_s >= time
    assert pass_time(shape, tensor_parallel(chip, 2), batch, new_tokens, context).total_s == pytest.approx(time / 2)
    ratio = cost_ratio(shape, chip, batch, new_tokens, context)
    assert 1 <= ratio <= new_tokens + 1e-9
    assert cost_ratio(shape, chip, batch + 1, new_tokens, context) >= ratio - 1e-9


@given(shapes, chips, st.integers(1, 4096), st.integers(0, 131_072))
def test_no_drafts_change_nothing(shape, chip, batch, context):
    assert speedup(shape, chip, batch, 0, 1.0, context) == 1.0


@given(st.floats(0, 1), st.integers(0, 32))
def test_expected_tokens_lie_between_one_and_all(alpha, k):
    assert 1 <= expected_tokens(alpha, k) <= k + 1
    assert expected_tokens(alpha, k + 1) >= expected_tokens(alpha, k)
