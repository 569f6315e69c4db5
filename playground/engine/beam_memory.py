"""What beams cost in KV blocks, kept in three ways: a copy each, copy-on-write, resubmitted on a prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.engine.kv import BlockPool, num_blocks_for, reusable_tokens
from playground.engine.trace import step


@step
@dataclass(frozen=True)
class BeamMemory:
    """Blocks in use after one step in the three lanes, and the tokens that the resubmitting lane computed again.

    ``copies`` and ``frees`` are those of the copy-on-write pool so far; ``ref_counts`` are its blocks now.
    """

    copied_blocks: int
    shared_blocks: int
    resubmitted_blocks: int
    recomputed_tokens: int
    copies: int
    frees: int
    ref_counts: tuple[int, ...]


def beam_memory(pool: BlockPool, beams: Sequence[Sequence[int]]) -> BeamMemory:
    """The three lanes for ``beams``, whole sequences of which every token has a row; ``pool`` is the shared lane's."""
    blocks, recomputed = resubmitted(beams, pool.block_size)
    return BeamMemory(
        copied_blocks=sum(num_blocks_for(len(tokens), pool.block_size) for tokens in beams),
        shared_blocks=pool.num_used,
        resubmitted_blocks=blocks,
        recomputed_tokens=recomputed,
        copies=pool.num_copies,
        frees=pool.num_frees,
        ref_counts=pool.ref_counts(),
    )


def resubmitted(beams: Sequence[Sequence[int]], block_size: int) -> tuple[int, int]:
    """Blocks in use and tokens computed when every beam is sent again as a request of its own.

    A prefix cache gives full blocks by content, and the last token is always computed; so each beam has one private
    block for the rest. One of the tokens is new, all others were computed before.

    >>> resubmitted([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 2)
    (4, 2)
    """
    starts = [tuple(tokens[: reusable_tokens(len(tokens), block_size)]) for tokens in beams]
    shared = {start[:end] for start in starts for end in range(block_size, len(start) + 1, block_size)}
    computed = sum(len(tokens) - len(start) for tokens, start in zip(beams, starts, strict=True))
    return len(shared) + len(beams), computed


@dataclass(frozen=True)
class SharedBounds:
    """Blocks of ``beams`` sequences at the end of a search: a copy each, and sharing at its best and at its worst."""

    separate: int
    best: int
    worst: int


def shared_bounds(num_prompt: int, num_new: int, beams: int, block_size: int) -> SharedBounds:
    """Best: the beams differ in their last block only. Worst: they parted right after the prompt.

    >>> shared_bounds(1000, 200, 4, 16)
    SharedBounds(separate=300, best=78, worst=114)
    """
    each = num_blocks_for(num_prompt + num_new, block_size)
    full = num_prompt // block_size
    return SharedBounds(
        beams * each, each + (beams - 1) * (num_new > 0), full + beams * (each - full) if num_new else each
    )


def blocks_mib(num_blocks: float, block_size: int, kv_bytes_per_token: float) -> float:
    """MiB of so many blocks."""
    return num_blocks * block_size * kv_bytes_per_token / 2**20
