"""Drafters: where a match is found, what is copied, and the rows of a draft model."""

from __future__ import annotations

import pytest
import torch

from playground.engine.drafters import DraftModel, NGram, Replay, find_match
from playground.engine.sampling import Context, chain, coins, softmax
from playground.engine.trace import KVRows
from tests.engine.tables import table


@pytest.mark.parametrize(
    ("ids", "k", "longest", "eos", "copied"),
    [
        ([1, 2, 3], 3, 2, (), []),
        ([1, 2, 3, 1, 2], 3, 2, (), [3, 1, 2]),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, 2, (), [9]),
        ([5, 1, 2, 9, 1, 2, 8, 5, 1, 2], 1, 3, (), [9]),
        ([7, 0, 5, 7], 3, 1, (0,), []),
        ([7, 4, 0, 5, 7], 4, 1, (0,), [4]),
        ([3, 3, 3], 5, 2, (), [3]),
        ([3, 3], 5, 1, (), [3]),
        ([3], 5, 1, (), []),
        ([], 5, 3, (), []),
    ],
)
def test_prompt_lookup(ids, k, longest, eos, copied):
    draft = NGram(longest, eos_ids=frozenset(eos)).propose(Context(ids, len(ids)), k, coins(0))
    assert list(draft.tokens) == copied
    assert draft.q is None


def test_the_longest_suffix_wins_and_short_ones_can_be_refused():
    ids = [4, 1, 2, 9, 2, 8, 1, 2]
    assert (find_match(ids, 3).start, find_match(ids, 3).length) == (1, 2)
    assert find_match([2, 8, 1, 2], 3, shortest=2) is None


def test_a_match_is_remembered_for_the_picture():
    drafter = NGram(2)
    drafter.propose(Context([1, 2, 3, 1, 2], 5), 3, coins(0))
    assert (drafter.match.start, drafter.match.length) == (0, 2)
    drafter.propose(Context([1, 2, 3], 3), 3, coins(0))
    assert drafter.match is None


PROMPT = [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("accepted", "kept", "rolled_back", "missing"), [(0, 1, 3, 0), (1, 2, 2, 0), (3, 4, 0, 0), (4, 4, 0, 1)]
)
def test_rows_of_a_draft_model_after_the_target_has_judged(accepted, kept, rolled_back, missing):
    """Four single-token passes write rows for the newest token and the first three drafts; none for the fourth."""
    session = table(4, 1).session(PROMPT)
    drafter = DraftModel(session, ())
    drafter.propose(Context(PROMPT, 5), 1, coins(0))
    drafter.sync(PROMPT)  # so all rows but the newest token's are in
    draft = drafter.propose(Context(PROMPT, 5), 4, coins(0))
    other = next(t for t in range(4) if accepted == 4 or t != draft.tokens[accepted])
    committed = [*PROMPT, *draft.tokens[:accepted], other]
    assert drafter.sync(committed) == KVRows(len(PROMPT) - 1, 4, kept, rolled_back, missing)
    assert session.num_kv_rows + missing == len(committed) - 1


@pytest.mark.parametrize("accepted", range(5))
def test_the_next_draft_is_the_one_a_fresh_session_would_make(accepted):
    model = table(4, 1)
    drafter = DraftModel(model.session(PROMPT), ())
    draft = drafter.propose(Context(PROMPT, 5), 4, coins(0))
    committed = [*PROMPT, *draft.tokens[:accepted], 2]
    drafter.sync(committed)
    again = drafter.propose(Context(committed, 5), 4, coins(0))
    fresh = DraftModel(model.session(committed), ()).propose(Context(committed, 5), 4, coins(0))
    assert again.tokens == fresh.tokens
    assert torch.equal(again.q, fresh.q)


def test_q_is_the_law_that_the_token_was_drawn_from():
    model, knobs = table(6, 2), chain(temperature=0.7, top_k=2, repetition_penalty=1.3)
    draft = DraftModel(model.session(PROMPT), knobs).propose(Context(PROMPT, 5), 4, coins(1))
    assert ((draft.q > 0).sum(-1) == 2).all()
    assert all(draft.q[i, token] > 0 for i, token in enumerate(draft.tokens))
    raw = softmax(model.session([*PROMPT, *draft.tokens[:3]]).score(type(draft)()).logits)
    assert not torch.allclose(draft.q[3], raw[0])


def test_a_full_context_ends_the_drafting_not_the_run():
    model = table(4, 1, max_tokens=6)
    drafter = DraftModel(model.session(PROMPT), ())
    assert len(drafter.propose(Context(PROMPT, 5), 4, coins(0))) == 1
    assert len(drafter.propose(Context([*PROMPT, 1, 2], 5), 4, coins(0))) == 0


def test_a_replay_goes_on_where_the_output_is():
    replay = Replay((5, 6, 7, 8))
    assert replay.propose(Context((1, 2, 5), 2), 2, coins(0)).tokens == (6, 7)
    assert replay.propose(Context((1, 2, 5, 6, 7, 8), 2), 2, coins(0)).tokens == ()
