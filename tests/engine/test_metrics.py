"""Figures of a lane: counters as vLLM counts them, tokens as they were committed, nothing where there is nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.metrics import count, summarise
from playground.engine.trace import KVRows, Lane, Node, Output, Pass
from tests.engine.tables import RandomTrees, outputs, run, table


def a_pass(drafted: int, accepted: int, kept: int | None = None, finish: str | None = None) -> Pass:
    """A pass over a chain, one millisecond of everything; ``kept`` tokens survive the stop rule."""
    nodes = [Node(1, i - 1, i + 1, "accepted" if i < accepted else "rejected", 0.5, 0.5, 0.5) for i in range(drafted)]
    out = [Output(1, "accepted" if i < accepted else "bonus", 0.5, -0.7) for i in range(accepted + 1)][:kept]
    discarded = accepted + 1 - len(out)
    kv = KVRows(0, drafted + 1, accepted + 1, drafted - accepted)
    return Pass(0, tuple(nodes), (), tuple(out), None, accepted, discarded, kv, None, 0, 1, 1, 1, finish)


def lane(steps: Sequence[tuple[int, ...]]) -> Lane:
    return Lane("speculative", (1,), tuple(a_pass(*step) for step in steps))


def test_core_formulas():
    accepted = [4, 4, 4, 4, 3, 3, 2, 1, 1, 0]  # by position 9, 7, 6, 4
    figures = summarise(lane([(4, a) for a in accepted]))
    assert (figures["num_drafts"], figures["drafted_tokens"], figures["accepted_tokens"]) == (10, 40, 26)
    assert figures["acceptance_rate"] == pytest.approx(0.65)
    assert figures["mean_acceptance_length"] == pytest.approx(3.6)
    assert figures["acceptance_per_position"] == pytest.approx((0.9, 0.7, 0.6, 0.4))
    assert figures["conditional_per_position"] == pytest.approx((0.9, 7 / 9, 6 / 7, 4 / 6))
    assert (figures["output_tokens"], figures["target_passes"]) == (36, 10)


def test_an_end_of_sequence_inside_the_draft_shows_in_the_emitted_length_only():
    figures = summarise(lane([(5, 5, 3, "eos")]))
    assert figures["mean_acceptance_length"] == 6
    assert figures["mean_emitted_length"] == 3
    assert figures["finish_reason"] == "eos"


def test_an_empty_draft_is_no_draft():
    figures = summarise(lane([(4, 4), (2, 1), (0, 0), (3, 0)]))
    assert (figures["num_drafts"], figures["drafted_tokens"], figures["accepted_tokens"]) == (3, 9, 5)
    assert figures["acceptance_rate"] == pytest.approx(5 / 9)
    assert figures["acceptance_per_position"] == pytest.approx((2 / 3, 1 / 3, 1 / 3, 1 / 3))


def test_no_drafts_is_no_data():
    for steps in ([], [(0, 0), (0, 0)]):
        figures = summarise(lane(steps))
        for name in ("acceptance_rate", "mean_acceptance_length", "mean_emitted_length"):
            assert figures[name] is None
        assert figures["acceptance_per_position"] == figures["conditional_per_position"] == ()
    assert summarise(lane([]))["tokens_per_second"] is None
    assert summarise(lane([]))["finish_reason"] is None


def test_a_position_that_was_never_reached_has_no_conditional_rate():
    figures = summarise(lane([(3, 1)]))
    assert figures["acceptance_per_position"] == (1, 0, 0)
    assert figures["conditional_per_position"] == (1, 0, None)


def test_times_are_sums_and_the_clock_is_the_lanes_own():
    figures = summarise(Lane("x", (1,), (a_pass(2, 2), a_pass(2, 0))))
    assert (figures["draft_ms"], figures["verify_ms"], figures["other_ms"]) == (2, 2, 2)
    assert figures["tokens_per_second"] == pytest.approx(4 / 0.003)  # the last step ended at 3 ms


@given(seed=st.integers(0, 999), k=st.integers(1, 4), eos=st.booleans())
def test_invariants_of_a_run(seed, k, eos):
    model = table(4, seed, 2.0)
    plain = outputs(run(model, [0, 1], max_new_tokens=12))
    steps = list(run(model, [0, 1], RandomTrees(seed, 4, plain), k=k, max_new_tokens=12))
    counters = count(steps)
    assert sum(counters.accepted_per_position) == counters.accepted_tokens <= counters.drafted_tokens
    assert sorted(counters.accepted_per_position, reverse=True) == list(counters.accepted_per_position)
    if counters.num_drafts:
        assert 1 <= counters.mean_acceptance_length <= k + 1
        assert sum(counters.acceptance_per_position) == pytest.approx(counters.mean_acceptance_length - 1)
    assert len(plain) == sum(step.num_verified + 1 - step.discarded for step in steps)
