"""Adaptive lengths: closed forms against reference figures, limits, and the simulation against the closed forms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.adaptive import (
    CHAT,
    CODE,
    Controller,
    Mix,
    arrivals,
    best_length,
    estimate,
    gain,
    linear_costs,
    same,
    simulate,
)
from playground.engine.cost import expected_tokens

MIX = Mix(0.77, 0.35, 0.5)
CHEAP, DEAR = linear_costs(0.04), linear_costs(0.19)


def test_reference_gains():
    assert MIX.best_lengths(CHEAP) == {CODE: 8, CHAT: 2}
    assert gain(MIX, CHEAP, 4) == pytest.approx(0.051, abs=5e-4)
    assert gain(MIX, DEAR, 4) == pytest.approx(0.187, abs=5e-4)
    assert gain(MIX, DEAR, 4, batch=2) == pytest.approx(0.056, abs=2e-3)
    assert gain(MIX, CHEAP, 4, batch=2) == pytest.approx(0, abs=0.01)
    for costs, batch in itertools.product((CHEAP, DEAR), (4, 8, 16, 32)):
        assert gain(MIX, costs, 4, batch) == pytest.approx(-0.08, abs=0.01)


def test_the_ceiling_against_the_best_fixed_length():
    ceiling = max(gain(MIX, costs, MIX.best_fixed(costs)) for costs in (linear_costs(c / 100) for c in range(1, 100)))
    assert 0.05 <= ceiling <= 0.10


alphas, costs_ = st.floats(0, 0.99), st.floats(0.001, 1)


@given(alphas, costs_)
def test_best_length_has_the_most_tokens_per_time(alpha, cost):
    costs = linear_costs(cost)
    best = best_length(alpha, costs)
    rates = [expected_tokens(alpha, k) / costs[k] for k in range(len(costs))]
    assert rates[best] >= max(rates) * (1 - 1e-9)
    assert best_length(alpha, linear_costs(cost * 1.5)) <= best
    assert best_length(min(0.99, alpha + 0.05), costs) >= best


@given(alphas, alphas, st.floats(0, 1), costs_, st.integers(0, 32))
def test_a_length_per_class_never_loses_on_one_sequence(code, chat, share, cost, k):
    mix, costs = Mix(code, chat, share), linear_costs(cost)
    assert gain(mix, costs, k) >= -1e-9
    assert gain(mix, costs, mix.best_fixed(costs)) >= -1e-9
    assert gain(mix, costs, k) >= gain(mix, costs, mix.best_fixed(costs)) - 1e-9
    for in_turn in (True, False):
        assert gain(mix, costs, k, 1, in_turn) == pytest.approx(gain(mix, costs, k))
        assert gain(mix, costs, k, 32, in_turn) <= gain(mix, costs, k) + 1e-9


@given(alphas, costs_, st.floats(0, 1))
def test_two_classes_alike_have_nothing_to_gain(alpha, cost, share):
    mix, costs = Mix(alpha, alpha, share), linear_costs(cost)
    assert gain(mix, costs, mix.best_fixed(costs)) == pytest.approx(0, abs=1e-9)


@given(st.floats(0, 1), st.booleans(), st.integers(0, 100))
def test_code_arrives_as_often_as_its_share(share, in_turn, seed):
    kinds = [r.kind for r in itertools.islice(arrivals(Mix(0.5, 0.5, share), seed, in_turn), 200)]
    assert kinds.count(CODE) == pytest.approx(200 * share, abs=1 if in_turn else 45)


def test_coins_belong_to_request_and_position():
    first, again = (list(itertools.islice(arrivals(MIX, 7, True), 3)) for _ in range(2))
    assert [r.standing for r in first] == [r.standing for r in again]
    run = first[0].standing
    assert all(run[i] == run[i + 1] + 1 for i in range(len(run) - 1) if run[i])


@pytest.mark.parametrize(
    ("cost", "batch", "in_turn"), [(0.04, 1, True), (0.19, 1, True), (0.19, 1, False), (0.19, 2, True), (0.19, 8, True)]
)
def test_the_interval_covers_the_closed_form(cost, batch, in_turn):
    costs = linear_costs(cost)
    blocks = list(simulate(MIX, costs, 4, batch, seed=3, in_turn=in_turn))
    found = estimate(blocks, "per class")
    assert found.low <= gain(MIX, costs, 4, batch, in_turn) <= found.high
    assert found.high - found.low < (0.06 if in_turn else 0.1)
    assert estimate(blocks, "fixed").mean == 0


def test_the_oracle_is_best_on_one_sequence_and_the_controller_comes_near_its_class():
    blocks = list(simulate(MIX, DEAR, 4, 1, seed=0))
    gains = {name: estimate(blocks, name).mean for name in ("best fixed", "per class", "controller", "oracle")}
    assert gains["oracle"] == max(gains.values())
    assert gains["best fixed"] < gains["controller"] < gains["oracle"]
    assert gains["controller"] == pytest.approx(gains["per class"], abs=0.03)
    assert estimate([], "per class") is None
    assert estimate(blocks[:1], "per class").low is None


@given(alphas, alphas, st.floats(0, 1), st.floats(0, 1), st.integers(0, 32), st.integers(1, 4), st.integers(0, 9))
def test_any_mix_simulates(code, chat, share, cost, k, batch, seed):
    block = next(simulate(Mix(code, chat, share), linear_costs(cost), k, batch, seed))
    for policy in block.policies:
        assert policy.time > 0
        assert policy.tokens > 0
        assert 0 <= policy.accepted <= policy.drafted


def test_the_controller_learns_and_comes_back_from_zero():
    state = Controller(DEAR, 0.5)
    for _ in range(60):
        state = state.after(state.k, 0)
    assert state.alpha < 0.2
    low = state.k
    for _ in range(200):
        state = state.after(0, 0)
    assert state.k > low
    for _ in range(60):
        state = state.after(state.k, state.k)
    assert state.alpha > 0.9
    assert Controller(DEAR, 0.5).after(4, 4).alpha > Controller(DEAR, 0.5).after(4, 2).alpha


def test_time_per_token_is_the_weighted_mean_of_the_classes():
    only_code = Mix(0.77, 0.35, 1.0)
    assert only_code.time_per_token(same(4), CHEAP) == pytest.approx(CHEAP[4] / expected_tokens(0.77, 4))
