"""The KV cache of a session: every layer keeps all rows, in a buffer, and gives up any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

MIN_ROWS = 256  # of a fresh buffer


def append(buffer: Tensor, held: int, new: Tensor) -> Tensor:
    """``buffer`` ``[batch, heads, rows, dim]`` with ``new`` after its first ``held`` rows; doubled when full."""
    end = held + new.shape[-2]
    if end > buffer.shape[-2]:
        bigger = new.new_empty(*new.shape[:-2], max(2 * buffer.shape[-2], end, MIN_ROWS), new.shape[-1])
        bigger[..., :held, :] = buffer[..., :held, :]
        buffer = bigger
    buffer[..., held:end, :] = new
    return buffer


class RowLayer(DynamicLayer):
    """A layer of full attention whose ``keys`` and ``values`` are views of larger buffers: no copy for each new token.

    It serves sliding-window layers too: it keeps all rows, and the mask hides those outside the window, so rows can be
    rolled back at any length.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._keys, self._values = (s.new_empty(*s.shape[:-2], 0, s.shape[-1]) for s in (key_states, value_states))
        held = self.get_seq_length()
        end = held + key_states.shape[-2]
        self._keys = append(self._keys, held, key_states)
        self._values = append(self._values, held, value_states)
        self.keys, self.values = self._keys[..., :end, :], self._values[..., :end, :]
        return self.keys, self.values

    def keep(self, base: int, rows: Tensor | None, num: int) -> None:
        """After the first ``base`` rows keep ``num``: those at ``base + rows``, or simply the next ones (``None``)."""
        if not self.is_initialized:
            return
        end = base + num
        if rows is not None:
            for states in (self.keys, self.values):
                states[..., base:end, :] = states.index_select(-2, base + rows)
        self.keys, self.values = self._keys[..., :end, :], self._values[..., :end, :]

    def select(self, sequences: Tensor) -> None:
        """Sequence i of the batch becomes a copy of ``sequences[i]``."""
        end = self.get_seq_length()
        kept = []
        for buffer in (self._keys, self._values):
            fresh = buffer.new_empty(len(sequences), *buffer.shape[1:])
            fresh[..., :end, :] = buffer[..., :end, :].index_select(0, sequences)
            kept.append(fresh)
        self._keys, self._values = kept
        self.keys, self.values = self._keys[..., :end, :], self._values[..., :end, :]

    def copy(self) -> RowLayer:
        """A layer with the same rows in buffers of its own."""
        twin = RowLayer()
        if self.is_initialized:
            twin.update(self.keys, self.values)
        return twin


class RowCache(Cache):
    """One ``RowLayer`` per layer of the model."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[RowLayer() for _ in range(num_layers)])

    @property
    def num_rows(self) -> int:
        return self.layers[0].get_seq_length()

    @property
    def device(self) -> torch.device:
        return self.layers[0].device

    def keep(self, base: int, path: Sequence[int]) -> None:
        """Keep the first ``base`` rows and, of those behind, the ones at ``path`` (increasing)."""
        rows = None if list(path) == list(range(len(path))) else torch.tensor(path, device=self.device)
        for layer in self.layers:
            layer.keep(base, rows, len(path))

    def copy(self) -> RowCache:
        """A cache with the same rows in buffers of its own."""
        twin = RowCache(0)
        twin.layers = [layer.copy() for layer in self.layers]
        return twin
