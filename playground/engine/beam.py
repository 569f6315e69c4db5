"""Beam search over any way of keeping the beams' state: copied sessions, shared blocks, or no cache at all.

Conventions, those of transformers: the end token counts in the length; a score is the sum of log-probabilities divided
by length ** length_penalty; an end is taken only when it is among the ``width`` best candidates of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from playground.engine.kv import BlockTables
from playground.engine.model import Session
from playground.engine.sampling import apply
from playground.engine.trace import step
from playground.engine.tree import Draft

EarlyStopping = Literal[True, False, "never"]


class BeamState(Protocol):
    """What the beams remember. Beam i of the next step is beam ``parents[i]`` of this one, plus ``tokens[i]``."""

    def start(self) -> Tensor:
        """Logits ``[1, vocab]`` after the prompt."""

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits ``[len(parents), vocab]`` of the new beams."""


class CopiedSessions:
    """Every beam has a session, and so a whole cache, of its own."""

    def __init__(self, session: Session) -> None:
        self.sessions = [session]

    def start(self) -> Tensor:
        return self.sessions[0].score(Draft()).logits

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        self.sessions = [self.sessions[parent].fork() for parent in parents]
        for session, token in zip(self.sessions, tokens, strict=True):
            session.commit((), token)
        return torch.cat([session.score(Draft()).logits for session in self.sessions])


class PagedBeams(BeamState, Protocol):
    """Beams whose rows lie in the blocks of ``tables.pool``. ``advance`` raises ``OutOfBlocks`` with all given back."""

    tables: BlockTables

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers together."""


@dataclass(frozen=True)
class Expansion:
    """A beam with one more token: ``state`` is ``live``, ``finished`` or ``pruned``; ``logprob`` of all its tokens."""

    parent: int
    token: int
    logprob: float
    state: str


@dataclass(frozen=True)
class Hypothesis:
    """A finished output, its log-probability and its score; ``finish`` is ``eos`` or ``length``."""

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finish: str


@step
@dataclass(frozen=True)
class BeamStep:
    """One step: the candidates, best first, the beams that go on, and the best finished outputs so far.

    ``beams`` are the tokens of the live expansions, in their order. ``reachable`` is the score that the best of them
    could still get, by the rule of ``early_stopping``. ``finish`` says why the search ends here, if it does.
    """

    expansions: tuple[Expansion, ...]
    beams: tuple[tuple[int, ...], ...]
    finished: tuple[Hypothesis, ...]
    reachable: float | None
    finish: str | None = None

    @property
    def live(self) -> tuple[Expansion, ...]:
        return tuple(each for each in self.expansions if each.state == "live")


def beam_search(
    state: BeamState,
    *,
    width: int,
    eos_ids: AbstractSet[int],
    max_new_tokens: int,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
) -> Iterator[BeamStep]:
    """Search with ``width`` beams; the last step's ``finished`` are the outputs, best first.

    Of all continuations of all beams the best ``width * (1 + number of end tokens)`` are looked at, at least twice
    ``width``: then ``width`` beams are left to go on with, however many end. The search ends when ``width`` outputs are
    finished and the best beam can no longer beat the worst of them, judged at its present length (``False``) or, with a
    positive penalty, at the greatest (``"never"``); with ``True`` as soon as ``width`` are finished.
    """
    if width < 1 or max_new_tokens < 1:
        raise ValueError(f"a beam search needs a beam and a token, not {width} and {max_new_tokens}")
    num_candidates = width * max(2, 1 + len(eos_ids))
    beams: list[tuple[int, ...]] = [()]
    sums = torch.zeros(1, dtype=torch.float64)
    finished: list[Hypothesis] = []
    logits = state.start()
    for length in range(1, max_new_tokens + 1):
        logprobs = torch.log_softmax(apply((), logits), -1) + sums[:, None]  # [beams, vocab]
        expansions = []
        for rank, (parent, token, logprob) in enumerate(best(logprobs, num_candidates)):
            ending = "eos" if token in eos_ids else "length" if length == max_new_tokens else None
            num_live = sum(each.state == "live" for each in expansions)
            kind = "live" if num_live < width else "pruned"
            if ending:
                kind = "finished" if rank < width else "pruned"
            if kind == "finished":
                output = (*beams[parent], token)
                finished.append(Hypothesis(output, logprob, logprob / length**length_penalty, ending))
            expansions.append(Expansion(parent, token, logprob, kind))
        finished = sorted(finished, key=lambda output: -output.score)[:width]
        live = [each for each in expansions if each.state == "live"]
        beams = [(*beams[each.parent], each.token) for each in live]
        made = BeamStep(tuple(expansions), tuple(beams), tuple(finished), None)
        made = ended(made, width, length, max_new_tokens, length_penalty, early_stopping)
        yield made
        if made.finish:
            return
        sums = torch.tensor([each.logprob for each in live], dtype=torch.float64)
        logits = state.advance([each.parent for each in live], [each.token for each in live])


def ended(
    made: BeamStep, width: int, length: int, max_new_tokens: int, length_penalty: float, early_stopping: EarlyStopping
) -> BeamStep:
    """``made`` with what its best beam can still reach, and with the reason to stop, if there is one."""
    if not made.live:
        return replace(made, finish="length" if length == max_new_tokens else "eos")
    longest = max_new_tokens if early_stopping == "never" and length_penalty > 0 else length
    reachable = made.live[0].logprob / longest**length_penalty
    finish = None
    if len(made.finished) == width:
        if early_stopping is True:
            finish = "enough"
        elif reachable <= made.finished[-1].score:
            finish = "no better"
    return replace(made, reachable=reachable, finish=finish)


def best(logprobs: Tensor, count: int) -> list[tuple[int, int, float]]:
    """The ``count`` best of ``[beams, vocab]`` as (beam, token, log-probability); ties: lowest beam, lowest token.

    >>> best(torch.tensor([[-1.0, -2.0], [-2.0, -float("inf")]]), 3)
    [(0, 0, -1.0), (0, 1, -2.0), (1, 0, -2.0)]
    """
    flat = logprobs.flatten()
    cut = flat.topk(min(count, len(flat))).values[-1]
    places = ((flat >= cut) & ~flat.isneginf()).nonzero().flatten()
    ranked = sorted(zip((-flat[places]).tolist(), places.tolist(), strict=True))[:count]
    return [(*divmod(place, logprobs.shape[-1]), -loss) for loss, place in ranked]
