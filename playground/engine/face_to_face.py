"""Several drafters on the same contexts: chains judged in one pass, and drafts held against a known reply."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from playground.engine.drafters import Drafter
from playground.engine.length import room
from playground.engine.metrics import Counters
from playground.engine.model import Session
from playground.engine.sampling import Coin, Context, coins
from playground.engine.trace import KVRows, Pass, step
from playground.engine.tree import ROOT, Draft


@step
@dataclass(frozen=True)
class DraftedChain:
    """A drafter's chain and the target's probability of each token *given the chain's own tokens before it*."""

    name: str
    tokens: tuple[int, ...]
    p: tuple[float, ...]
    num_accepted: int

    @property
    def fit(self) -> float | None:
        """Mean log-probability of the second and later tokens: how well they follow the chain's own start."""
        later = [math.log(max(p, 1e-9)) for p in self.p[1:]]
        return sum(later) / len(later) if later else None


@step
@dataclass(frozen=True)
class SideBySide:
    """Chains of several drafters after one context of ``start`` tokens, the last of them in ``context``."""

    start: int
    context: tuple[int, ...]
    chains: tuple[DraftedChain, ...]


def merge(drafts: Mapping[str, Draft]) -> tuple[Draft, dict[str, tuple[int, ...]]]:
    """One tree that holds every chain, common beginnings once; and the nodes of each chain.

    >>> merge({"a": Draft.chain([1, 2]), "b": Draft.chain([1, 3])})[1]
    {'a': (0, 1), 'b': (0, 2)}
    """
    node_of: dict[tuple[int, int], int] = {}
    paths: dict[str, tuple[int, ...]] = {}
    for name, draft in drafts.items():
        node, path = ROOT, []
        for token in draft.tokens:
            node = node_of.setdefault((node, token), len(node_of))
            path.append(node)
        paths[name] = tuple(path)
    pairs = list(node_of)
    return Draft(tuple(token for _, token in pairs), tuple(parent for parent, _ in pairs)), paths


@dataclass
class Together:
    """Proposes the chains of all its drafters as one tree; each drafter gets the hidden states that it reads."""

    drafters: Mapping[str, Drafter]
    name: str = "together"
    paths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the last proposal

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(tap for drafter in self.drafters.values() for tap in drafter.taps))

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        drafts = {
            name: drafter.propose(context, k, coin, columns(hidden, self.taps, drafter.taps))
            for name, drafter in self.drafters.items()
        }
        draft, self.paths = merge(drafts)
        return draft

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        for drafter in self.drafters.values():
            drafter.sync(tokens)
        return None


def columns(hidden: Tensor | None, held: Sequence[int], wanted: Sequence[int]) -> Tensor | None:
    """The ``wanted`` taps of ``hidden`` ``[rows, held taps, dim]``."""
    return hidden[:, [held.index(tap) for tap in wanted]] if hidden is not None and wanted else None


def side_by_side(
    passes: Iterator[Pass], together: Together, prompt: Sequence[int], num_shown: int = 16
) -> Iterator[SideBySide]:
    """What each of the drafters of ``together`` proposed in each pass, as ``passes`` are made."""
    tokens = list(prompt)
    for judged in passes:
        chains = []
        for name, path in together.paths.items() if judged.nodes else ():
            nodes = [judged.nodes[i] for i in path]
            stood = sum(node.state == "accepted" for node in nodes)
            chains.append(DraftedChain(name, tuple(n.token for n in nodes), tuple(n.p for n in nodes), stood))
        if chains:
            yield SideBySide(len(tokens), tuple(tokens[-num_shown:]), tuple(chains))
        tokens += [output.token for output in judged.outputs]


def most_telling(moments: Sequence[SideBySide], blind: str, other: str) -> SideBySide | None:
    """The context in which ``blind``'s tokens fit one another worst, measured against ``other``'s in the same place.

    Contexts where its first token was right come first: what follows is then not a consequence of a bad start.
    """
    told: list[tuple[bool, float, int]] = []
    for i, moment in enumerate(moments):
        chains = {chain.name: chain for chain in moment.chains}
        ours, theirs = (chains[name].fit if name in chains else None for name in (blind, other))
        if ours is not None and theirs is not None:
            told.append((chains[blind].num_accepted > 0, theirs - ours, -i))
    return moments[-max(told)[2]] if told else None


# --- Against a reply that is known ------------------------------------------------------------------------------------


@step
@dataclass(frozen=True)
class Followed:
    """A drafter's counters along a greedy reply that the target wrote before, with its drafting time.

    Greedy verification needs no target then: a node is accepted when it is the reply's next token.
    """

    drafter: str
    kind: str
    num_passes: int
    num_tokens: int
    num_drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    draft_ms: float

    @property
    def counters(self) -> Counters:
        return Counters(self.num_drafts, self.drafted_tokens, self.accepted_tokens, self.accepted_per_position)


def total(parts: Sequence[Followed]) -> Counters:
    """The counters of several replies, summed before any division."""
    width = max((len(part.accepted_per_position) for part in parts), default=0)
    rows = [(*part.accepted_per_position, *[0] * (width - len(part.accepted_per_position))) for part in parts]
    return Counters(
        sum(part.num_drafts for part in parts),
        sum(part.drafted_tokens for part in parts),
        sum(part.accepted_tokens for part in parts),
        tuple(map(sum, zip(*rows, strict=True))),
    )


def reply_states(session: Session, prompt: Sequence[int], reply: Sequence[int]) -> Tensor | None:
    """The tapped states ``[prompt + reply - 1, taps, dim]`` of a text, in one pass of a fresh ``session``."""
    session.sync(prompt)
    return session.score(Draft.chain(reply[:-1])).hidden


def accepted_depth(draft: Draft, reply: Sequence[int]) -> int:
    """How many levels of ``draft`` agree with ``reply``.

    >>> accepted_depth(Draft((5, 6, 7), (-1, -1, 1)), [6, 7, 8])
    2
    """
    node, depth = ROOT, 0
    while depth < len(reply):
        match = [child for child in draft.children(node) if draft.tokens[child] == reply[depth]]
        if not match:
            break
        node, depth = match[0], depth + 1
    return depth


def follow(
    drafter: Drafter, prompt: Sequence[int], reply: Sequence[int], states: Tensor | None, k: int, kind: str = ""
) -> Followed:
    """Greedy speculation along ``reply``. ``states`` ``[prompt + reply - 1, taps, dim]`` are the drafter's own taps."""
    tokens, now, fed = [*prompt, *reply], len(prompt), 0
    passes = drafts = drafted = 0
    accepted: list[int] = []
    began, coin = time.perf_counter(), coins(0)
    while now < len(tokens):
        has_row = now > len(prompt)  # the pass over the prompt comes before the first states
        hidden = states[fed : now - 1] if states is not None and has_row else None
        levels = room(k, len(tokens) - now, 1 << 30)
        draft = drafter.propose(Context(tuple(tokens[:now]), len(prompt)), levels, coin, hidden)
        fed = now - 1 if has_row else 0
        stood = accepted_depth(draft, tokens[now : now + levels])
        passes, drafts, drafted = passes + 1, drafts + bool(draft), drafted + len(draft)
        depth = max(draft.depths, default=0)
        accepted += [0] * (depth - len(accepted))
        for i in range(stood):
            accepted[i] += 1
        now += stood + 1
        drafter.sync(tokens[:now])
    ms = 1e3 * (time.perf_counter() - began)
    return Followed(drafter.name, kind, passes, len(reply), drafts, drafted, sum(accepted), tuple(accepted), ms)
