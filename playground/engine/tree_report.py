"""What a lab tells of a draft tree: its plan, what its mask costs, what wrong positions do, how its ranks fare."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from playground.engine.draft_trees import Shape
from playground.engine.flattened import FlatDraft
from playground.engine.metrics import ratio
from playground.engine.model import Session
from playground.engine.sampling import apply, softmax
from playground.engine.trace import Pass, step
from playground.engine.tree import ROOT, Draft


@step
@dataclass(frozen=True)
class TreePlan:
    """A tree to draft. ``expected_tokens`` per pass follow from the chances of the ranks; so do those of the chain.

    ``worth[i]`` is the chance that node i and all above it are accepted.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    worth: tuple[float, ...]
    expected_tokens: float
    chain_length: int
    chain_expected_tokens: float

    @property
    def shape(self) -> Shape:
        return Shape(self.parents, self.ranks)


def plan(shape: Shape, ranks: Sequence[float], chain_length: int) -> TreePlan:
    """The plan for ``shape`` when the candidate of rank r is accepted with chance ``ranks[r]`` at every node."""
    worth: list[float] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        above = 1.0 if parent == ROOT else worth[parent]
        worth.append(above * (ranks[rank] if rank < len(ranks) else 0.0))
    first = ranks[0] if ranks else 0.0
    alone = sum(first**depth for depth in range(chain_length + 1))
    return TreePlan(shape.parents, shape.ranks, tuple(worth), 1 + sum(worth), chain_length, alone)


def drafted_shape(drafted: Pass) -> Shape:
    """The shape of a pass's draft; a node's rank is the number of its earlier siblings."""
    parents = tuple(node.parent for node in drafted.nodes)
    return Shape(parents, tuple(parents[:i].count(parent) for i, parent in enumerate(parents)))


@step
@dataclass(frozen=True)
class MaskCost:
    """The mask of one pass: its tree part ``[n + 1, n + 1]`` and all of it, in bytes at one byte an entry.

    ``build_ms`` is the measured time of making the tree part from the parents.
    """

    tree_bytes: int
    pass_bytes: int
    packed_bytes: int  # the tree part at one bit an entry
    build_ms: float


def mask_cost(shape: Shape, num_tokens: int, repeats: int = 20) -> MaskCost:
    """The cost of ``shape``'s mask behind ``num_tokens`` committed tokens."""
    n = len(shape) + 1
    times = []
    for _ in range(repeats):
        draft = Draft(shape.ranks, shape.parents)
        began = time.perf_counter()
        draft.mask.sum()
        times.append(1e3 * (time.perf_counter() - began))
    return MaskCost(n * n, n * (num_tokens + len(shape)), (n * n + 7) // 8, min(times))


@step
@dataclass(frozen=True)
class DraftTime:
    """The measured time of a pass over a draft of some shape."""

    name: str
    positions: int
    ms: float


def draft_times(session: Session, shapes: Mapping[str, Shape], repeats: int = 2) -> Iterator[DraftTime]:
    """The fastest of ``repeats`` passes over each of ``shapes``, on a fork of ``session``; tokens do not matter."""
    twin = session.fork()
    tokens = list(twin.tokens)
    for name, shape in shapes.items():
        times = []
        for _ in range(repeats + 1):  # the first one warms up
            twin.sync(tokens)
            began = time.perf_counter()
            float(twin.score(Draft(shape.ranks, shape.parents)).logits[-1, 0])  # reading a number waits for the device
            times.append(1e3 * (time.perf_counter() - began))
        yield DraftTime(name, len(shape) + 1, min(times[1:]))


@step
@dataclass(frozen=True)
class PositionErrors:
    """What the wrong positions do to each node's law: ``total_variation`` to the right one; ``flips``: other argmax."""

    start: int
    total_variation: tuple[float, ...]
    flips: tuple[bool, ...]


def position_errors(session: Session, tokens: Sequence[int], drafted: Pass) -> PositionErrors:
    """The draft of a pass scored behind ``tokens`` at the positions of its depths and at those of its indices.

    The laws are the model's own, before any knob. Moves ``session``.
    """
    laws = []
    for kind in (Draft, FlatDraft):
        session.sync(tokens)
        draft = kind(tuple(n.token for n in drafted.nodes), tuple(n.parent for n in drafted.nodes))
        laws.append(softmax(apply((), session.score(draft).logits))[1:])  # [n, vocab]
    right, wrong = laws
    distance = 0.5 * (right - wrong).abs().sum(-1)
    return PositionErrors(
        drafted.start, tuple(distance.tolist()), tuple((right.argmax(-1) != wrong.argmax(-1)).tolist())
    )


def rank_shares(passes: Sequence[Pass]) -> tuple[float | None, ...]:
    """How often the candidate of each rank was the accepted one, of the times it was drafted below accepted nodes."""
    drafted: dict[int, int] = {}
    accepted: dict[int, int] = {}
    for drafted_pass in passes:
        if not drafted_pass.nodes:
            continue
        ranks = drafted_shape(drafted_pass).ranks
        for node, rank in zip(drafted_pass.nodes, ranks, strict=True):
            if node.parent == ROOT or drafted_pass.nodes[node.parent].state == "accepted":
                drafted[rank] = drafted.get(rank, 0) + 1
                accepted[rank] = accepted.get(rank, 0) + (node.state == "accepted")
    return tuple(ratio(accepted.get(r, 0), drafted.get(r, 0)) for r in range(max(drafted, default=-1) + 1))
