"""The knobs one by one, where others have gone wrong; the law they leave, and drawing from it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.sampling import (
    Context,
    CountPenalty,
    Knob,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    apply,
    chain,
    coins,
    draw,
    softmax,
)

INF = math.inf


def after(p: list[float], *knobs: Knob) -> list[float]:
    """The law that ``knobs`` leave of ``p``."""
    return softmax(apply(knobs, torch.tensor([p], dtype=torch.float64).log()))[0].tolist()


def kept(p: list[float], *knobs: Knob) -> set[int]:
    return {token for token, x in enumerate(after(p, *knobs)) if x > 0}


def approx(*p: float, abs: float = 1e-4):
    return pytest.approx(p, abs=abs)


# --- Temperature ----------------------------------------------------------------------------------------------------


def test_temperature_before_or_after_min_p():
    p = [0.6, 0.25, 0.1, 0.05]
    assert after(p, MinP(0.3), Temperature(2)) == approx(0.6077, 0.3923, 0, 0)
    assert after(p, Temperature(2), MinP(0.3)) == approx(0.4869, 0.3143, 0.1988, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-4])
def test_a_temperature_of_almost_zero_is_greedy_without_overflow(dtype, temperature):
    logits = torch.tensor([[20.0, 10.0, 0.0]], dtype=dtype)
    assert softmax(apply([Temperature(temperature)], logits)).tolist() == [[1, 0, 0]]


def test_temperature_zero_takes_the_lowest_of_equals_and_ignores_the_filters():
    assert after([0.3, 0.35, 0.35], *chain(temperature=0, top_p=0.1, top_k=2)) == [0, 1, 0]


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_temperature_out_of_range(value):
    with pytest.raises(ValueError, match="temperature"):
        Temperature(value)


# --- Filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "top_p", "expected"),
    [
        ([0.5, 0.35, 0.1, 0.05], 0.9, {0, 1, 2}),
        ([0.5, 0.35, 0.1, 0.05], 0.85, {0, 1}),
        ([0.3, 0.1, 0.1, 0.5], 0.8, {0, 3}),
        ([0.5, 0.41, 0.09], 0.9, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}),
        ([0.4, 0.3, 0.3], 0.7, {0, 1}),
        ([0.25, 0.25, 0.25, 0.25], 0.5, {0, 1}),
        ([0.4, 0.35, 0.25], 0, {0}),
        ([0.4, 0.35, 0.25], 1, {0, 1, 2}),
    ],
)
def test_the_token_that_crosses_top_p_belongs_in_and_the_lowest_of_equals_comes_first(p, top_p, expected):
    assert kept(p, TopP(top_p)) == expected


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan])
def test_top_p_and_min_p_out_of_range(value):
    with pytest.raises(ValueError, match="top-p"):
        TopP(value)
    with pytest.raises(ValueError, match="min-p"):
        MinP(value)


@pytest.mark.parametrize(("k", "expected"), [(0, 4), (-1, 4), (1, 1), (3, 3), (4, 4), (100, 4)])
def test_top_k_keeps_exactly_k(k, expected):
    assert kept([0.25, 0.25, 0.25, 0.25], TopK(k)) == set(range(expected))
    assert len(kept([0.4, 0.3, 0.2, 0.1], TopK(k))) == expected


def test_top_k_keeps_the_lowest_of_equals_at_the_cut():
    assert kept([0.4, 0.3, 0.3], TopK(2)) == {0, 1}
    with pytest.raises(ValueError, match="top-k"):
        TopK(-2)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=7),
    st.floats(0, 1),
    st.integers(1, 7),
)
def test_filters_against_a_sorted_list(weights, top_p, k):
    """Many ties: the weights are few different whole numbers."""
    p = [w / sum(weights) for w in weights]
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    ahead = [sum(p[i] for i in order[:n]) for n in range(len(p))]
    nucleus = {order[0]} | {order[n] for n in range(len(p)) if ahead[n] < top_p - 1e-9 or top_p == 1}
    close = any(abs(mass - top_p) < 1e-8 for mass in ahead)
    assert close or kept(p, TopP(top_p)) == nucleus
    assert kept(p, TopK(k)) == set(order[:k])


def test_top_p_over_a_vocabulary_too_flat_for_a_short_list():
    logits = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1
    logits[1] *= 100
    for row, out in zip(softmax(logits), TopP(0.9)(logits), strict=True):
        values, order = row.sort(descending=True)
        count = int((values.cumsum(0) - values < 0.9).sum())
        assert set(order[:count].tolist()) == set((out > -INF).nonzero().flatten().tolist())


def test_min_p_counts_from_the_likeliest_and_renormalises():
    assert after([0.6, 0.25, 0.1, 0.05], MinP(0.3)) == approx(0.7059, 0.2941, 0, 0)
    assert kept([0.5, 0.5], MinP(1)) == {0, 1}


def test_top_k_then_top_p_renormalises_between():
    assert kept([0.4, 0.2, 0.2, 0.1, 0.1], TopK(2), TopP(0.6)) == {0}


def test_order_of_temperature_top_k_and_top_p():
    p = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
    knobs = {"K": TopK(4), "P": TopP(0.7), "T": Temperature(2)}
    sizes = {"".join(order): len(kept(p, *(knobs[o] for o in order))) for order in itertools.permutations("KPT")}
    assert sizes == {"KPT": 2, "KTP": 3, "PKT": 3, "PTK": 3, "TKP": 3, "TPK": 4}
    assert after(p, *(knobs[o] for o in "KPT"))[:2] == approx(0.558, 0.442, abs=1e-3)
    assert after(p, *(knobs[o] for o in "PKT"))[:3] == approx(0.416, 0.329, 0.255, abs=1e-3)


# --- Penalties ------------------------------------------------------------------------------------------------------


def test_repetition_penalty_lowers_either_sign_once():
    logits = torch.tensor([[2.0, -2.0, 0.0, 1.0]])
    assert RepetitionPenalty(2)(logits, [Context((0, 1, 1, 1), 4)]).tolist() == [[1, -4, 0, 1]]
    assert logits.tolist() == [[2, -2, 0, 1]]


def test_count_penalties_look_at_the_output_only():
    logits = torch.zeros(2, 3)
    contexts = [Context((0, 0, 1, 1, 2), 2), Context((0, 0), 2)]
    assert CountPenalty(0.5, 1.0)(logits, contexts).tolist() == [[0, -2, -1.5], [0, 0, 0]]


def test_only_knobs_that_change_something_are_in_the_chain():
    assert chain() == ()
    assert chain(top_k=-1) == ()
    assert [type(k).__name__ for k in chain(0.5, 3, 0.9, 0.1, 1.2, 0.1, 0.1)] == [
        "RepetitionPenalty", "CountPenalty", "Temperature", "MinP", "TopK", "TopP",
    ]  # fmt: skip


# --- Broken logits --------------------------------------------------------------------------------------------------


def test_nan_is_never_drawn():
    assert softmax(apply((), torch.tensor([[1.0, math.nan, 3.0]])))[0].argmax() == 2
    assert apply((), torch.tensor([[1.0, math.nan, 3.0]])).tolist() == [[1, -INF, 3]]


@pytest.mark.parametrize(
    ("row", "message"), [([1, INF, 3], "infinite"), ([-INF, -INF], "left"), ([math.nan, math.nan], "left")]
)
def test_rows_without_a_law_are_errors(row, message):
    with pytest.raises(ValueError, match=message):
        apply((), torch.tensor([row]))


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=6),
    st.sampled_from([1e-30, 1e-17, 1e-8, 1.0, 1e3, 1e30]),
    st.sampled_from([0.0, 1.0, 40.0]),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_the_likeliest_token_is_the_one_with_the_largest_logit(steps, scale, offset, dtype):
    """Differences far below the precision of a probability, and far above its range."""
    logits = (torch.tensor([steps], dtype=torch.float64) * scale + offset).to(dtype)
    assert softmax(logits).argmax() == logits.argmax()


# --- Drawing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("u", "token"), [(0, 0), (0.4999, 0), (0.5, 1), (0.999999, 1), (1 - 1e-12, 1), (1 - 2**-53, 1)]
)
def test_a_token_of_probability_zero_is_never_drawn(u, token):
    assert draw(torch.tensor([0.5, 0.5, 0.0]), u) == token


def test_the_coin_zero_skips_leading_zeros():
    assert draw(torch.tensor([0.0, 1.0]), 0.0) == 1


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 1 / 3, 1.0]), min_size=1, max_size=9), st.integers(0, 2**53 - 1)
)
def test_draw_always_gives_a_possible_token(weights, value):
    if sum(weights) > 0:
        law = torch.tensor(weights, dtype=torch.float64)
        assert law[draw(law / law.sum(), value * 2.0**-53)] > 0


def test_coins_depend_on_seed_position_and_purpose_alone():
    coin = coins(3)
    first = coin(10, "emit")
    for position in range(5):
        coin(position, "accept 0")
    assert coin(10, "emit") == first == coins(3)(10, "emit")
    assert len({coins(seed)(position, purpose) for seed in (1, 2) for position in (1, 2) for purpose in "ab"}) == 8
    values = [coin(position, "emit") for position in range(2000)]
    assert all(0 <= value < 1 for value in values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)
