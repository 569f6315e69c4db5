"""Blocks of beams in three lanes, and the bounds for a search that is only priced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import catalogue
from playground.engine.beam import BlockTables, CopiedSessions, beam_search
from playground.engine.beam_memory import beam_memory, blocks_mib, resubmitted, shared_bounds
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
    assert resubmitted(beams, 4) == (1 + 2, 8)
    assert resubmitted([[*tokens, 0] for tokens in beams], 4) == (1 + 2 + 2, 2)


def test_one_beam_shares_with_nobody():
    bounds = shared_bounds(10, 6, 1, 4)
    assert bounds.separate == bounds.best == bounds.worst == 4


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 6))
def test_lanes_stay_within_their_bounds(seed, num_prompt, width, block_size):
    """The copy-on-write lane never holds more than a copy each, and never less than the best sharing."""
    model, num_new = table(6, seed), 6
    prompt, pool = [(seed + i) % 6 for i in range(num_prompt)], BlockPool(200, block_size)
    state = BlockTables(CopiedSessions(model.session(prompt)), pool, num_prompt)
    live: list[tuple[int, ...]] = []
    for made in beam_search(state, width=width, eos_ids=frozenset(), max_new_tokens=num_new):
        if live:  # rows of the beams that the last step left
            memory = beam_memory(pool, [[*prompt, *tokens] for tokens in live])
            bounds = shared_bounds(num_prompt, len(live[0]), len(live), block_size)
            assert len({len(table.blocks) for table in state.tables}) == 1
            assert memory.copied_blocks == bounds.separate
            assert bounds.best <= memory.shared_blocks <= bounds.worst
            assert memory.recomputed_tokens >= len(live)
        live = list(made.beams)
    pool.check_integrity(state.tables)


@pytest.mark.parametrize(("num_new", "expected"), [(0, 3), (1, 2 + 4)])
def test_beams_part_with_their_first_token(num_new, expected):
    assert shared_bounds(10, num_new, 4, 4).worst == expected
