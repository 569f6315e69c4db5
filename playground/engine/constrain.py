"""A grammar in the decoding loop: which tokens are legal after every node of a draft, and what becomes of the rest."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.grammar.bitmask import allocate, apply_bitmask, unpack
from playground.engine.grammar.matcher import Matcher
from playground.engine.trace import Candidate, RowMask
from playground.engine.tree import ROOT, Draft

NUM_SHOWN = 10  # likeliest tokens of the unmasked law that a step keeps per row


class DeadEnd(ValueError):
    """The grammar allows no token of this vocabulary here; the message says where the text is."""


@dataclass(frozen=True)
class Legality:
    """``bitmask`` ``[n + 1, words]``: row 0 for the next token, row i + 1 after node i of the draft.

    ``blocked`` nodes are the first illegal one of a path and all below it: their rows stay full, since nothing there is
    ever judged. ``ended`` nodes end the text, ``dead`` ones lead to where no token is legal; both have full rows too.
    """

    bitmask: Tensor
    blocked: frozenset[int]
    ended: frozenset[int]
    dead: dict[int, str]
    places: tuple[str | None, ...]  # per row; None where no mask applies

    def mask(self, logits: Tensor) -> Tensor:
        """``logits`` ``[n + 1, vocab]``, illegal tokens at -inf."""
        return apply_bitmask(logits, self.bitmask)

    def check(self, path: Sequence[int]) -> None:
        """Raises ``DeadEnd`` where an accepted node leaves no legal token."""
        for node in path:
            if node in self.dead:
                raise DeadEnd(dead_end(self.dead[node]))

    def report(self, raw: Tensor, masked: Tensor) -> tuple[RowMask | None, ...]:
        """What each mask did to the model's own law; ``raw`` and ``masked`` are logits before the knobs."""
        reports: list[RowMask | None] = []
        wide = raw.double()
        whole = wide.logsumexp(-1)  # [n + 1]
        mass = (masked.double().logsumexp(-1) - whole).exp().clamp(max=1.0).tolist()
        tops = raw.topk(min(NUM_SHOWN, raw.shape[-1]), dim=-1)
        for row, place in enumerate(self.places):
            if place is None:
                reports.append(None)
                continue
            ids = tops.indices[row]
            ps = (wide[row, ids] - whole[row]).exp()
            bits = zlib.compress(self.bitmask[row].numpy().tobytes(), 6)
            reports.append(
                RowMask(
                    num_legal=int(unpack(self.bitmask[row], raw.shape[-1]).sum()),
                    feasible_mass=mass[row],
                    place=place,
                    top=tuple(map(Candidate, ids.tolist(), ps.tolist())),
                    bits=base64.b64encode(bits).decode(),
                )
            )
        return tuple(reports)


def dead_end(place: str) -> str:
    return f"The grammar is at a dead end: no token of this vocabulary is legal in {place}."


def legality(grammar: Matcher, draft: Draft, vocab_size: int) -> Legality:
    """Walk ``grammar`` along every path of ``draft`` and back: it stands afterwards where it stood.

    Raises ``DeadEnd`` when nothing is legal right now.
    """
    bitmask = allocate(len(draft) + 1, vocab_size)
    places: list[str | None] = [None] * (len(draft) + 1)
    blocked, ended, dead = set(range(len(draft))), set(), {}

    def visit(node: int) -> None:
        row = node + 1
        if grammar.is_terminated:
            ended.add(node)
            bitmask[row] = -1
            return
        grammar.fill(bitmask, row)
        if not bitmask[row].any():
            dead[node] = grammar.place
            bitmask[row] = -1
        else:
            places[row] = grammar.place
        for child in draft.children(node):
            if grammar.accept(draft.tokens[child]):
                blocked.discard(child)
                visit(child)
                grammar.rollback(1)

    visit(ROOT)
    if ROOT in dead:
        raise DeadEnd(dead_end(dead[ROOT]))
    for node in blocked:
        bitmask[node + 1] = -1
    return Legality(bitmask, frozenset(blocked), frozenset(ended), dead, tuple(places))


def advance(grammar: Matcher, new: Sequence[int], kept: int, finish: str | None) -> tuple[int, str | None]:
    """Move ``grammar`` on by the tokens that are committed, each once; the text ends where the grammar ends.

    Returns how many tokens stay and why the run ends, as ``Stop.cut`` does.
    """
    for i, token in enumerate(new[:kept]):
        accepted = grammar.accept(token)
        assert accepted, f"token {token} was put out, but the grammar does not allow it"
        if grammar.is_terminated:
            return i + 1, "eos"
    return kept, finish


def decode_bits(report: RowMask, vocab_size: int) -> Tensor:
    """``[vocab]`` bool: the legal tokens of a reported mask."""
    words = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(report.bits))), dtype=torch.int32)
    return torch.from_numpy(unpack(words, vocab_size))
