"""Knobs in every order: candidate sets, what commutes, how orders are read, engines; and the three rarer filters."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.engine.filters import TopKTopP, TopNSigma, TypicalP
from playground.engine.order import (
    ENGINES,
    all_orders,
    candidates,
    commuting,
    fit,
    read_order,
    switched_on,
    walk,
)
from playground.engine.sampling import Context, Knob, MinP, Temperature, TopK, TopP, apply, softmax
from playground.engine.shaping import contested, distinct_sets, shaped

P = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
THREE = switched_on(temperature=2, top_k=4, top_p=0.7)


def logits(p: list[float]) -> torch.Tensor:
    return torch.tensor([p], dtype=torch.float64).log()


def kept(p: list[float], *knobs: Knob) -> set[int]:
    return set(candidates(apply(knobs, logits(p))))


# --- Filters ----------------------------------------------------------------------------------------------------------


def test_top_k_and_top_p_on_one_law():
    p = [0.4, 0.2, 0.2, 0.1, 0.1]
    assert kept(p, TopK(2), TopP(0.6)) == {0}
    assert kept(p, TopKTopP(2, 0.6)) == {0, 1}


def test_typical_p_keeps_what_is_near_the_entropy():
    """Entropy of (.5, .25, .125, .125) is 1.75 bits: surprises 1, 2, 3, 3 bits stand .75, .25, 1.25, 1.25 away."""
    p = [0.5, 0.25, 0.125, 0.125]
    assert kept(p, TypicalP(0.2)) == {1}
    assert kept(p, TypicalP(0.25)) == {1}
    assert kept(p, TypicalP(0.26)) == {0, 1}
    assert kept(p, TypicalP(0.8)) == {0, 1, 2}
    assert kept(p, TypicalP(0)) == {1}
    assert kept(p, TypicalP(1)) == {0, 1, 2, 3}
    assert kept([0.25] * 4, TypicalP(0.5)) == {0, 1}


def test_typical_p_leaves_removed_tokens_removed():
    assert kept([0.5, 0.25, 0.125, 0.125], TopK(2), TypicalP(0.99)) == {0, 1}


def test_top_n_sigma_counts_deviations_of_the_tokens_left():
    """Logits 0, -1, -2, -3 deviate by sqrt(1.25) = 1.118 around their mean."""
    row = torch.tensor([[0.0, -1, -2, -3]], dtype=torch.float64)
    assert candidates(TopNSigma(1)(row)) == {0, 1}
    assert candidates(TopNSigma(2)(row)) == {0, 1, 2}
    assert candidates(TopNSigma(0)(row)) == candidates(TopNSigma(-1)(row)) == {0, 1, 2, 3}
    half = math.sqrt(0.25)  # after top-2: 0 and -1
    assert candidates(TopNSigma(1.9 * half)(TopK(2)(row))) == {0}
    flat = torch.zeros(1, 3, dtype=torch.float64)
    assert candidates(TopNSigma(1)(flat)) == {0, 1, 2}


@pytest.mark.parametrize("make", [lambda: TypicalP(-0.1), lambda: TypicalP(math.nan), lambda: TopNSigma(math.inf)])
def test_filters_out_of_range(make):
    with pytest.raises(ValueError, match=r"typical-p|top-n-sigma"):
        make()


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7), st.floats(0, 1))
def test_typical_p_against_a_sorted_list(weights, mass):
    p = [w / sum(weights) for w in weights]
    entropy = -sum(x * math.log(x) for x in p)
    order = sorted(range(len(p)), key=lambda i: (round(abs(-math.log(p[i]) - entropy), 9), i))
    ahead = [sum(p[i] for i in order[:n]) for n in range(len(p))]
    expected = {order[0]} | {order[n] for n in range(len(p)) if ahead[n] < mass}
    far = [round(abs(-math.log(x) - entropy), 9) for x in p]
    near = any(0 < abs(x - y) < 1e-8 for x, y in itertools.combinations(far, 2)) or any(
        abs(m - mass) < 1e-9 for m in ahead
    )
    assert near or mass == 1 or kept(p, TypicalP(mass)) == expected


# --- Orders -----------------------------------------------------------------------------------------------------------


def test_six_orders_leave_two_three_or_four_tokens():
    laws = dict(all_orders(THREE, logits(P)))
    counts = {order: len(candidates(law)) for order, law in laws.items()}
    assert counts == {"KPT": 2, "KTP": 3, "PKT": 3, "PTK": 3, "TKP": 3, "TPK": 4}
    sets = distinct_sets(laws, logits(P))
    assert [s.tokens for s in sets] == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert sets[0].orders == ("KPT",)
    assert {each.token: each.orders for each in contested(laws, logits(P))} == {
        2: ("KTP", "PKT", "PTK", "TKP", "TPK"),
        3: ("TPK",),
    }


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.permutations("TKPM"))
def test_an_order_is_its_knobs_one_after_another(weights, order):
    p = [w / sum(weights) for w in weights]
    on = switched_on(temperature=1.7, top_k=3, top_p=0.8, min_p=0.2)
    knobs = {"T": Temperature(1.7), "K": TopK(3), "P": TopP(0.8), "M": MinP(0.2)}
    alone = apply([knobs[letter] for letter in order], logits(p))
    *_, last = walk("".join(order), on, logits(p))
    assert torch.equal(last, alone)
    assert torch.equal(dict(all_orders(on, logits(p)))["".join(order)], alone)


def test_steps_name_what_each_knob_took():
    steps = shaped("KPT", list(walk("KPT", THREE, logits(P))), range(6))
    assert [(s.letter, s.num_left, s.num_removed, s.removed) for s in steps] == [
        ("", 6, 0, ()),
        ("K", 4, 2, (4, 5)),
        ("P", 2, 2, (2, 3)),
        ("T", 2, 0, ()),
    ]
    assert steps[-1].law[:2] == pytest.approx((0.5585, 0.4415), abs=1e-4)
    assert all(sum(s.law) + s.tail == pytest.approx(1) for s in steps)


def test_what_commutes_is_computed():
    on = switched_on(temperature=2, top_k=4, top_p=0.7, min_p=0.1, top_n_sigma=1.5)
    pairs = {pair.first + pair.second: pair for pair in commuting(on, logits(P))}
    assert [name for name, pair in pairs.items() if not pair.num_different] == ["TK", "TS", "KM"]
    assert pairs["TP"].num_different > 100
    assert not pairs["KP"].is_same_here


def test_penalties_may_stand_anywhere():
    on = switched_on(top_k=2, frequency_penalty=0.6)
    seen = [Context((0, 0, 0), 0)]
    laws = dict(all_orders(on, logits([0.4, 0.3, 0.2, 0.1]), seen))
    assert {order: candidates(law) for order, law in laws.items()} == {"KF": {0, 1}, "FK": {1, 2}}


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("KPT", "KPT"),
        ("k, p, t", "KPT"),
        ("top_k,top-p, Temperature", "KPT"),
        ("temperature", "T"),
        ("frequency_penalty, min_p", "FM"),
        (" T J ", "TJ"),
        ("", ""),
    ],
)
def test_orders_are_letters_or_names(text, letters):
    assert read_order(text) == letters


@pytest.mark.parametrize(("text", "says"), [("KXT", "'X'"), ("KPK", "K twice"), ("JK", "J"), ("hope, top_k", "'hope'")])
def test_orders_that_cannot_be(text, says):
    with pytest.raises(ValueError, match=says):
        read_order(text)


@pytest.mark.parametrize(
    ("order", "fitted"),
    [("KPT", ("KPT", "")), ("T", ("TKP", "KP")), ("MTKP", ("TKP", "")), ("JT", ("JT", "")), ("J", ("JT", "T"))],
)
def test_knobs_that_are_off_go_and_those_not_named_come_last(order, fitted):
    assert fit(order, THREE) == fitted


def test_joint_with_one_of_its_two_off_is_the_other():
    assert fit("TJ", switched_on(temperature=2, top_p=0.5)) == ("TP", "")
    assert fit("TJ", switched_on(temperature=2)) == ("T", "")


def test_engines_on_the_six_tokens():
    left = {}
    for engine in ENGINES:
        *_, last = walk(engine.order_for(THREE), THREE, logits(P))
        left[engine.name] = len(candidates(last))
    assert left == {"transformers": 3, "vLLM": 3, "llama.cpp": 2, "SGLang": 4}


def test_engines_leave_out_what_they_do_not_have():
    on = switched_on(temperature=2, top_k=4, top_p=0.7, min_p=0.1, typical_p=0.9, top_n_sigma=1)
    by_name = {engine.name: (engine.order_for(on), engine.missing(on)) for engine in ENGINES}
    assert by_name == {
        "transformers": ("TKPMY", "S"),
        "vLLM": ("TMKP", "YS"),
        "llama.cpp": ("SKYPMT", ""),
        "SGLang": ("TKPM", "YS"),
    }


def test_transformers_agrees_where_nothing_ties():
    """The incumbent's own processors, in the order that its generation puts them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig(
        do_sample=True, temperature=1.4, top_k=20, top_p=0.8, min_p=0.05, typical_p=0.9
    )
    rows = 3 * torch.randn(5, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made = transformers.GenerationMixin._get_logits_processor(_Asker(), config)
    assert [type(each).__name__.removesuffix("LogitsWarper") for each in made] == [
        "Temperature", "TopK", "TopP", "MinP", "Typical",
    ]  # fmt: skip
    on = switched_on(temperature=1.4, top_k=20, top_p=0.8, min_p=0.05, typical_p=0.9)
    order = next(engine for engine in ENGINES if engine.name == "transformers").order_for(on)
    for row in rows:
        theirs = softmax(made(torch.zeros(1, 1, dtype=torch.long), row[None].clone()))
        *_, ours = walk(order, on, row[None])
        assert torch.allclose(softmax(ours), theirs, atol=1e-12)


class _Asker:
    """What transformers asks of the model whose processors it lists."""

    def __getattr__(self, name):
        if name == "config":
            return type("Config", (), {"is_encoder_decoder": False})()
        if name == "_merge_criteria_processor_list":
            return lambda ours, theirs: ours
        raise AttributeError(name)
