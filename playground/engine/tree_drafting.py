"""Drafters that propose trees: a guesser gives laws level by level, a grower decides which children to try.

A tree of a fixed shape takes children by rank (Medusa, arXiv 2401.10774) or draws them without replacement (SpecInfer,
2305.09781); a dynamic one follows the drafter's joint confidence (EAGLE-2, 2406.16858). Children that confidence picks
are chosen without chance, so their q is None: pruning *drawn* children by confidence would change the output's law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from playground.engine.draft_trees import Shape, chain
from playground.engine.drafters import Drafter, DraftModel
from playground.engine.model import Session
from playground.engine.sampling import Coin, Context, Knob, apply, draw, softmax
from playground.engine.trace import KVRows
from playground.engine.tree import ROOT, Draft


class Guesser(Protocol):
    """A drafter's law at any place of a tree, asked for level by level.

    ``taps`` as in ``Drafter``; ``max_levels`` is the deepest node it can guess.
    """

    name: str
    taps: tuple[int, ...]
    max_levels: int

    def begin(self, context: Context, k: int, hidden: Tensor | None) -> Tensor | None:
        """Logits ``[vocab]`` after the last committed token; ``None`` when it cannot draft now, or ``k`` is 0."""

    def extend(self, growth: Growth, nodes: Sequence[int]) -> Tensor:
        """Logits ``[len(nodes), vocab]`` after ``nodes``, all of the deepest level of ``growth``."""

    def sync(self, tokens: Sequence[int]) -> KVRows | None: ...


@dataclass
class Growth:
    """A tree on the way, level by level; ``laws[i]`` is what token i was drawn from, ``None`` without chance."""

    context: Context
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Tensor | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def add(self, parent: int, token: int, law: Tensor | None = None) -> int:
        """The index of a new child of ``parent``."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(law)
        self.depths.append(1 + self.depth(parent))
        return len(self.tokens) - 1

    def depth(self, node: int) -> int:
        return 0 if node == ROOT else self.depths[node]

    def seen(self, node: int) -> Context:
        """What the law after ``node`` has seen: the committed tokens and the path down to it."""
        path: list[int] = []
        while node != ROOT:
            path.append(self.tokens[node])
            node = self.parents[node]
        return Context((*self.context.tokens, *reversed(path)), self.context.num_prompt)

    def draft(self, order: Sequence[int]) -> Draft:
        """The nodes of ``order``, parents first, as a draft in that order."""
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(order)}}
        laws = [self.laws[node] for node in order]
        q = torch.stack(laws) if laws and laws[0] is not None else None
        return Draft(tuple(self.tokens[n] for n in order), tuple(place[self.parents[n]] for n in order), q)


Extend = Callable[[Growth, Sequence[int]], Tensor]


class Grower(Protocol):
    """How a tree comes about."""

    @property
    def max_depth(self) -> int: ...
    def grow(self, logits: Tensor, extend: Extend, context: Context, levels: int, coin: Coin) -> Draft:
        """A tree of at most ``levels`` levels; ``logits`` ``[vocab]`` follow the last committed token."""


Pick = Callable[[Tensor, Sequence[int], Growth, int, Coin], Sequence[tuple[int, Tensor | None] | None]]


def grow_shape(
    shape: Shape, pick: Pick, logits: Tensor, extend: Extend, context: Context, levels: int, coin: Coin
) -> Draft:
    """The tree of this ``shape``, in its order. A child that the law cannot fill is left out with all below it."""
    growth, made = Growth(context), {ROOT: ROOT}  # node of the shape -> node of the growth
    frontier, rows = [ROOT], logits[None]
    for depth in range(1, levels + 1):
        level = []
        for node, row in zip(frontier, rows, strict=True):
            children = shape.children(node)
            picked = pick(row, [shape.ranks[child] for child in children], growth, made[node], coin)
            for child, choice in zip(children, picked, strict=True):
                if choice is not None:
                    made[child] = growth.add(made[node], *choice)
                    level.append(child)
        frontier = [node for node in level if shape.children(node)] if depth < levels else []
        if not frontier:
            break
        rows = extend(growth, [made[node] for node in frontier])
    return growth.draft([made[node] for node in range(len(shape)) if node in made])


def likeliest(logits: Tensor, ranks: Sequence[int], growth: Growth, node: int, coin: Coin) -> list:
    """The candidates of these ranks, chosen without chance; ``None`` where the law has no such token."""
    values, tokens = logits.topk(min(1 + max(ranks), len(logits)))
    found = [int(t) for t, value in zip(tokens.tolist(), values.tolist(), strict=True) if value > -torch.inf]
    return [(found[rank], None) if rank < len(found) else None for rank in ranks]


def drawn(knobs: Sequence[Knob]) -> Pick:
    """Children drawn one after another without replacement from the law after ``knobs``."""

    def pick(logits: Tensor, ranks: Sequence[int], growth: Growth, node: int, coin: Coin) -> list:
        seen = growth.seen(node)
        law: Tensor | None = softmax(apply(knobs, logits[None], [seen]))[0]
        picked: list[tuple[int, Tensor] | None] = []
        for i in range(len(ranks)):
            if law is None:
                picked.append(None)
                continue
            purpose = "draft" if len(growth.tokens) + i == growth.depth(node) else f"draft {len(growth.tokens) + i}"
            token = draw(law, coin(len(seen.tokens), purpose))
            picked.append((token, law))
            law = without(law, token)
        return picked

    return pick


def without(law: Tensor, token: int) -> Tensor | None:
    """``law`` ``[vocab]`` with ``token`` taken out, normalised; ``None`` when nothing is left."""
    left = law.clone()
    left[token] = 0
    mass = left.sum()
    return left / mass if mass > 0 else None


@dataclass(frozen=True)
class Ranked:
    """A fixed shape whose children are the likeliest candidates."""

    shape: Shape

    @property
    def max_depth(self) -> int:
        return self.shape.max_depth

    def grow(self, logits: Tensor, extend: Extend, context: Context, levels: int, coin: Coin) -> Draft:
        return grow_shape(self.shape, likeliest, logits, extend, context, levels, coin)


@dataclass(frozen=True)
class Drawn:
    """A fixed shape whose children are drawn without replacement from the law after ``knobs``."""

    shape: Shape
    knobs: tuple[Knob, ...] = ()

    @property
    def max_depth(self) -> int:
        return self.shape.max_depth

    def grow(self, logits: Tensor, extend: Extend, context: Context, levels: int, coin: Coin) -> Draft:
        return grow_shape(self.shape, drawn(self.knobs), logits, extend, context, levels, coin)


@dataclass(frozen=True)
class Dynamic:
    """EAGLE-2's tree: expand the ``width`` most confident nodes of each level, then keep the best ``nodes`` of all.

    A node's confidence is the product of the drafter's probabilities along its path, so a kept node's parent is kept.
    """

    nodes: int
    max_depth: int
    width: int = 4

    def grow(self, logits: Tensor, extend: Extend, context: Context, levels: int, coin: Coin) -> Draft:
        growth, worth = Growth(context), {ROOT: 0.0}
        frontier, rows = [ROOT], logits[None]
        for depth in range(1, levels + 1):
            level = []
            values, tokens = rows.double().log_softmax(-1).topk(min(self.width, rows.shape[-1]))
            for node, vs, ts in zip(frontier, values.tolist(), tokens.tolist(), strict=True):
                for value, token in zip(vs, ts, strict=True):
                    if value > -torch.inf:
                        child = growth.add(node, token)
                        worth[child] = worth[node] + value
                        level.append(child)
            if depth == levels or not level:
                break
            frontier = sorted(level, key=lambda node: -worth[node])[: self.width]
            rows = extend(growth, frontier)
        best = sorted(range(len(growth.tokens)), key=lambda node: (-worth[node], node))
        return growth.draft(best[: self.nodes])


class TreeDrafter:
    """Any guesser with any grower."""

    def __init__(self, guesser: Guesser, grower: Grower, name: str = "") -> None:
        self.guesser, self.grower, self.name = guesser, grower, name or guesser.name

    @property
    def taps(self) -> tuple[int, ...]:
        return self.guesser.taps

    @property
    def num_parameters(self) -> int | None:
        return getattr(self.guesser, "num_parameters", None)

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        logits = self.guesser.begin(context, k, hidden)
        if logits is None:
            return Draft()
        levels = min(k, self.guesser.max_levels, self.grower.max_depth)
        return self.grower.grow(logits, self.guesser.extend, context, levels, coin)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return self.guesser.sync(tokens)


def propose_chain(
    guesser: Guesser, knobs: Sequence[Knob], context: Context, k: int, coin: Coin, hidden: Tensor | None
) -> Draft:
    """A chain of at most ``k`` drawn tokens: the tree with one child at every node."""
    return TreeDrafter(guesser, Drawn(chain(k), tuple(knobs))).propose(context, k, coin, hidden)


class SessionGuesser:
    """A smaller model that scores its own tree; between passes its cache holds committed tokens only."""

    taps: tuple[int, ...] = ()
    max_levels = 1 << 30
    num_parameters: int | None = None

    def __init__(self, session: Session, name: str = "draft_model") -> None:
        self.session, self.name = session, name
        self._before = self._tree = 0

    def begin(self, context: Context, k: int, hidden: Tensor | None) -> Tensor | None:
        if k == 0 or len(context.tokens) + k > self.session.max_tokens:
            return None
        self.session.sync(context.tokens)
        self._before, self._tree = self.session.num_kv_rows, 0
        return self.session.score(Draft()).logits[0]

    def extend(self, growth: Growth, nodes: Sequence[int]) -> Tensor:
        self._tree = len(growth.tokens)
        scores = self.session.score(Draft(tuple(growth.tokens), tuple(growth.parents)))
        return scores.logits[[node + 1 for node in nodes]]

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        before, rows = self._before, self.session.num_kv_rows + self._tree
        self.session.sync(tokens)
        kept = self._before = self.session.num_kv_rows
        self._tree = 0
        return KVRows(before, rows - before, kept - before, rows - kept, missing=len(tokens) - 1 - kept)


def drafting_session(
    session: Session, knobs: Sequence[Knob], name: str, num_parameters: int | None, grower: Grower | None = None
) -> Drafter:
    """A draft model on ``session``: a chain, or what ``grower`` makes of it."""
    guesser = DraftModel(session, knobs, name) if grower is None else SessionGuesser(session, name)
    guesser.num_parameters = num_parameters  # type: ignore[union-attr]
    return guesser if isinstance(guesser, DraftModel) else TreeDrafter(guesser, grower)
