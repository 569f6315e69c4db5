"""Which nodes a draft tree should have: fixed shapes, and the best tree for what the ranks have accepted so far.

Integers and probabilities only. A tree is its parents, ``ROOT`` or the index of an earlier node, and each node's rank
among the drafter's candidates after its parent (0 = likeliest). ``ranks[r]`` is the chance that the candidate of rank r
is the one accepted, the same at every node; since at most one of them is, the chances sum to at most 1.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from playground.engine.tree import ROOT


@dataclass(frozen=True)
class Shape:
    """``parents[i]`` and ``ranks[i]`` of node i, parents first. Raises ``ValueError`` naming the node that is wrong."""

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.ranks):
            raise ValueError(f"{len(self.parents)} parents but {len(self.ranks)} ranks")
        seen: dict[tuple[int, int], int] = {}
        for i, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not ROOT <= parent < i:
                raise ValueError(f"node {i} names parent {parent}: a parent must come before its child")
            if rank < 0:
                raise ValueError(f"node {i} has rank {rank}: ranks start at 0")
            if (parent, rank) in seen:
                raise ValueError(f"nodes {seen[parent, rank]} and {i} are both rank {rank} below node {parent}")
            seen[parent, rank] = i

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The ranks from the first level down to each node."""
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), rank))
        return tuple(paths)

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes below ``node``, in order."""
        return self._children.get(node, ())

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for i, parent in enumerate(self.parents):
            found[parent] = (*found.get(parent, ()), i)
        return found

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node, 1 at the first level; also its offset in position from the last committed token."""
        return tuple(map(len, self.paths))

    @property
    def positions(self) -> tuple[int, ...]:
        """Offsets in position of the last committed token and of every node."""
        return (0, *self.depths)

    @property
    def mask_ones(self) -> int:
        """Ones in the ``[n + 1, n + 1]`` tree mask: a row sees the last committed token, its ancestors and itself."""
        return 1 + sum(depth + 1 for depth in self.depths)

    @property
    def max_depth(self) -> int:
        return max(self.depths, default=0)


def from_paths(paths: Sequence[tuple[int, ...]]) -> Shape:
    """The tree whose nodes have these rank paths, in the given order; a parent must come before its children.

    >>> from_paths([(0,), (0, 0), (1,)]).parents
    (-1, 0, -1)
    """
    index = {path: i for i, path in enumerate(paths)}
    for path in paths:
        if len(path) > 1 and path[:-1] not in index:
            raise ValueError(f"node {path} has no parent {path[:-1]}")
    parents = tuple(index[path[:-1]] if len(path) > 1 else ROOT for path in paths)
    return Shape(parents, tuple(path[-1] for path in paths))


def chain(length: int) -> Shape:
    """The likeliest candidate at every level.

    >>> chain(3).parents
    (-1, 0, 1)
    """
    return Shape(tuple(range(-1, length - 1)), (0,) * length)


def product(widths: Sequence[int]) -> Shape:
    """Medusa's full tree: the first ``widths[d]`` candidates at depth d + 1 below every node (arXiv 2401.10774, 2.1).

    >>> len(product([2, 3]))
    8
    """
    paths = [path for depth in range(len(widths)) for path in itertools.product(*map(range, widths[: depth + 1]))]
    return from_paths(paths)


def best_tree(ranks: Sequence[float], nodes: int, max_depth: int) -> Shape:
    """The tree of at most ``nodes`` nodes and ``max_depth`` levels with the most expected tokens, best node first.

    A node is worth the product of the chances along its path, never more than its parent: taking the most valuable node
    that can be attached, again and again, is therefore optimal (Sequoia, arXiv 2402.12374, without its depth term).
    Ties: the shallower node, then the lower ranks. Raises ``ValueError`` when a chance is not one.
    """
    check_ranks(ranks)
    order = [r for r, chance in enumerate(ranks) if chance > 0]
    heap = [(-1.0, 0, ())]  # (-worth, depth, path); the root is no node of its own
    paths: list[tuple[int, ...]] = []
    while heap and len(paths) <= nodes:
        worth, depth, path = heapq.heappop(heap)
        paths.append(path)
        if depth < max_depth:
            for r in order:
                # rounded: products of the same chances in another order are a tie
                heapq.heappush(heap, (round(worth * ranks[r], 15), depth + 1, (*path, r)))
    return from_paths(paths[1:])


def expected_tokens(ranks: Sequence[float], shape: Shape) -> float:
    """Expected tokens of one target pass: one, and one for every node that is accepted.

    >>> expected_tokens([0.5], chain(2))
    1.75
    """
    check_ranks(ranks)
    total = 1.0
    for path in shape.paths:
        worth = 1.0
        for r in path:
            worth *= ranks[r] if r < len(ranks) else 0.0
        total += worth
    return total


def check_ranks(ranks: Sequence[float]) -> None:
    """Raises ``ValueError`` unless ``ranks`` are chances of exclusive events."""
    for r, chance in enumerate(ranks):
        if not 0 <= chance <= 1:
            raise ValueError(f"the chance of rank {r} must lie between 0 and 1, not {chance}")
    if sum(ranks) > 1 + 1e-9:
        raise ValueError(f"the chances of the ranks sum to {sum(ranks):.3f}; at most one candidate can be accepted")


SHAPES = {
    "chain": chain(5),
    "ten": best_tree((0.605, 0.112, 0.049, 0.033, 0.024), nodes=10, max_depth=4),
    "medusa": product((3, 2, 1, 1)),
}
