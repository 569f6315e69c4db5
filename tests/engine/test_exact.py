"""Exact laws of known functions of coins."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.exact import exact_law
from playground.engine.sampling import draw


def test_no_coin_is_a_certain_outcome():
    assert exact_law(lambda coin: "always") == {"always": 1.0}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_inverse_cdf_gives_back_its_law(weights):
    law = torch.tensor(weights, dtype=torch.float64)
    law /= law.sum()
    found = exact_law(lambda coin: draw(law, coin(0, "emit")))
    assert [found[token] for token in range(len(law))] == pytest.approx(law.tolist(), abs=1e-15)


def test_a_coin_asked_for_twice_is_one_coin():
    assert exact_law(lambda coin: (coin(0, "a") < 0.3, coin(0, "a") < 0.3)) == {
        (True, True): pytest.approx(0.3, abs=1e-15),
        (False, False): pytest.approx(0.7, abs=1e-15),
    }


def test_the_second_coin_may_depend_on_the_first():
    def sample(coin):
        return ("left", coin(1, "l") < 0.25) if coin(0, "side") < 0.5 else ("right", coin(1, "r") < 0.75)

    found = exact_law(sample)
    assert found[("left", True)] == found[("right", False)] == 0.125
    assert sum(found.values()) == pytest.approx(1, abs=1e-15)


def test_three_coins_multiply():
    found = exact_law(lambda coin: tuple(coin(i, "x") < 0.1 * (i + 1) for i in range(3)))
    for outcome in itertools.product((True, False), repeat=3):
        expected = 1.0
        for i, low in enumerate(outcome):
            expected *= 0.1 * (i + 1) if low else 1 - 0.1 * (i + 1)
        assert found[outcome] == pytest.approx(expected, abs=1e-15)


def test_a_hint_finds_a_narrow_piece_between_two_alike():
    def narrow(coin):
        return 0.501 <= coin(0, "a") < 0.502

    assert exact_law(narrow, hints=[0.501, 0.502])[True] == pytest.approx(0.001, abs=1e-15)


def test_a_wrong_hint_changes_nothing():
    found = exact_law(lambda coin: coin(0, "a") < 0.4, hints=[0.1, 0.39, 0.9])
    assert found == {True: pytest.approx(0.4, abs=1e-15), False: pytest.approx(0.6, abs=1e-15)}
