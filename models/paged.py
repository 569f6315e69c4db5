"""Beams on a transformers model, one pass for all of them: rows in the blocks of a pool, or a copy for each beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from models.kv import RowCache
from playground.engine.kv import BlockPool, BlockTables, Write

if TYPE_CHECKING:
    from models.hf import HFModel


class PagedLayer(CacheLayerMixin):
    """K and V of one layer: ``[num_blocks, block_size, heads, dim]`` each.

    ``places`` says where the next rows go and which blocks every sequence reads; the cache sets it before a pass.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__()
        self.num_blocks, self.block_size, self.num_rows = num_blocks, block_size, 0
        self.slots = self.blocks = torch.empty(0, dtype=torch.long)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        sizes = [(self.num_blocks, self.block_size, s.shape[1], s.shape[-1]) for s in (key_states, value_states)]
        self.keys, self.values = (key_states.new_empty(size) for size in sizes)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new rows ``[beams, heads, new, dim]``; returns all rows of each beam, read through its blocks."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.num_rows += key_states.shape[-2]
        return self._pass(self.keys, key_states), self._pass(self.values, value_states)

    def _pass(self, pool: Tensor, new: Tensor) -> Tensor:
        rows = new.transpose(1, 2).flatten(0, 1)  # [beams * new, heads, dim]
        pool.view(-1, *pool.shape[2:]).index_copy_(0, self.slots, rows)
        read = pool.flatten(1).index_select(0, self.blocks.flatten())  # one contiguous piece per block
        read = read.view(len(self.blocks), -1, *pool.shape[2:])  # [beams, blocks * block_size, heads, dim]
        return read[:, : self.num_rows].transpose(1, 2)

    def copy(self, to: Tensor, source: Tensor, num_rows: int) -> None:
        """The first ``num_rows`` rows of the blocks ``source`` go over to the blocks ``to``."""
        for pool in (self.keys, self.values):
            pool[to, :num_rows] = pool[source, :num_rows]

    def get_seq_length(self) -> int:
        return self.num_rows

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_rows + query_length, 0

    def get_max_length(self) -> int:
        return -1


class PagedCache(Cache):
    """The rows of all layers in one pool: a block id means the same place in every layer."""

    def __init__(self, num_layers: int, pool: BlockPool) -> None:
        super().__init__(layers=[PagedLayer(pool.num_blocks, pool.block_size) for _ in range(num_layers)])
        self.tables = BlockTables(pool)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, K and V of all layers; 0 before the first pass."""
        tensors = [pool for layer in self.layers if layer.is_initialized for pool in (layer.keys, layer.values)]
        return sum(pool[0].nbytes for pool in tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.tables.pool.num_used * self.block_bytes

    def open(self, num_tokens: int, device: torch.device) -> None:
        table = self.tables.open(num_tokens)
        size = self.tables.pool.block_size
        self._place([table.blocks[i // size] * size + i % size for i in range(num_tokens)], device)

    def select(self, parents: Sequence[int], device: torch.device) -> None:
        """Beam i becomes one of ``parents[i]``: tables are forked, blocks about to be written are copied if shared."""
        writes = self.tables.advance(parents)
        if copies := [write for write in writes if write.copied_from is not None]:
            self._copy(copies, device)
        self._place([write.block * self.tables.pool.block_size + write.offset for write in writes], device)

    def _copy(self, copies: Sequence[Write], device: torch.device) -> None:
        to = torch.tensor([write.block for write in copies], device=device)
        source = torch.tensor([write.copied_from for write in copies], device=device)
        for layer in self.layers:
            layer.copy(to, source, copies[0].offset)  # beams are equally long, so the offset is that of all

    def _place(self, slots: Sequence[int], device: torch.device) -> None:
        slots_ = torch.tensor(slots, device=device)
        blocks = torch.tensor([table.blocks for table in self.tables.tables], device=device)
        for layer in self.layers:
            layer.slots, layer.blocks = slots_, blocks


class CopiedCache(RowCache):
    """Every beam has its rows for itself; a beam that goes on under another number is copied whole."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows that the beams hold."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.is_initialized)

    def open(self, num_tokens: int, device: torch.device) -> None:
        """Nothing is planned ahead."""

    def select(self, parents: Sequence[int], device: torch.device) -> None:
        if list(parents) != list(range(self.layers[0].keys.shape[0])):
            for layer in self.layers:
                layer.select(torch.tensor(parents, device=device))


class BatchedBeams:
    """Beams on one model that share each pass; the cache says how their rows are kept."""

    def __init__(self, model: HFModel, prompt: Sequence[int], cache: PagedCache | CopiedCache) -> None:
        self.model, self.prompt, self.cache = model, list(prompt), cache

    @property
    def tables(self) -> BlockTables:
        return self.cache.tables

    @property
    def block_bytes(self) -> int:
        return self.cache.block_bytes

    @torch.inference_mode()
    def start(self) -> Tensor:
        self.cache.open(len(self.prompt), self.model.device)
        return self.model.forward_batch([self.prompt], self.cache)  # [1, vocab]

    @torch.inference_mode()
    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        self.cache.select(parents, self.model.device)
        return self.model.forward_batch([[token] for token in tokens], self.cache)  # [beams, vocab]
