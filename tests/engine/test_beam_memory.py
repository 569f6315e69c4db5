"""Blocks of beams in three lanes, and the bounds for a search that is only priced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import catalogue
from playground.engine.beam import beam_search
from playground.engine.beam_memory import (
    PricedBeams,
    blocks_mib,
    fork_copies,
    repeated,
    resubmitted,
    shared_bounds,
    table_blocks,
)
from playground.engine.kv import BlockPool
from tests.engine.tables import table


def test_reference_shape():
    bounds = shared_bounds(1000, 200, 4, 16)
    per_token = catalogue.shape("llama-3.1-8b").kv_bytes_per_token()
    assert (bounds.best, bounds.worst) == (78, 114)
    assert [blocks_mib(n, 16, per_token) for n in (bounds.separate, bounds.best, bounds.worst)] == [600, 156, 228]


def test_resubmitting_shares_full_blocks_only():
    """Length 8 in blocks of 4: the second block holds the last token, so each beam computes it again whole."""
    beams = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9]]
    assert resubmitted(beams, 4) == (1 + 2, 6)
    assert resubmitted([[*tokens, 0] for tokens in beams], 4) == (1 + 2 + 2, 0)
    assert resubmitted([[1, 2], [1, 3]], 4) == (2, 2)


def test_one_beam_shares_with_nobody():
    bounds = shared_bounds(10, 6, 1, 4)
    assert bounds.separate == bounds.best == bounds.worst == 4


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 6))
def test_lanes_stay_within_their_bounds(seed, num_prompt, width, block_size):
    """The copy-on-write lane never holds more than a copy each, and never less than the best sharing."""
    model, num_new = table(6, seed), 6
    prompt, pool = [(seed + i) % 6 for i in range(num_prompt)], BlockPool(200, block_size)
    state = model.beams(prompt, pool)
    live: list[tuple[int, ...]] = []
    recomputed = 0
    for made in beam_search(state, width=width, eos_ids=frozenset(), max_new_tokens=num_new):
        if live:  # rows of the beams that the last step left
            blocks = table_blocks(state.tables, num_prompt, [[*prompt, *tokens] for tokens in live])
            bounds = shared_bounds(num_prompt, len(live[0]), len(live), block_size)
            assert blocks.copied_blocks == bounds.separate
            assert bounds.best <= blocks.used_blocks <= bounds.worst
            assert [blocks.ref_count(block) for block in range(pool.num_blocks)] == list(pool.ref_counts())
            assert blocks.num_tokens == num_prompt + len(live[0])
            assert blocks.resubmitted_blocks == blocks.used_blocks  # each beam has just written its own last block
            assert 0 <= blocks.recomputed_tokens < len(live) * block_size
            recomputed += blocks.recomputed_tokens
        live = list(made.beams)
    assert (recomputed == 0) == (block_size == 1)


@pytest.mark.parametrize(("num_new", "expected"), [(0, 3), (1, 2 + 4)])
def test_beams_part_with_their_first_token(num_new, expected):
    assert shared_bounds(10, num_new, 4, 4).worst == expected


def test_a_repeated_run_lies_within_the_bounds():
    parents = [[0, 0, 0, 0], [0, 1, 1, 3], [2, 2, 0, 1]]
    for num_prompt in (992, 1000):
        bounds = shared_bounds(num_prompt, 200, 4, 16)
        assert bounds.best <= repeated(parents, num_prompt, 200, 16) <= bounds.worst
    assert repeated([[0, 0, 0, 0]], 1000, 200, 16) == 114  # parted at once
    assert repeated([[0] * 4] * 2, 1000, 200, 16) == 78  # one ancestor one step ago
    assert repeated([], 1000, 200, 16) is None
    assert repeated([[0, 0], [0]], 1000, 200, 16) is None


def test_priced_shape_in_mib():
    priced = PricedBeams(catalogue.shape("llama-3.1-8b"), 1000, 200, 4, 16, this_run=90)
    assert priced.mib == {"separate": 600, "best": 156, "worst": 228, "this_run": 180}
    assert priced.fork_copies == 3
    assert [fork_copies(n, 4, 16) for n in (992, 1000, 1008)] == [0, 3, 0]
