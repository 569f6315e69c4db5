"""Trained drafters at work: the drafter protocol of the engine over the modules of ``models.heads``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.heads import KV, Eagle3, Medusa, TinyLM
from models.trained import Trained
from playground.engine.drafters import Drafter, NGram
from playground.engine.model import Scores
from playground.engine.sampling import Coin, Context, Knob, apply, draw, softmax
from playground.engine.trace import KVRows
from playground.engine.tree import Draft


def _pick(trained: Trained, state: Tensor, knobs: Sequence[Knob], context: Context, coin: float) -> tuple[int, Tensor]:
    """A token drawn from the law after the knobs, and that law ``[vocab]``, which is the q of verification."""
    law = softmax(apply(knobs, trained.logits(state)[None], [context]))[0]
    return draw(law, coin), law


@dataclass
class EagleDrafter:
    """EAGLE-3 as a chain. Its KV rows are slots: slot s joins the target's state of token s with token s + 1.

    The rows of committed slots are made from the target's own states; those of the chain, made from the head's, are
    dropped when the next proposal begins.
    """

    trained: Trained
    knobs: tuple[Knob, ...] = ()
    name: str = "eagle3"
    kv: KV = field(default_factory=KV)
    waiting: list[Tensor] = field(default_factory=list)  # fused states whose slot is not written yet
    slots: int = 0  # written from the target's states
    _before: int = 0

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.shape.taps

    @property
    def head(self) -> Eagle3:
        return self.trained.module  # type: ignore[return-value]

    @torch.inference_mode()
    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        """A chain of ``k``; none while a state is missing. With ``k`` = 0 it only takes the states in."""
        if hidden is not None and len(hidden):
            self.waiting.append(self.head.fuse(hidden.to(self.trained.embedding.dtype)))
        known = self.slots + sum(map(len, self.waiting))
        if k == 0 or not self.waiting or known != len(context.tokens) - 1:
            return Draft()
        self.kv.keep(self.slots)
        self._before = self.slots
        state = self._advance(context.tokens[self.slots + 1 :], torch.cat(self.waiting))
        self.slots, self.waiting = known, []
        tokens: list[int] = []
        laws: list[Tensor] = []
        for i in range(k):
            seen = Context((*context.tokens, *tokens), context.num_prompt)
            token, law = _pick(self.trained, self.head.norm(state), self.knobs, seen, coin(len(seen.tokens), "draft"))
            tokens.append(token)
            laws.append(law)
            if i + 1 < k:
                state = self._advance([token], state[None])
        return Draft.chain(tokens, torch.stack(laws))

    def _advance(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """Write one slot per token; the head's state ``[dim]`` after the last."""
        positions = torch.arange(len(self.kv), len(self.kv) + len(tokens), device=states.device)
        x = self.head.enter(self.trained.embed(tokens), states)
        return self.head.block(x[None], positions, self.kv)[0, -1]

    def sync(self, tokens: Sequence[int]) -> KVRows:
        rows = len(self.kv)
        self.kv.keep(self.slots)
        before, self._before = self._before, self.slots
        return KVRows(before, rows - before, self.slots - before, rows - self.slots, len(tokens) - 1 - self.slots)


@dataclass
class MedusaDrafter:
    """Medusa's heads as a chain: each level is drawn without knowing the levels above it."""

    trained: Trained
    knobs: tuple[Knob, ...] = ()
    name: str = "medusa"

    @property
    def taps(self) -> tuple[int, ...]:
        return self.trained.module.shape.taps  # type: ignore[return-value,union-attr]

    @torch.inference_mode()
    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        if hidden is None or not len(hidden) or k == 0:
            return Draft()
        heads: Medusa = self.trained.module  # type: ignore[assignment]
        last = hidden[-1, -1].to(self.trained.embedding.dtype)
        tokens: list[int] = []
        laws: list[Tensor] = []
        for depth in range(min(k, len(heads.heads))):
            seen = Context((*context.tokens, *tokens), context.num_prompt)
            token, law = _pick(self.trained, heads(last, depth), self.knobs, seen, coin(len(seen.tokens), "draft"))
            tokens.append(token)
            laws.append(law)
        return Draft.chain(tokens, torch.stack(laws))

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
        self._keep(self.num_kv_rows)
        past = self._fed = self.num_kv_rows
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
