"""The vocabulary as a tree of bytes: tokens that begin alike share their first steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np


class TokenTrie:
    """``token_bytes[i]`` are the bytes of token i; ``None`` or ``b""`` for one that stands for no text.

    Nodes are numbered level by level: ``levels[d]`` is the slice of the nodes that d bytes lead to, node 0 the root.
    """

    def __init__(
        self, token_bytes: Sequence[bytes | None], eos_ids: Iterable[int], vocab_size: int | None = None
    ) -> None:
        self.token_bytes = tuple(token_bytes)
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = vocab_size or len(self.token_bytes)  # the width of the logits
        self.text_tokens = tuple(
            t for t, data in enumerate(self.token_bytes) if data and t not in self.eos_ids and t < self.vocab_size
        )
        tokens = sorted(self.text_tokens, key=lambda t: self.token_bytes[t])
        self._number(tokens)

    def _number(self, tokens: Sequence[int]) -> None:
        parents, values, levels = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [slice(0, 1)]
        at = np.zeros(len(tokens), np.int64)  # the node that each token has reached
        node_of = np.full(self.vocab_size, -1, np.int64)
        data = [self.token_bytes[t] for t in tokens]
        size, depth, active = 1, 0, np.arange(len(tokens))
        while len(active):
            value = np.fromiter((data[i][depth] for i in active), np.int64, len(active))
            steps, inverse = np.unique(at[active] * 256 + value, return_inverse=True)
            at[active] = size + inverse
            parents.append(steps // 256)
            values.append(steps % 256)
            levels.append(slice(size, size + len(steps)))
            size += len(steps)
            depth += 1
            ends = np.fromiter((len(data[i]) == depth for i in active), bool, len(active))
            node_of[[tokens[i] for i in active[ends]]] = at[active[ends]]
            active = active[~ends]
        self.parents, self.values, self.levels = np.concatenate(parents), np.concatenate(values), levels
        self.node_of = node_of  # [vocab] token -> node, -1: stands for no text

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    @cached_property
    def stands_for_text(self) -> np.ndarray:
        """``[vocab]`` bool: tokens that a grammar can judge by their bytes."""
        return self.node_of >= 0
