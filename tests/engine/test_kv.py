"""The block pool: copy-on-write, reference counts and running out, as a state machine against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from playground.engine.kv import (
    BlockPool,
    BlockTable,
    OutOfBlocks,
    num_blocks_for,
    reusable_tokens,
    shared_prefix_blocks,
)


class Rows:
    """A pool whose rows have contents: what a real cache does with the answers of ``BlockPool``."""

    def __init__(self, num_blocks: int, block_size: int, pool: type[BlockPool] = BlockPool) -> None:
        self.pool = pool(num_blocks, block_size)
        self.rows = [[None] * block_size for _ in range(num_blocks)]

    def append(self, table: BlockTable, token: int) -> BlockTable:
        table, write = self.pool.append(table)
        if write.copied_from is not None:
            self.rows[write.block][: write.offset] = self.rows[write.copied_from][: write.offset]
        self.rows[write.block][write.offset] = token
        return table

    def read(self, table: BlockTable) -> list[int]:
        size = self.pool.block_size
        return [self.rows[table.blocks[i // size]][i % size] for i in range(table.num_tokens)]


class Paged(RuleBasedStateMachine):
    """Sequences as lists of tokens are the truth; every table must read back the same."""

    pool_type: type[BlockPool] = BlockPool

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.truth, self.tables, self.clock = None, [], [], 0

    @precondition(lambda self: self.cache is None)
    @rule(num_blocks=st.integers(1, 9), block_size=st.integers(1, 4))
    def start(self, num_blocks, block_size):
        self.cache = Rows(num_blocks, block_size, self.pool_type)

    @precondition(lambda self: self.cache)
    @rule(num_tokens=st.integers(0, 7))
    def allocate(self, num_tokens):
        free = self.cache.pool.num_free
        try:
            table = self.cache.pool.allocate(num_tokens)
        except OutOfBlocks:
            assert num_blocks_for(num_tokens, self.cache.pool.block_size) > free == self.cache.pool.num_free
            return
        tokens = [self.next_token() for _ in range(num_tokens)]
        for i, token in enumerate(tokens):
            self.cache.rows[table.blocks[i // self.cache.pool.block_size]][i % self.cache.pool.block_size] = token
        self.tables.append(table)
        self.truth.append(tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def append(self, data):
        i = data.draw(st.integers(0, len(self.tables) - 1))
        token, before = self.next_token(), self.cache.pool.ref_counts()
        try:
            self.tables[i] = self.cache.append(self.tables[i], token)
            self.truth[i] = [*self.truth[i], token]
        except OutOfBlocks:
            assert self.cache.pool.num_free == 0
            assert self.cache.pool.ref_counts() == before

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        i = data.draw(st.integers(0, len(self.tables) - 1))
        self.tables.append(self.cache.pool.fork(self.tables[i]))
        self.truth.append(list(self.truth[i]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        i = data.draw(st.integers(0, len(self.tables) - 1))
        before, table = self.cache.pool.num_free, self.tables.pop(i)
        freed = self.cache.pool.free(table)
        self.truth.pop(i)
        assert self.cache.pool.num_free == before + len(freed)

    @invariant()
    def tables_read_back(self):
        if self.cache:
            self.cache.pool.check_integrity(self.tables)
            assert [self.cache.read(table) for table in self.tables] == self.truth

    def next_token(self) -> int:
        self.clock += 1
        return self.clock

    def teardown(self):
        for table in self.tables:
            self.cache.pool.free(table)
        if self.cache:
            assert self.cache.pool.num_free == self.cache.pool.num_blocks


class TestPaged(Paged.TestCase):
    settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


class WritesInPlace(BlockPool):
    """A planted mistake: no copy before a write to a shared block."""

    def append(self, table):
        if table.num_tokens % self.block_size:
            from playground.engine.kv import Write

            place = Write(table.blocks[-1], table.num_tokens % self.block_size)
            return BlockTable(table.blocks, table.num_tokens + 1), place
        return super().append(table)


def test_a_missing_copy_on_write_is_found():
    rows = Rows(4, 2, WritesInPlace)
    first = rows.append(BlockTable(), 1)
    second = rows.pool.fork(first)
    first, second = rows.append(first, 2), rows.append(second, 3)
    assert rows.read(first) != [1, 2]
    rows = Rows(4, 2)
    first = rows.append(BlockTable(), 1)
    second = rows.pool.fork(first)
    first, second = rows.append(first, 2), rows.append(second, 3)
    assert (rows.read(first), rows.read(second)) == ([1, 2], [1, 3])


def test_copy_on_write_of_a_shared_tail():
    pool = BlockPool(8, 4)
    table = pool.allocate(6)
    twin = pool.fork(table)
    assert [pool.ref_count(block) for block in table.blocks] == [2, 2]
    moved, write = pool.append(twin)
    assert write.copied_from == table.blocks[-1] == 1
    assert write.offset == 2
    assert (pool.ref_count(table.blocks[-1]), pool.ref_count(write.block)) == (1, 1)
    assert pool.ref_count(table.blocks[0]) == 2
    stayed, write = pool.append(table)
    assert write.copied_from is None
    assert stayed.blocks == table.blocks
    assert pool.num_copies == 1
    pool.check_integrity([moved, stayed])


def test_a_full_tail_is_shared_without_a_copy():
    pool = BlockPool(8, 4)
    table = pool.allocate(8)
    tables = [table, *(pool.fork(table) for _ in range(3))]
    tables = [pool.append(each)[0] for each in tables]
    assert pool.num_copies == 0
    assert pool.num_used == 2 + 4


@pytest.mark.parametrize(("num_prompt", "copies", "blocks"), [(1000, 3, 63 + 3), (992, 0, 62 + 4), (1008, 0, 63 + 4)])
def test_four_beams_copy_the_half_full_block_three_times(num_prompt, copies, blocks):
    pool = BlockPool(200, 16)
    table = pool.allocate(num_prompt)
    tables = [table, *(pool.fork(table) for _ in range(3))]
    tables = [pool.append(each)[0] for each in tables]
    assert (pool.num_copies, pool.num_used) == (copies, blocks)


def test_a_table_that_lists_a_block_twice_counts_it_once():
    pool = BlockPool(3, 1)
    block = pool.allocate(1).blocks[0]
    twice = BlockTable((block, block), 2)
    pool.fork(twice)
    assert pool.ref_count(block) == 2
    pool.free(twice)
    assert pool.num_free == 2
    assert pool.free(twice) == (block,)
    assert pool.num_free == 3


def test_a_free_block_can_be_neither_freed_nor_shared():
    pool = BlockPool(3, 2)
    table = pool.allocate(3)
    pool.free(table)
    with pytest.raises(ValueError, match="twice"):
        pool.free(table)
    with pytest.raises(ValueError, match="shared"):
        pool.fork(table)
    pool.check_integrity([])


def test_a_pool_that_runs_out_says_so_and_changes_nothing():
    pool = BlockPool(2, 2)
    table = pool.allocate(3)
    twin = pool.fork(table)
    with pytest.raises(OutOfBlocks, match="All 2 blocks"):
        pool.append(twin)
    with pytest.raises(OutOfBlocks, match="need 2 blocks; 0 of 2"):
        pool.allocate(3)
    pool.check_integrity([table, twin])
    pool.free(table), pool.free(twin)
    assert pool.num_free == 2


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_a_pool_needs_a_block_with_a_row(sizes):
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(*sizes)


@pytest.mark.parametrize(("length", "cached"), [(8, 4), (9, 8), (5, 4), (4, 0), (1, 0), (0, 0)])
def test_a_full_hit_still_computes_the_last_token(length, cached):
    assert reusable_tokens(length, 4) == cached


def test_only_full_blocks_are_shared():
    start = [1, 2, 3, 4, 5]
    assert shared_prefix_blocks([start, [*start, 6, 7, 8], [*start, 9, 10, 11]], 2) == 2
