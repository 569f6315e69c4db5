"""What beams cost in KV blocks, kept in three ways: a copy each, copy-on-write, resubmitted on a prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from playground.engine.kv import BlockPool, BlockTables, Write, num_blocks_for, reusable_tokens
from playground.engine.shapes import Shape
from playground.engine.trace import step


@step
@dataclass(frozen=True)
class BeamBlocks:
    """The beams' blocks after one step, and the blocks that two other ways of keeping them would hold.

    All beams begin with the prompt's full blocks, numbers 0 to ``num_prefix - 1``; ``tails`` are the blocks behind,
    beam by beam. Beam i came from beam ``parents[i]``, and its row went to ``writes[i]``. ``copies``, ``frees`` and
    ``peak_blocks`` are those since the start, ``recomputed_tokens`` of this step. ``lacks``: why the pool gave up.
    """

    num_tokens: int
    num_prefix: int
    tails: tuple[tuple[int, ...], ...]
    parents: tuple[int, ...]
    writes: tuple[Write, ...]
    freed: tuple[int, ...]
    used_blocks: int
    copied_blocks: int
    resubmitted_blocks: int
    recomputed_tokens: int
    copies: int
    frees: int
    peak_blocks: int
    lacks: str | None = None

    @property
    def num_forks(self) -> int:
        """Beams beyond the first that share a parent: tables that began as a second hold on the same blocks."""
        return len(self.parents) - len(set(self.parents))

    def ref_count(self, block: int) -> int:
        """How many beams hold ``block``."""
        return len(self.tails) if block < self.num_prefix else sum(block in tail for tail in self.tails)


def table_blocks(tables: BlockTables, num_prompt: int, beams: Sequence[Sequence[int]]) -> BeamBlocks:
    """``tables`` as they are, and the other two ways for ``beams``: whole sequences of which every token has a row."""
    pool, num_prefix = tables.pool, num_prompt // tables.pool.block_size
    pool.check_integrity(tables.tables)
    blocks, recomputed = resubmitted(beams, pool.block_size)
    return BeamBlocks(
        num_tokens=tables.tables[0].num_tokens if tables.tables else 0,
        num_prefix=num_prefix,
        tails=tuple(table.blocks[num_prefix:] for table in tables.tables),
        parents=tables.parents,
        writes=tables.writes,
        freed=tables.freed,
        used_blocks=pool.num_used,
        copied_blocks=sum(num_blocks_for(len(tokens), pool.block_size) for tokens in beams),
        resubmitted_blocks=blocks,
        recomputed_tokens=recomputed,
        copies=pool.num_copies,
        frees=pool.num_frees,
        peak_blocks=pool.peak_blocks,
    )


def given_back(tables: BlockTables, lacks: str | None = None) -> BeamBlocks:
    """What is told when ``tables`` hold nothing any more."""
    assert not tables.tables, "tables still hold blocks"
    return replace(table_blocks(tables, 0, ()), lacks=lacks)


def resubmitted(beams: Sequence[Sequence[int]], block_size: int) -> tuple[int, int]:
    """Blocks in use and tokens computed again when every beam is sent as a request of its own.

    A prefix cache gives full blocks by content, and the last token is always computed; so each beam has private blocks
    for the rest. One token of the rest is new, the others were computed before.

    >>> resubmitted([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 2)
    (4, 0)
    >>> resubmitted([[1, 2, 3, 4], [1, 2, 3, 5]], 2)
    (3, 2)
    """
    cached: dict[tuple[int, ...], int] = {}  # (number of the block before, tokens of the block) -> number
    again = 0
    for tokens in beams:
        reused, before = reusable_tokens(len(tokens), block_size), -1
        for start in range(0, reused, block_size):
            before = cached.setdefault((before, *tokens[start : start + block_size]), len(cached))
        again += len(tokens) - reused - 1
    return len(cached) + len(beams), again


# --- Priced -----------------------------------------------------------------------------------------------------------


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


def fork_copies(num_prompt: int, beams: int, block_size: int) -> int:
    """Blocks copied when ``beams`` beams write their first token behind a shared prompt: none if it ends with a block.

    >>> fork_copies(1000, 4, 16), fork_copies(992, 4, 16)
    (3, 0)
    """
    return beams - 1 if num_prompt % block_size else 0


def repeated(parents: Sequence[Sequence[int]], num_prompt: int, num_new: int, block_size: int) -> int | None:
    """Blocks at the end of a longer search whose beams fork as in ``parents``, the steps after the first over and over.

    ``None`` where the number of beams changed on the way, or nothing forked at all.
    """
    if not parents or len(set(map(len, parents))) > 1:
        return None
    first, later = parents[0], parents[1:] or [range(len(parents[0]))]
    full, tail = divmod(num_prompt, block_size)  # full blocks of the prompt stay shared; only the rest is acted out
    tables = BlockTables(BlockPool(len(first) * num_blocks_for(tail + num_new, block_size) + 1, block_size))
    tables.open(tail)
    for i in range(num_new):
        tables.advance(later[(i - 1) % len(later)] if i else first)
    return full + tables.pool.num_used


@step
@dataclass(frozen=True)
class PricedBeams:
    """A beam search on a served model: its blocks apart, shared at best and at worst, and forked as in this run."""

    shape: Shape
    num_prompt: int
    num_new: int
    beams: int
    block_size: int
    this_run: int | None = None

    @property
    def bounds(self) -> SharedBounds:
        return shared_bounds(self.num_prompt, self.num_new, self.beams, self.block_size)

    @property
    def fork_copies(self) -> int:
        return fork_copies(self.num_prompt, self.beams, self.block_size)

    @property
    def blocks(self) -> dict[str, int | None]:
        bounds = self.bounds
        return {"separate": bounds.separate, "best": bounds.best, "worst": bounds.worst, "this_run": self.this_run}

    @property
    def mib(self) -> dict[str, float | None]:
        """The same in MiB of bf16."""
        per_token = self.shape.kv_bytes_per_token()
        return {
            name: None if n is None else blocks_mib(n, self.block_size, per_token) for name, n in self.blocks.items()
        }


def blocks_mib(num_blocks: float, block_size: int, kv_bytes_per_token: float) -> float:
    """MiB of so many blocks."""
    return num_blocks * block_size * kv_bytes_per_token / 2**20
