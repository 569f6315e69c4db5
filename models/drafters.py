"""Trained drafters at work: the engine's drafters and guessers over the modules of ``models.heads``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from models.heads import KV, Eagle, Medusa, TinyLM
from models.trained import Trained, Unfit, load_for
from playground.engine.drafters import Drafter, NGram
from playground.engine.model import Scores
from playground.engine.sampling import Coin, Context, Knob
from playground.engine.trace import KVRows
from playground.engine.tree import ROOT, Draft
from playground.engine.tree_drafting import Grower, Growth, TreeDrafter, drafting_session, propose_chain
from playground.engine.wiring import Probe


@dataclass
class EagleDrafter:
    """A one-layer head of the EAGLE family: a guesser for trees, and by itself a chain drafter.

    Its KV rows are slots: a slot joins a state with the token that followed it. Slots of committed tokens are made from
    the target's own states; those of a draft, made from the head's, are dropped when the next proposal begins.
    """

    trained: Trained
    knobs: tuple[Knob, ...] = ()
    name: str = "eagle3"
    kv: KV = field(default_factory=KV)
    waiting: list[Tensor] = field(default_factory=list)  # fused states whose slot is not written yet
    slots: int = 0  # written from the target's states
    max_levels: int = 1 << 30
    probe: Probe | None = None  # told of the tensors behind every law of a chain
    _before: int = 0
    _row: dict[int, int] = field(default_factory=dict)  # node of the tree -> its slot, counted from ``slots``
    _state: dict[int, Tensor] = field(default_factory=dict)  # node -> the head's state after it

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.shape.taps

    @property
    def num_parameters(self) -> int:
        return self.trained.num_parameters

    @property
    def head(self) -> Eagle:
        return self.trained.module  # type: ignore[return-value]

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        """A chain of ``k``; none while a state is missing. With ``k`` = 0 it only takes the states in."""
        return propose_chain(self, self.knobs, context, k, coin, hidden)

    @torch.inference_mode()
    def begin(self, context: Context, k: int, hidden: Tensor | None) -> Tensor | None:
        if not self.taps:  # it reads tokens only: nothing to wait for
            self.waiting = [self.trained.embedding.new_zeros(len(context.tokens) - 1 - self.slots, 0)]
        elif hidden is not None and len(hidden):
            self.waiting.append(self.head.fuse(hidden.to(self.trained.embedding.dtype)))
            if self.probe:
                self.probe.restart()
                for tap, state in zip(self.taps, hidden[-1], strict=True):
                    self.probe.tell(f"layer {tap}", state)
        known = self.slots + sum(map(len, self.waiting))
        if k == 0 or not self.waiting or known != len(context.tokens) - 1:
            return None
        self.kv.keep(self.slots)
        self._before, self._row = self.slots, {}
        tokens = context.tokens[self.slots + 1 :]
        state = self._advance(tokens, torch.cat(self.waiting), range(self.slots, known))[-1]
        self.slots, self.waiting, self._state = known, [], {ROOT: state}
        return self._logits(state)

    @torch.inference_mode()
    def extend(self, growth: Growth, nodes: Sequence[int]) -> Tensor:
        """Each node sees the committed slots, its ancestors' and its own."""
        held = len(self._row)
        self._row |= {node: held + i for i, node in enumerate(nodes)}
        mask = torch.zeros(len(nodes), self.slots + len(self._row), dtype=torch.bool)
        mask[:, : self.slots] = True
        for i, node in enumerate(nodes):
            above = node
            while above != ROOT:
                mask[i, self.slots + self._row[above]] = True
                above = growth.parents[above]
        tokens = [growth.tokens[node] for node in nodes]
        before = torch.stack([self._state[growth.parents[node]] for node in nodes])
        positions = [self.slots + growth.depth(node) - 1 for node in nodes]
        states = self._advance(tokens, before, positions, mask)
        self._state |= dict(zip(nodes, states, strict=True))
        return self._logits(states)

    def _advance(
        self, tokens: Sequence[int], states: Tensor, positions: Sequence[int], mask: Tensor | None = None
    ) -> Tensor:
        """Write one slot per token; the head's states ``[n, dim]`` after them."""
        embedded = self.trained.embed(tokens)
        x = self.head.enter(embedded, states)
        at = torch.tensor(list(positions), device=x.device)
        out = self.head.block(x[None], at, self.kv, mask.to(x.device) if mask is not None else None)[0]
        if self.probe:
            self._tell(int(tokens[-1]), embedded[-1], states[-1], x[-1], out[-1])
        return self.head.carry(out)

    def _tell(self, token: int, embedded: Tensor, state: Tensor, x: Tensor, out: Tensor) -> None:
        """The vectors of the newest row, in the order they come about."""
        joined, dim = self.head.join(embedded, state), len(embedded)
        self.probe.read(token)
        named = {
            "state": state,
            "embedding": embedded,
            "embedding, normed": joined[:dim],
            "state, normed": joined[dim:],
        }
        for name, vector in (named | {"projection": x, "block": out}).items():
            self.probe.tell(name, vector)

    @torch.inference_mode()
    def read_through(self, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        """Logits ``[n - 1, vocab]`` along a text of n tokens: row i, after token i + 1, guesses token i + 2.

        ``hidden`` ``[n, taps, dim]``. Over the target's whole LM head, and apart from any draft.
        """
        state = self.head.fuse(hidden[:-1].to(self.trained.embedding.dtype))
        x = self.head.enter(self.trained.embed(tokens[1:]), state)
        out = self.head.block(x[None], torch.arange(len(x), device=x.device))[0]
        return self.head.speak(self.head.carry(out)) @ self.trained.lm_head.T

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.trained.logits(self.head.speak(states))
        if self.probe:
            self.probe.guess(logits.view(-1, logits.shape[-1])[-1])
        return logits

    def sync(self, tokens: Sequence[int]) -> KVRows:
        rows = len(self.kv)
        self.kv.keep(self.slots)
        before, self._before = self._before, self.slots
        return KVRows(before, rows - before, self.slots - before, rows - self.slots, len(tokens) - 1 - self.slots)


@dataclass
class MedusaDrafter:
    """Medusa's heads: each level is guessed from the last committed state, without knowing the levels above it."""

    trained: Trained
    knobs: tuple[Knob, ...] = ()
    name: str = "medusa"
    _last: Tensor | None = None

    @property
    def num_parameters(self) -> int:
        return self.trained.num_parameters

    @property
    def heads(self) -> Medusa:
        return self.trained.module  # type: ignore[return-value]

    @property
    def taps(self) -> tuple[int, ...]:
        return self.heads.shape.taps

    @property
    def max_levels(self) -> int:
        return len(self.heads.heads)

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        return propose_chain(self, self.knobs, context, min(k, self.max_levels), coin, hidden)

    @torch.inference_mode()
    def begin(self, context: Context, k: int, hidden: Tensor | None) -> Tensor | None:
        if hidden is None or not len(hidden) or k == 0:
            return None
        self._last = hidden[-1, -1].to(self.trained.embedding.dtype)
        return self.trained.logits(self.heads(self._last, 0))

    @torch.inference_mode()
    def extend(self, growth: Growth, nodes: Sequence[int]) -> Tensor:
        """One law for the whole level: which node it follows makes no difference to the head."""
        law = self.trained.logits(self.heads(self._last, growth.depth(nodes[0])))
        return law.expand(len(nodes), -1)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


@dataclass
class Combination:
    """What ``first`` drafts; when it has nothing, what ``second`` drafts. ``second`` sees every hidden state."""

    first: Drafter
    second: Drafter
    name: str = "combination"

    @property
    def taps(self) -> tuple[int, ...]:
        return self.second.taps

    @property
    def num_parameters(self) -> int | None:
        return getattr(self.second, "num_parameters", None)

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        copied = self.first.propose(context, k, coin)
        return self.second.propose(context, 0 if copied else k, coin, hidden) or copied

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        self.first.sync(tokens)
        return self.second.sync(tokens)


def ngram_or_eagle(eagle: EagleDrafter, eos_ids: frozenset[int] = frozenset(), longest: int = 4) -> Combination:
    """A copy where at least two tokens match, else EAGLE-3."""
    return Combination(NGram(longest, 2, eos_ids), eagle)


class TinySession:
    """A sequence on a tiny language model."""

    def __init__(self, model: TinyModel, tokens: Sequence[int]) -> None:
        self.model, self.tokens, self.draft = model, list(tokens), Draft()
        self.layers = [KV() for _ in model.lm.blocks]
        self._fed = 0

    @property
    def num_kv_rows(self) -> int:
        return len(self.layers[0]) - len(self.draft)

    @property
    def max_tokens(self) -> int:
        return self.model.max_tokens

    @torch.inference_mode()
    def score(self, draft: Draft) -> Scores:
        past = self._fed = min(self.num_kv_rows, len(self.tokens) - 1)  # the newest token is fed again
        self._keep(past)
        pending = self.tokens[past:]
        first, n = past + len(pending) - 1, len(pending) + len(draft)
        positions = torch.tensor([*range(past, past + len(pending)), *(first + depth for depth in draft.depths)])
        mask = torch.ones(n, past + n, dtype=torch.bool).tril(past)
        mask[len(pending) :, past + len(pending) :] = draft.mask
        embedded = self.model.trained.embed([*pending, *draft.tokens])
        device = embedded.device
        states = self.model.lm(embedded[None], positions.to(device), self.layers, mask.to(device))[0]
        self.draft = draft
        return Scores(self.model.trained.logits(states[len(pending) - 1 :]))

    @torch.inference_mode()
    def commit(self, path: Sequence[int], token: int) -> KVRows:
        draft, base, rows = self.draft, self.num_kv_rows, len(self.layers[0])
        for kv in self.layers:
            chosen = [*range(base), *(base + i for i in path)]
            kv.keys, kv.values = kv.keys[:, chosen], kv.values[:, chosen]
        self.draft = Draft()
        self.tokens += [*(draft.tokens[i] for i in path), token]
        kept = base + len(path) - self._fed
        return KVRows(self._fed, rows - self._fed, kept, rows - self._fed - kept)

    def sync(self, tokens: Sequence[int]) -> KVRows:
        self._keep(self.num_kv_rows)
        before = self.num_kv_rows
        most = min(before, len(self.tokens), len(tokens) - 1)
        same = next((i for i in range(most) if self.tokens[i] != tokens[i]), most)
        self._keep(same)
        self.tokens = list(tokens)
        return KVRows(before, 0, 0, before - same, missing=len(tokens) - 1 - same)

    def fork(self) -> TinySession:
        twin = TinySession(self.model, self.tokens)
        for ours, theirs in zip(twin.layers, self.layers, strict=True):
            ours.keys, ours.values = theirs.keys, theirs.values
        twin.draft, twin._fed = self.draft, self._fed
        return twin

    def _keep(self, rows: int) -> None:
        for kv in self.layers:
            kv.keep(rows)
        self.draft = Draft()


@dataclass(frozen=True, eq=False)
class TinyModel:
    """The tiny language model as a draft model: it opens sessions for ``playground.engine.drafters.DraftModel``."""

    trained: Trained
    max_tokens: int
    name: str = "tiny"

    @property
    def lm(self) -> TinyLM:
        return self.trained.module  # type: ignore[return-value]

    @property
    def vocab_size(self) -> int:
        return len(self.trained.embedding)

    def session(self, tokens: Sequence[int], taps: Sequence[int] = ()) -> TinySession:
        return TinySession(self, tokens)


def make_trained(
    name: str, target: Any, tokens: Sequence[int], knobs: Sequence[Knob], grower: Grower | None = None
) -> Drafter:
    """The trained drafter ``name`` with its weights for ``target``, a chain or what ``grower`` makes of it.

    Raises ``Unfit`` when there are no weights for this target.
    """
    knobs = tuple(knobs)
    if name == "tiny":
        model = TinyModel(load_for(target, "tiny"), target.max_tokens)
        return drafting_session(model.session(tokens), knobs, "tiny", model.trained.num_parameters, grower)
    if name == "combination":
        if grower is not None:
            raise Unfit("combination drafts chains only: a copy from the text has one guess for each place.")
        return ngram_or_eagle(EagleDrafter(load_for(target, "eagle3"), knobs), target.eos_ids)
    make = MedusaDrafter if name == "medusa" else EagleDrafter
    guesser = make(load_for(target, name), knobs, name)
    return guesser if grower is None else TreeDrafter(guesser, grower)
