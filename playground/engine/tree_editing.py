"""A draft tree written as text, and edited: nodes added and pruned. Every refusal names the node."""

from __future__ import annotations

from collections.abc import Sequence

from playground.engine.draft_trees import Shape
from playground.engine.tree import ROOT


def read_tree(text: str) -> Shape:
    """The tree whose nodes are listed as ``parent`` or ``parent:rank``, -1 being the last committed token.

    Without a rank a node takes the first one that is free below its parent. Raises ``ValueError`` naming the node for
    a parent that does not exist, a cycle, a child before its parent, and two siblings of one rank.

    >>> read_tree("-1, 0, 0, -1").paths
    ((0,), (0, 0), (0, 1), (1,))
    """
    parts = [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]
    pairs = [_node(i, part) for i, part in enumerate(parts)]
    parents = [parent for parent, _ in pairs]
    for i, parent in enumerate(parents):
        if not ROOT <= parent < len(parents):
            raise ValueError(f"tree: node {i} is an orphan: there is no node {parent} among 0 to {len(parents) - 1}.")
    for i in range(len(parents)):
        _check_cycle(i, parents)
    ranks: list[int] = []
    for i, (parent, rank) in enumerate(pairs):
        taken = {ranks[j] for j in range(i) if parents[j] == parent}
        ranks.append(next(r for r in range(i + 1) if r not in taken) if rank is None else rank)
    return _shape(parents, ranks)


def _node(i: int, part: str) -> tuple[int, int | None]:
    parent, _, rank = part.partition(":")
    try:
        return int(parent), int(rank) if rank else None
    except ValueError:
        raise ValueError(f"tree: node {i} is {part[:20]!r}; write a parent such as 0, or parent:rank.") from None


def _check_cycle(node: int, parents: Sequence[int]) -> None:
    path = [node]
    while parents[path[-1]] != ROOT:
        path.append(parents[path[-1]])
        if path[-1] == node:
            raise ValueError(f"tree: node {node} is its own ancestor, by way of {' → '.join(map(str, path))}.")
        if len(path) > len(parents):
            return  # it leads into a cycle that another node is in


def _shape(parents: Sequence[int], ranks: Sequence[int]) -> Shape:
    try:
        return Shape(tuple(parents), tuple(ranks))
    except ValueError as error:
        raise ValueError(f"tree: {error}.") from None


def write_tree(shape: Shape) -> str:
    """The text that ``read_tree`` reads back; ranks only where they are not the first free ones.

    >>> write_tree(read_tree("-1,0,0:3"))
    '-1,0,0:3'
    """
    parts, seen = [], {}
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        taken = seen.setdefault(parent, set())
        free = next(r for r in range(len(taken) + 1) if r not in taken)
        parts.append(f"{parent}" if rank == free else f"{parent}:{rank}")
        taken.add(rank)
    return ",".join(parts)


def add_children(shape: Shape, parents: Sequence[int]) -> Shape:
    """``shape`` with one more child, of the first free rank, below each of ``parents``, one after another.

    >>> add_children(read_tree("-1"), [0, -1]).paths
    ((0,), (0, 0), (1,))
    """
    for parent in parents:
        if not ROOT <= parent < len(shape):
            raise ValueError(f"add: there is no node {parent}; the tree has nodes 0 to {len(shape) - 1}, and -1 above.")
        taken = {shape.ranks[child] for child in shape.children(parent)}
        rank = next(r for r in range(len(taken) + 1) if r not in taken)
        shape = Shape((*shape.parents, parent), (*shape.ranks, rank))
    return shape


def prune(shape: Shape, nodes: Sequence[int]) -> Shape:
    """``shape`` without ``nodes`` and everything below them; the others keep their order and are numbered anew.

    >>> prune(read_tree("-1, 0, 0, -1"), [0]).paths
    ((1,),)
    """
    for node in nodes:
        if not 0 <= node < len(shape):
            raise ValueError(f"prune: there is no node {node}; the tree has nodes 0 to {len(shape) - 1}.")
    gone = set(nodes)
    for i, parent in enumerate(shape.parents):
        if parent in gone:
            gone.add(i)
    kept = [i for i in range(len(shape)) if i not in gone]
    place = {ROOT: ROOT, **{node: i for i, node in enumerate(kept)}}
    return Shape(tuple(place[shape.parents[i]] for i in kept), tuple(shape.ranks[i] for i in kept))


def check_room(shape: Shape, num_tokens: int, max_tokens: int) -> None:
    """Raises ``ValueError`` naming the first node that has no row left behind ``num_tokens`` committed tokens.

    A node takes a row of the cache for the length of its pass, whatever its depth.
    """
    left = max_tokens - num_tokens
    if len(shape) > left:
        raise ValueError(
            f"node {max(left, 0)} has no room: the prompt has {num_tokens:,} tokens, the context {max_tokens:,}, "
            f"and the tree {len(shape)} nodes. Prune the tree or shorten the prompt."
        )
