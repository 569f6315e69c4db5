"""Drafters on the same contexts: merged chains, and counters along a known reply that are those of the loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.draft_trees import best_tree
from playground.engine.drafters import DraftModel, NGram
from playground.engine.face_to_face import (
    DraftedChain,
    SideBySide,
    Together,
    accepted_depth,
    follow,
    merge,
    most_telling,
    side_by_side,
    total,
)
from playground.engine.metrics import count
from playground.engine.sampling import Temperature
from playground.engine.tree import Draft
from playground.engine.tree_drafting import Dynamic, Ranked, SessionGuesser, TreeDrafter
from tests.engine.tables import outputs, run, table

PROMPT = [0, 1, 2, 0, 1]
chains = st.lists(st.integers(0, 2), min_size=0, max_size=4).map(Draft.chain)


@given(chains, chains)
def test_a_merged_tree_holds_both_chains(a, b):
    draft, paths = merge({"a": a, "b": b})
    for name, chain in (("a", a), ("b", b)):
        assert tuple(draft.tokens[i] for i in paths[name]) == chain.tokens
        assert draft.path(paths[name][-1]) == paths[name] if chain else paths[name] == ()


def makers(model, other):
    return {
        "ngram": lambda: NGram(3),
        "chain": lambda: DraftModel(other.session(PROMPT), (Temperature(0.0),)),
        "tree": lambda: TreeDrafter(SessionGuesser(other.session(PROMPT)), Ranked(best_tree((0.5, 0.3), 6, 3))),
        "dynamic": lambda: TreeDrafter(SessionGuesser(other.session(PROMPT)), Dynamic(6, 3, 2)),
    }


@pytest.mark.parametrize("name", ["ngram", "chain", "tree", "dynamic"])
@pytest.mark.parametrize("seed", range(4))
def test_counters_along_a_known_reply_are_those_of_the_loop(name, seed):
    model, other = table(4, seed, 2.0), table(4, seed + 50)
    make = makers(model, other)[name]
    steps = list(run(model, PROMPT, make(), k=3, max_new_tokens=16))
    found = follow(make(), PROMPT, outputs(steps), None, 3)
    counters = count(steps)
    assert found.num_passes == len(steps)
    assert found.num_tokens == 16
    assert found.counters.num_drafts == counters.num_drafts
    assert found.counters.accepted_per_position == counters.accepted_per_position
    assert total([found, found]).mean_acceptance_length == counters.mean_acceptance_length


def test_together_shows_what_each_would_have_drafted_alone():
    model, other = table(4, 3, 2.0), table(4, 60)
    both = Together({"a": DraftModel(other.session(PROMPT), (Temperature(0.0),)), "b": NGram(2)})
    passes = run(model, PROMPT, both, k=3, max_new_tokens=12)
    moments = list(side_by_side(passes, both, PROMPT))
    assert moments
    plain = outputs(run(model, PROMPT, max_new_tokens=12))
    for moment in moments:
        reply = plain[moment.start - len(PROMPT) :]
        for chain in moment.chains:
            assert chain.num_accepted == accepted_depth(Draft.chain(chain.tokens), reply)
            assert all(0 <= p <= 1 for p in chain.p)


def test_the_most_telling_moment_has_the_largest_gap():
    def moment(start, blind, other):
        pair = (DraftedChain("m", (1, 2), (0.5, blind), 0), DraftedChain("e", (1, 3), (0.5, other), 0))
        return SideBySide(start, (1,), pair)

    moments = [moment(1, 0.5, 0.5), moment(2, 0.001, 0.9), moment(3, 0.1, 0.9)]
    assert most_telling(moments, "m", "e") == moments[1]
    assert most_telling([SideBySide(1, (), (DraftedChain("m", (1,), (0.5,), 0),))], "m", "e") is None
