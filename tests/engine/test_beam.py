"""Beam search: conventions worked out by hand, state that follows the beams, and the blocks that they share."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from models.table import TableModel
from playground.engine.beam import CopiedSessions, beam_search
from playground.engine.kv import BlockPool, BlockTable, OutOfBlocks, Write, num_blocks_for
from playground.engine.trace import Trace
from playground.engine.tree import Draft
from tests.engine.tables import table

START, EOS, A, B = 1, 2, 3, 4
CHAIN = {START: {EOS: 0.4, A: 0.6}, A: {EOS: 0.5, B: 0.5}, B: {EOS: 0.9, A: 0.1}}


def chain_model() -> TableModel:
    """A law of the last token alone."""

    def law(context):
        row = torch.zeros(5, dtype=torch.float64)
        for token, p in CHAIN[context[-1]].items():
            row[token] = p
        return row

    return TableModel(("_", "<s>", "<end>", "a", "b"), law, eos_ids=frozenset({EOS}))


class Uncached:
    """Every beam is scored from its tokens alone."""

    def __init__(self, model, prompt):
        self.model, self.beams = model, [list(prompt)]

    def start(self):
        return torch.cat([self.model.session(tokens).score(Draft()).logits for tokens in self.beams])

    def advance(self, parents, tokens):
        self.beams = [[*self.beams[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        return self.start()


class NotReordered(CopiedSessions):
    """A planted mistake: beam i goes on with the cache of beam i, whoever its parent is."""

    def advance(self, parents, tokens):
        while len(self.sessions) < len(parents):
            self.sessions.append(self.sessions[0].fork())
        return super().advance(range(len(parents)), tokens)


def search(model, prompt, state=None, **options):
    options = {"width": 2, "max_new_tokens": 4, "eos_ids": model.eos_ids, **options}
    return list(beam_search(state or CopiedSessions(model.session(prompt)), **options))


# --- Conventions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "early", "expected"),
    [
        *((0.0, early, [((EOS,), -0.9163)]) for early in (True, False, "never")),
        (1.0, True, [((A, EOS), -0.602)]),
        (1.0, False, [((A, B, EOS), -0.4364)]),
        (1.0, "never", [((A, B, EOS), -0.4364)]),
        (2.0, True, [((A, EOS), -0.301)]),
        (2.0, False, [((A, B, EOS), -0.1455), ((A, EOS), -0.301)]),
        (2.0, "never", [((A, B, EOS), -0.1455), ((A, B, A, EOS), -0.2625)]),
        *((-1.0, early, [((EOS,), -0.9163)]) for early in (True, False, "never")),
    ],
)
def test_length_penalty_and_early_stopping(penalty, early, expected):
    made = search(chain_model(), [START], length_penalty=penalty, early_stopping=early)
    found = made[-1].finished
    for (tokens, score), got in zip(expected, found, strict=False):
        if tokens[-1] == EOS and len(tokens) < 4:
            assert got.tokens == tokens
        assert got.score == pytest.approx(score, abs=1e-4)


def test_the_end_token_counts_in_the_length():
    found = {each.tokens: each for each in search(chain_model(), [START], early_stopping=True)[-1].finished}
    assert found[(A, EOS)].logprob == pytest.approx(-1.204, abs=1e-3)
    assert found[(A, EOS)].score == pytest.approx(-0.602, abs=1e-3)


def test_width_beams_go_on_after_others_have_ended():
    """Twice the width is looked at: the first two candidates of the first step hold an end."""
    first = search(chain_model(), [START])[0]
    assert [(each.token, each.state) for each in first.expansions] == [(A, "live"), (EOS, "finished")]
    model = table(6, 3, eos_ids=frozenset({0, 1}))
    for made in search(model, [2], width=3, max_new_tokens=6)[:-1]:
        assert len(made.live) == 3
        assert len(made.expansions) <= 9


def test_an_end_outside_the_best_width_is_dropped():
    def law(context):
        return torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    model = TableModel(("<end>", "a", "b"), law, eos_ids=frozenset({0}))
    first = search(model, [1])[0]
    assert [(each.token, each.state) for each in first.expansions] == [(1, "live"), (2, "live"), (0, "pruned")]
    assert first.finished == ()


def test_one_beam_is_greedy():
    model = table(5, 8)
    found = search(model, [0], width=1, max_new_tokens=6)[-1].finished[0].tokens
    session, greedy = model.session([0]), []
    for _ in range(6):
        greedy.append(int(session.score(Draft()).logits[0].argmax()))
        session.commit((), greedy[-1])
    assert list(found) == greedy


def test_enough_beams_find_the_likeliest_of_all_outputs():
    model = table(3, 4)

    def logprob(tokens):
        session = model.session([0])
        total = 0.0
        for token in tokens:
            total += float(session.score(Draft()).logits[0].log_softmax(-1)[token])
            session.commit((), token)
        return total

    every = {tokens: logprob(tokens) for tokens in itertools.product(range(3), repeat=4)}
    found = search(model, [0], width=27, max_new_tokens=4)[-1].finished
    assert found[0].tokens == max(every, key=every.get)
    assert found[0].logprob == pytest.approx(max(every.values()))
    assert sum(math.exp(each.logprob) for each in found) <= 1


@pytest.mark.parametrize("options", [{"width": 0}, {"max_new_tokens": 0}])
def test_nothing_to_search(options):
    with pytest.raises(ValueError, match="needs a beam"):
        search(chain_model(), [START], **options)


# --- State ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_shared_blocks_give_the_beams_of_copies_and_of_no_cache_at_all(seed):
    """A hundred random prompts, every width and block size on the way; all steps, scores included, are equal."""
    draw = random.Random(seed)
    width, block_size, num_prompt = draw.randint(1, 8), draw.randint(1, 6), draw.randint(1, 12)
    model = table(9, seed, 1.5, eos_ids=frozenset({8}))
    prompt = [draw.randrange(8) for _ in range(num_prompt)]
    options = {"width": width, "max_new_tokens": 6, "length_penalty": draw.choice([0.0, 1.0, 2.0])}
    pool = BlockPool(width * num_blocks_for(num_prompt + 6, block_size), block_size)
    paged = model.beams(prompt, pool)
    plain = search(model, prompt, Uncached(model, prompt), **options)
    assert search(model, prompt, **options) == plain
    assert search(model, prompt, paged, **options) == plain
    pool.check_integrity(paged.tables.tables)
    paged.tables.free()
    assert pool.num_free == pool.num_blocks


class WritesInPlace(BlockPool):
    """A planted mistake: no copy before a write to a shared block."""

    def append(self, table):
        if offset := table.num_tokens % self.block_size:
            return BlockTable(table.blocks, table.num_tokens + 1), Write(table.blocks[-1], offset)
        return super().append(table)


def test_a_missing_copy_on_write_changes_the_beams():
    found = []
    for seed in range(20):
        model = table(9, seed, 1.5)
        paged = model.beams([1, 2], WritesInPlace(40, 4))
        found.append(search(model, [1, 2], paged, width=3) != search(model, [1, 2], width=3))
    assert any(found)


def test_a_cache_that_is_not_reordered_is_found():
    found = []
    for seed in range(20):
        model = table(6, seed, 1.5)
        found.append(
            search(model, [1, 2], NotReordered(model.session([1, 2])), width=3)
            != search(model, [1, 2], Uncached(model, [1, 2]), width=3)
        )
    assert any(found)


def test_sessions_follow_their_parents_as_copies_of_their_own():
    model = table(5, 2)
    state = CopiedSessions(model.session([0]))
    state.start()
    state.advance([0, 0], [1, 2])
    state.advance([1, 1], [3, 4])
    assert [session.tokens for session in state.sessions] == [[0, 2, 3], [0, 2, 4]]
    state.advance([1, 0], [0, 0])
    assert [session.tokens for session in state.sessions] == [[0, 2, 4, 0], [0, 2, 3, 0]]


@pytest.mark.parametrize(("num_prompt", "copies"), [(10, 3), (8, 0)])
def test_the_first_fork_copies_the_half_full_block_once_per_further_beam(num_prompt, copies):
    pool = BlockPool(64, 4)
    state = table(9, 1).beams([i % 9 for i in range(num_prompt)], pool)
    state.start()
    state.advance([0, 0, 0, 0], [1, 2, 3, 4])
    assert pool.num_copies == copies
    assert pool.num_used == num_prompt // 4 + 4


def test_a_pool_that_runs_out_says_so_and_gives_everything_back():
    model, pool = table(9, 1), BlockPool(4, 2)
    with pytest.raises(OutOfBlocks, match="All 4 blocks"):
        search(model, [0, 1, 2], model.beams([0, 1, 2], pool), width=4, max_new_tokens=8)
    assert pool.num_free == 4
    pool.check_integrity([])


def test_steps_travel_as_json():
    trace = Trace().open("beams", [START])
    for made in search(chain_model(), [START]):
        trace = trace.add("beams", made)
    assert Trace.from_json(trace.to_json()) == trace
