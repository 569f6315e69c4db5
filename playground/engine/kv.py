"""Paged KV bookkeeping: blocks with reference counts, tables that share them, copy-on-write. Plain ints only.

Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class OutOfBlocks(ValueError):
    """The pool has no free block; nothing was changed by the call that asked for one."""


@dataclass(frozen=True)
class Write:
    """Where one token's row goes. The first ``offset`` rows of ``copied_from`` (if any) go over before it."""

    block: int
    offset: int
    copied_from: int | None = None


@dataclass(frozen=True)
class BlockTable:
    """One sequence: its blocks in order, and how many tokens have a row in them. The last block may be partly full."""

    blocks: tuple[int, ...] = ()
    num_tokens: int = 0


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` rows each. A block with several holders is never written to."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one row, not {num_blocks} of {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # the last one goes out first
        self._ref_counts = [0] * num_blocks
        self.num_copies = self.num_frees = self.peak_blocks = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def ref_count(self, block: int) -> int:
        """How many entries of tables hold this block; 0 when it is free."""
        return self._ref_counts[block]

    def ref_counts(self) -> tuple[int, ...]:
        return tuple(self._ref_counts)

    def allocate(self, num_tokens: int) -> BlockTable:
        """A table of private blocks for ``num_tokens`` rows. Raises ``OutOfBlocks``, taking none."""
        needed = num_blocks_for(num_tokens, self.block_size)
        if needed > len(self._free):
            raise OutOfBlocks(
                f"{num_tokens} tokens need {needed} blocks; {len(self._free)} of {self.num_blocks} are free."
            )
        return BlockTable(tuple(self._take() for _ in range(needed)), num_tokens)

    def append(self, table: BlockTable) -> tuple[BlockTable, Write]:
        """``table`` with room for one more token, and where its row goes. Raises ``OutOfBlocks``.

        A full last block is followed by a new one; a shared one is replaced by a private copy; a private one is used.
        """
        offset = table.num_tokens % self.block_size
        if offset == 0:
            block, copied_from = self._take(), None
            blocks = (*table.blocks, block)
        elif self._ref_counts[table.blocks[-1]] == 1:
            blocks, block, copied_from = table.blocks, table.blocks[-1], None
        else:
            copied_from = table.blocks[-1]
            block = self._take()
            self._ref_counts[copied_from] -= 1
            self.num_copies += 1
            blocks = (*table.blocks[:-1], block)
        return BlockTable(blocks, table.num_tokens + 1), Write(block, offset, copied_from)

    def fork(self, table: BlockTable) -> BlockTable:
        """A second holder of the same blocks. Each block counts once per table, also where a table lists it twice."""
        for block in set(table.blocks):
            self._hold(block)
        return table

    def free(self, table: BlockTable) -> tuple[int, ...]:
        """Let go of a table; returns the blocks that nobody holds any more. Raises ``ValueError`` for a free block."""
        blocks = tuple(dict.fromkeys(table.blocks))
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise ValueError(f"block {block} is free already: its table was given back twice")
        freed = []
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)
                freed.append(block)
        self.num_frees += len(freed)
        return tuple(freed)

    def check_integrity(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Raises ``AssertionError`` where free and used blocks do not add up, or, with all ``tables``, counts drift."""
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert all(self._ref_counts[block] == 0 for block in self._free), "a free block is held"
        assert len(self._free) + sum(count > 0 for count in self._ref_counts) == self.num_blocks, "a block is lost"
        if tables is not None:
            held = Counter(block for table in tables for block in set(table.blocks))
            assert [held[block] for block in range(self.num_blocks)] == self._ref_counts, "counts and tables differ"

    def _take(self) -> int:
        if not self._free:
            raise OutOfBlocks(f"All {self.num_blocks} blocks of {self.block_size} rows are in use.")
        block = self._free.pop()
        self._ref_counts[block] = 1
        self.peak_blocks = max(self.peak_blocks, self.num_used)
        return block

    def _hold(self, block: int) -> None:
        if self._ref_counts[block] == 0:
            raise ValueError(f"block {block} is free: it cannot be shared")
        self._ref_counts[block] += 1


class BlockTables:
    """The tables of several sequences that grow together: forked, written with copy-on-write, freed.

    ``tables`` are those in use. ``parents``, ``writes`` and ``freed`` tell what the last call did.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.tables: list[BlockTable] = []
        self.parents: tuple[int, ...] = ()
        self.writes: tuple[Write, ...] = ()
        self.freed: tuple[int, ...] = ()

    def open(self, num_tokens: int) -> BlockTable:
        """One table for a prompt. Raises ``OutOfBlocks``, taking none."""
        self.tables = [self.pool.allocate(num_tokens)]
        return self.tables[0]

    def advance(self, parents: Sequence[int]) -> tuple[Write, ...]:
        """Table i becomes one of ``parents[i]`` with room for one more token; returns where each token's row goes.

        Raises ``OutOfBlocks`` with every block given back.
        """
        old, self.tables = self.tables, [self.pool.fork(self.tables[parent]) for parent in parents]
        self.parents, self.writes = tuple(parents), ()
        self.freed = tuple(block for table in old for block in self.pool.free(table))
        try:
            for i, table in enumerate(self.tables):
                self.tables[i], write = self.pool.append(table)
                self.writes += (write,)
        except OutOfBlocks:
            self.free()
            raise
        return self.writes

    def free(self) -> None:
        """Give every block back."""
        self.parents, self.writes = (), ()
        self.freed = tuple(block for table in self.tables for block in self.pool.free(table))
        self.tables = []


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` rows.

    >>> num_blocks_for(1000, 16), num_blocks_for(992, 16)
    (63, 62)
    """
    return -(-num_tokens // block_size)


def reusable_tokens(num_tokens: int, block_size: int) -> int:
    """Tokens of a prompt that a prefix cache of full blocks can give, when every one of its blocks is there.

    The last token is always computed again: its logits are needed.

    >>> [reusable_tokens(n, 4) for n in (8, 9, 5, 4, 1, 0)]
    [4, 8, 4, 0, 0, 0]
    """
    return max(0, num_tokens - 1) // block_size * block_size


def shared_prefix_blocks(sequences: Sequence[Sequence[int]], block_size: int) -> int:
    """Full blocks at the start that hold the same tokens in all ``sequences``; a tail is never shared by content.

    >>> shared_prefix_blocks([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9]], 2)
    2
    """
    same = 0
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        same += 1
    return same // block_size
