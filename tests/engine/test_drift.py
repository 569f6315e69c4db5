"""Distances of laws, reading one text in step, and two planted faults that the experiments must see."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.drift import Reader, beside, divergence, free_run, lockstep, log_law, reshaped, variation
from playground.engine.drift_breaks import disturbed, places_of
from playground.engine.model import Scores
from playground.engine.tree import Draft
from tests.engine.tables import table

PROMPT = [0, 1, 2]
weights = st.lists(st.floats(0.01, 10), min_size=4, max_size=4)


def law(values) -> torch.Tensor:
    x = torch.tensor(values, dtype=torch.float64)
    return (x / x.sum()).log()


class Around:
    """A model whose sessions are changed by a wrapper."""

    def __init__(self, model, wrap):
        self.model, self.wrap = model, wrap

    def session(self, tokens):
        return self.wrap(self.model.session(tokens))


class Shared:
    """A session whose rows all depend on the largest drafted id, as with one scale for the whole pass."""

    def __init__(self, inner):
        self.inner, self.peak = inner, 0.0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def score(self, draft):
        return Scores(self.inner.score(draft).logits * (1 + 0.01 * max(draft.tokens, default=0)))

    def fork(self):
        twin = type(self)(self.inner.fork())
        twin.peak = self.peak
        return twin


class Remembers(Shared):
    """A session whose next passes depend on the largest id that was ever drafted, rejected or not."""

    def score(self, draft):
        logits = self.inner.score(draft).logits * (1 + 0.01 * self.peak)
        self.peak = max(self.peak, *draft.tokens, 0)
        return Scores(logits)


def text_of(model, num=8):
    reader = Reader(model, PROMPT)
    return [each.text_token for _, each in lockstep({"own": reader}, reader, frozenset(), num)], reader


@given(weights, weights)
def test_distances(a, b):
    p, q = law(a), law(b)
    want = 0.5 * sum(abs(x - y) for x, y in zip(p.exp().tolist(), q.exp().tolist(), strict=True))
    assert variation(p, q) == pytest.approx(want)
    assert variation(p, p) == 0
    assert divergence(p, p) == 0
    assert divergence(p, q) >= 2 * variation(p, q) ** 2 - 1e-12  # Pinsker


def test_what_nobody_says_counts_nothing():
    p, q = law([1.0, 1.0, 0.0]), law([3.0, 1.0, 0.0])
    assert divergence(p, q) == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert variation(p, q) == pytest.approx(0.25)


@given(weights, weights)
def test_they_part_where_the_shift_exceeds_the_lead(a, b):
    found = beside(law(a), law(b))
    assert found.lead >= 0
    assert found.is_same or found.shift >= found.lead
    assert found.overlap == pytest.approx(torch.minimum(law(a).exp(), law(b).exp()).sum().item())
    assert found.margin >= 0


def test_all_read_the_text_of_the_reference():
    reference, other = Reader(table(5, 1), PROMPT), Reader(table(5, 2), PROMPT)
    found = list(lockstep({"reference": reference, "other": other}, reference, frozenset(), 6))
    assert [name for name, _ in found] == ["reference", "other"] * 6
    assert all(each.tv == 0 and each.is_same for name, each in found if name == "reference")
    text = [each.text_token for name, each in found if name == "reference"]
    assert list(other.session.tokens) == list(reference.session.tokens) == [*PROMPT, *text[:-1]]
    other.read(text[-1])
    *_, own = free_run(other, text, frozenset())
    assert own.parted == next(i for i, (name, each) in enumerate(found[1::2]) if not each.is_same)
    session, tokens = table(5, 2).session(PROMPT), []
    while len(tokens) < 6:
        tokens.append(int(session.score(Draft()).logits[0].argmax()))
        session.commit((), tokens[-1])
    assert list(own.tokens) == tokens
    reference.read(text[-1])
    assert [each.tokens for each in free_run(reference, text, frozenset())] == [tuple(text)]


def test_the_text_ends_behind_an_end_token():
    text, _ = text_of(table(5, 1))
    reader = Reader(table(5, 1), PROMPT)
    assert len(list(lockstep({"own": reader}, reader, frozenset([text[2]]), 8))) == 1 + text.index(text[2])


@pytest.mark.parametrize("k", [1, 3, 4, 9])
def test_a_sound_model_has_one_law_whatever_the_pass(k):
    model = table(5, 3)
    text, reader = text_of(model)
    growing = list(reshaped(model, PROMPT, text, reader.logits, k))
    assert growing[-1].width == k + 1
    assert growing[-1].tv == (0.0,) * len(text)
    assert [len(each.tv) for each in growing] == [min(len(text), (i + 1) * (k + 1)) for i in range(len(growing))]


def test_a_sound_model_is_moved_by_nothing():
    text, _ = text_of(table(5, 3))
    *_, last = disturbed(table(5, 3), PROMPT, text, [0, 2, 4], 4, [4, 3])
    assert (last.places, last.later, last.after) == ((0, 2, 4), (0.0,) * 3, (0.0,) * 3)


def test_a_scale_shared_by_the_pass_is_seen():
    text, _ = text_of(table(5, 3))
    *_, last = disturbed(Around(table(5, 3), Shared), PROMPT, [0] * len(text), [0, 2, 4], 4, [4])
    assert min(last.later) > 0
    assert last.after == (0.0,) * 3  # this fault leaves no trace


def test_a_maximum_that_remembers_is_seen():
    *_, last = disturbed(Around(table(5, 3), Remembers), PROMPT, [0] * 8, [0, 2, 4], 4, [4])
    assert last.later == (0.0,) * 3
    assert min(last.after) > 0


@pytest.mark.parametrize("num", range(9))
def test_places_leave_room_for_a_later_draft(num):
    for most in (1, 3, 20):
        found = places_of(num, most, 4)
        assert len(found) == len(set(found)) <= most
        assert all(0 <= place <= num - 2 for place in found)
    assert places_of(16, 4, 4) == [0, 4, 8, 12]


def test_a_draft_of_one_has_no_later_token():
    with pytest.raises(ValueError, match="2 tokens or more"):
        next(disturbed(table(5, 3), PROMPT, [0] * 4, [0], 1, [4]))


def test_the_law_of_a_row():
    assert log_law(torch.zeros(2, 4)).exp().tolist() == [[0.25] * 4] * 2
