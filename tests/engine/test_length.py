"""Draft length: the schedule, and what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.drafters import NGram, NoDrafter, Replay
from playground.engine.length import Fixed, Heuristic, room
from tests.engine.tables import outputs, run, table


@pytest.mark.parametrize(
    ("k", "drafted", "accepted", "after"), [(5, 5, 5, 7), (5, 5, 3, 4), (1, 1, 0, 1), (3, 0, 0, 3)]
)
def test_two_more_after_full_acceptance_else_one_less(k, drafted, accepted, after):
    assert Heuristic(k).after(drafted, accepted).k == after


def test_a_policy_does_not_leak_into_the_next_run():
    policy = Heuristic(2)
    assert policy.after(2, 2).after(4, 4).after(6, 6).k == 8
    assert policy.k == 2


def test_an_empty_draft_at_the_end_changes_nothing():
    """All rejected with k = 2 and four tokens: the last pass has no room for a draft."""
    model = table(3, 1)
    plain = outputs(run(model, [0, 1], max_new_tokens=4))
    wrong = Replay(tuple((token + 1) % 3 for token in plain))
    steps = list(run(model, [0, 1], wrong, length=Heuristic(2), max_new_tokens=4))
    assert [len(step.nodes) for step in steps] == [2, 1, 1, 0]


@pytest.mark.parametrize(("remaining", "k"), [(1, 0), (2, 1), (3, 2), (10, 3)])
def test_a_draft_leaves_room_for_the_targets_own_token(remaining, k):
    assert room(3, remaining, 100) == k
    assert room(3, 100, remaining) == k


@given(n=st.integers(1, 7), k=st.sampled_from([1, 2, 3, 10]), seed=st.integers(0, 99), oracle=st.booleans())
def test_exactly_as_many_tokens_as_asked_for(n, k, seed, oracle):
    model = table(3, seed, 3.0)
    plain = outputs(run(model, [0, 1], NoDrafter(), max_new_tokens=9))
    drafter = Replay(plain) if oracle else NGram(2)
    steps = list(run(model, [0, 1], drafter, length=Fixed(k), max_new_tokens=n))
    assert outputs(steps) == plain[:n]
    assert steps[-1].finish == "length"
    assert all(len(step.nodes) <= k for step in steps)
