"""Verification keeps the target's law whatever the drafter: exactly, by integrating the rules over their coins."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from playground.engine.exact import exact_law, first_token_law
from playground.engine.sampling import Coin, coins, draw
from playground.engine.tree import ROOT, Draft
from playground.engine.verify import (
    Rule,
    residual,
    verify_greedy,
    verify_match_keep,
    verify_match_redraw,
    verify_sampling,
)
from tests.engine.tables import Tokens, completed, laws, plain, rows, sample_tree, shapes, trees


def law(*p: float) -> Tensor:
    return torch.tensor(p, dtype=torch.float64)


def drawn(q: Tensor, coin: Coin) -> tuple[int, Tensor]:
    return draw(q, coin(0, "draft")), q


def argmax_soft_q(q: Tensor, coin: Coin) -> tuple[int, Tensor]:
    return int(q.argmax()), q


def one_hot(q: Tensor, coin: Coin) -> tuple[int, None]:
    return int(q.argmax()), None


def law_error(rule: Rule, p: dict[Tokens, Tensor], propose, length: int) -> float:
    """The largest difference between the law of the first tokens after one pass and that of plain sampling."""

    def sample(coin: Coin) -> tuple[Tokens, Tokens]:
        draft = propose(coin)
        verdict = rule(draft, rows(draft, p), coin, 0)
        return draft.tokens, (*(draft.tokens[i] for i in verdict.path), verdict.token)

    found: dict[Tokens, float] = {}
    for (_, output), probability in exact_law(sample).items():
        found[output] = found.get(output, 0.0) + probability
    return max(abs(probability - plain(p, tokens)) for tokens, probability in completed(found, p, length).items())


# --- The output law -------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(draft=trees(vocab=4), seed=st.integers(0, 999), rule=st.sampled_from([verify_sampling, verify_match_keep]))
def test_trees_chosen_without_chance_keep_the_law(draft, seed, rule):
    assert law_error(rule, laws(4, seed, 4), lambda coin: draft, 3) < 1e-13


@settings(max_examples=4)
@given(shape=shapes(max_nodes=3, max_depth=2, max_children=3), seed=st.integers(0, 999))
def test_trees_sampled_without_replacement_keep_the_law(shape, seed):
    p, q = laws(3, seed, 3), laws(3, seed + 1000, 3)
    assert law_error(verify_sampling, p, lambda coin: sample_tree(shape, q, coin), 2) < 1e-13


@pytest.mark.parametrize("rule", [verify_sampling, verify_match_keep])
def test_sampled_chains_keep_the_law(rule):
    p, q = laws(3, 1, 3), laws(3, 2, 3)
    assert law_error(rule, p, lambda coin: sample_tree((ROOT, 0), q, coin), 3) < 1e-13


def test_a_longer_chain_over_two_tokens_keeps_the_law():
    p, q = laws(2, 3, 4), laws(2, 4, 4)
    assert law_error(verify_sampling, p, lambda coin: sample_tree((ROOT, 0, 1), q, coin), 4) < 1e-13


def test_siblings_that_all_claim_the_first_ones_law_are_biased():
    p, q = laws(3, 5, 3), laws(3, 6, 3)

    def not_renormalised(coin):
        draft = sample_tree((ROOT, ROOT), q, coin)
        return Draft(draft.tokens, draft.parents, draft.q[:1].expand(2, -1))

    assert law_error(verify_sampling, p, not_renormalised, 2) > 1e-3


# --- One token, by hand ---------------------------------------------------------------------------------------------

TWO, SOFT = law(0.6, 0.4), law(0.8, 0.2)


@pytest.mark.parametrize(
    ("rule", "propose", "expected", "acceptance"),
    [
        (verify_sampling, drawn, (0.6, 0.4), 0.8),
        (verify_sampling, one_hot, (0.6, 0.4), 0.6),
        (verify_sampling, argmax_soft_q, (0.75, 0.25), 0.75),
        (verify_match_keep, drawn, (0.6, 0.4), 0.56),
        (verify_match_redraw, drawn, (0.6 * 0.8 + 0.44 * 0.6, 0.4 * 0.2 + 0.44 * 0.4), 0.56),
    ],
)
def test_law_and_acceptance_of_each_rule(rule, propose, expected, acceptance):
    exact = first_token_law(rule, TWO, SOFT, propose)
    assert exact.law == pytest.approx(expected, abs=1e-14)
    assert exact.acceptance == pytest.approx(acceptance, abs=1e-14)


def test_three_tokens():
    exact = first_token_law(verify_sampling, law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3), drawn)
    assert exact.law == pytest.approx((0.5, 0.3, 0.2), abs=1e-14)
    assert exact.acceptance == pytest.approx(0.7, abs=1e-14)
    assert exact.accepted == pytest.approx((0.2, 0.3, 0.2), abs=1e-14)


def test_q_must_be_the_law_after_the_filter():
    p, raw, filtered = law(0.5, 0.5, 0, 0), law(0.4, 0.3, 0.2, 0.1), law(4 / 7, 3 / 7, 0, 0)
    right = first_token_law(verify_sampling, p, filtered, drawn)
    assert right.law == pytest.approx((0.5, 0.5, 0, 0), abs=1e-14)
    assert right.acceptance == pytest.approx(13 / 14, abs=1e-14)
    wrong = first_token_law(verify_sampling, p, filtered, lambda q, coin: (draw(q, coin(0, "draft")), raw))
    assert wrong.law == pytest.approx((4 / 7, 3 / 7, 0, 0), abs=1e-14)


def test_a_second_deterministic_child_is_judged_with_what_is_left():
    p = law(0.6, 0.2, 0.1, 0.1)
    assert first_token_law(verify_sampling, p, law(0.7, 0.2, 0.05, 0.05), drawn).acceptance == pytest.approx(0.9)
    draft = Draft((0, 1), (ROOT, ROOT))

    def sample(coin: Coin) -> tuple[Tokens, int]:
        verdict = verify_sampling(draft, p.expand(3, -1), coin, 0)
        return verdict.path, verdict.token if not verdict.path else draft.tokens[verdict.path[0]]

    found = exact_law(sample)
    assert found[(0,), 0] == pytest.approx(0.6, abs=1e-14)
    assert found[(1,), 1] == pytest.approx(0.4 * 0.5, abs=1e-14)
    first = [sum(w for (_, token), w in found.items() if token == t) for t in range(4)]
    assert first == pytest.approx(p.tolist(), abs=1e-14)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_a_token_that_the_target_never_says_is_rejected_also_when_q_is_zero(u):
    p = law(1, 0)
    verdict = verify_sampling(Draft.chain([1], p[None]), p.expand(2, -1), lambda *_: u, 0)
    assert (verdict.path, verdict.token, verdict.is_recovered) == ((), 0, True)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("q", [(0.5, 0.5), (1.0, 0.0)])
def test_a_token_that_the_target_says_more_often_than_q_always_stands(u, q):
    p = law(0.5, 0.5)
    assert verify_sampling(Draft.chain([1], law(*q)[None]), p.expand(2, -1), lambda *_: u, 0).path == (0,)


def test_verification_leaves_p_as_it_was():
    p = law(0.5, 0.3, 0.2).expand(2, -1).clone()
    verdict = verify_sampling(Draft.chain([0]), p, lambda *_: 0.9, 0)
    assert verdict.law.tolist() == pytest.approx([0, 0.6, 0.4])
    assert p.tolist() == [[0.5, 0.3, 0.2]] * 2
    assert first_token_law(verify_sampling, p[0], p[0], one_hot).law == pytest.approx((0.5, 0.3, 0.2), abs=1e-14)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_what_is_left_of_p_is_always_a_law(p, q):
    p, q = law(*p), law(*q[: len(p)])
    if p.sum() > 0 and q.sum() > 0:
        left = residual(p / p.sum(), q / q.sum(), 0)
        assert float(left.sum()) == pytest.approx(1)
        assert (left >= 0).all()


# --- Greedy ---------------------------------------------------------------------------------------------------------


@given(draft=trees(vocab=3, max_nodes=6), seed=st.integers(0, 9999))
def test_greedy_walks_down_the_targets_own_choices(draft, seed):
    p = laws(3, seed, 4)
    output: Tokens = ()
    expected, node = [], ROOT
    while True:
        choice = int(p[output].argmax())
        hit = [child for child in draft.children(node) if draft.tokens[child] == choice]
        if not hit:
            break
        node, output = hit[0], (*output, choice)
        expected.append(node)
    verdict = verify_greedy(draft, rows(draft, p), coins(0), 0)
    assert (verdict.path, verdict.token) == (tuple(expected), choice)
    assert verdict.is_recovered == bool(draft.children(node))
    assert set(verdict.coins) == {c for parent in (ROOT, *expected) for c in draft.children(parent)}


@given(draft=trees(vocab=4), seed=st.integers(0, 9999))
def test_sampling_at_temperature_zero_is_the_greedy_test(draft, seed):
    p = {path: torch.eye(4, dtype=torch.float64)[row.argmax()] for path, row in laws(4, seed, 4).items()}
    greedy, sampled = (rule(draft, rows(draft, p), coins(seed), 0) for rule in (verify_greedy, verify_sampling))
    assert (greedy.path, greedy.token) == (sampled.path, sampled.token)


def test_the_bonus_follows_the_last_accepted_node():
    p = torch.eye(4, dtype=torch.float64)[[1, 2, 3]]
    verdict = verify_greedy(Draft.chain([1, 2]), p, coins(0), 0)
    assert (verdict.path, verdict.token, verdict.is_recovered) == ((0, 1), 3, False)


def test_coins_are_recorded_by_node():
    draft = Draft((0, 1), (ROOT, ROOT))
    verdict = verify_sampling(draft, law(0.1, 0.1, 0.8).expand(3, -1), lambda position, purpose: 0.5, 7)
    assert verdict.coins == {0: 0.5, 1: 0.5}
    assert verdict.emit_coin == 0.5
    assert math.isclose(float(verdict.law.sum()), 1)
