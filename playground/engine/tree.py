"""A draft: guessed tokens, arranged as a tree below the last committed token. A chain is a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ROOT = -1  # the parent of a first-level node: the last committed token


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted tokens, parents before children.

    ``parents[i]`` is the node that node ``i`` follows, or ``ROOT``. ``q`` is ``[n, vocab]``, row ``i`` being the
    law that token ``i`` was really drawn from, or ``None`` when the tokens were chosen without chance (n-gram, top-k
    trees). Raises ``ValueError`` for a parent that does not come before its child, and for two siblings with the
    same token, naming the node.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} draft tokens but {len(self.parents)} parents")
        if self.q is not None and len(self.q) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} draft tokens but {len(self.q)} draft laws")
        siblings = set()
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not ROOT <= parent < i:
                raise ValueError(f"node {i} names parent {parent}: a parent must come before its child")
            if (parent, token) in siblings:
                raise ValueError(f"node {i} repeats token {token} below parent {parent}")
            siblings.add((parent, token))

    @staticmethod
    def chain(tokens: Sequence[int], q: Tensor | None = None) -> Draft:
        """The draft ``d0, d1, ...``, each token following the one before.

        >>> Draft.chain([7, 8]).parents
        (-1, 0)
        """
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; a child of the last committed token has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def mask(self) -> Tensor:
        """``[n, n]`` bool: node i sees node j, itself and its ancestors only.

        >>> Draft((1, 2, 3), (-1, 0, -1)).mask.int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
        """
        mask = torch.eye(len(self), dtype=torch.bool)
        for i, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[i] |= mask[parent]
        return mask

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes whose parent is ``node``, in order."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level down to ``node``; empty for ``ROOT``."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens from the first level down to ``node``."""
        return tuple(self.tokens[i] for i in self.path(node))
