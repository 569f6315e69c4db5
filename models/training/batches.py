"""Sequences to train on, least visited first: from the shards that are on disk, or from the whole corpus.

A drafter that reads tokens only needs no features: where a conversation has no shard yet, its laws are the first
choices that the corpus keeps, with probability 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.training.corpus import GIVEN, Corpus
from models.training.features import finished_shards, read_meta, shard_path
from models.training.teacher import load_laws


@dataclass
class Batch:
    """Conversations padded on the right. Row t of ``ids``/``probs`` is the target's law after token t.

    ``learn[b, t]``: that law is worth learning: the model itself wrote the next token, and its first choice is in the
    draft vocabulary. ``choice`` is that first choice as a draft-vocabulary index, -1 when it has none.
    """

    tokens: Tensor  # [B, L] int64
    lengths: Tensor  # [B]
    features: Tensor | None  # [B, L, taps + 1, dim] fp16; None for a drafter that reads tokens only
    ids: Tensor  # [B, L, K] int64
    probs: Tensor  # [B, L, K] fp32
    own: Tensor  # [B, L] bool: the next token was written by the model
    choice: Tensor  # [B, L] int64

    @property
    def learn(self) -> Tensor:
        return self.own & (self.choice >= 0)


class Shards:
    """Finished shards of a work folder; ``visits`` counts how often each conversation was taken.

    With ``tokens_only`` every conversation takes part, with or without a shard, and batches have no features.
    """

    def __init__(
        self,
        corpus: Corpus,
        features: Path,
        laws: Path,
        vocabulary: np.ndarray,
        head: Tensor,
        tokens_only: bool = False,
    ) -> None:
        self.tokens_only = tokens_only
        self.corpus, self.features, self.laws, self.head = corpus, features, laws, head
        self.size = read_meta(features).shard_size
        self.place = np.full(int(max(corpus.tokens.max(), corpus.argmax.max(), vocabulary.max())) + 1, -1)
        self.place[vocabulary] = np.arange(len(vocabulary))  # token id -> draft-vocabulary index
        self.visits: dict[int, int] = {}
        self._open: dict[int, tuple] = {}
        self.where: dict[int, tuple[int, int]] = {}  # conversation -> (shard, first row)
        if tokens_only:
            held_out = set(corpus.shard(0, self.size))
            self.visits = {c: 0 for c in corpus.order().tolist() if c not in held_out}
        self.refresh()

    def refresh(self) -> None:
        """Take in shards that were finished since the last look; shard 0 stays apart for validation."""
        known = {shard for shard, _ in self.where.values()}
        for shard in finished_shards(self.features):
            if shard in known:
                continue
            row = 0
            conversations = self.corpus.shard(shard, self.size)
            for c, length in zip(conversations, self.corpus.lengths(conversations), strict=True):
                self.where[c] = (shard, row)
                row += length
                if shard:
                    self.visits.setdefault(c, 0)

    @property
    def validation(self) -> list[int]:
        return [c for c, (shard, _) in self.where.items() if shard == 0]

    def pick(self, count: int, rng: np.random.Generator) -> list[int]:
        """The next ``count`` conversations; raises ``ValueError`` while no shard for training is finished."""
        if not self.visits:
            raise ValueError(f"No shard to train on in {self.features} yet: run `python -m models.training features`.")
        names = list(self.visits)
        order = rng.permutation(len(names))
        chosen = sorted((names[i] for i in order), key=self.visits.__getitem__)[:count]
        for c in chosen:
            self.visits[c] += 1
        return chosen

    def load(self, conversations: Sequence[int], features_too: bool = False) -> Batch:
        """The batch of ``conversations``; ``features_too`` brings features also where they are not usually read."""
        lengths = self.corpus.lengths(conversations)
        longest, dim = max(lengths), self.head.shape[1]
        parts = [self._rows(c) for c in conversations]
        kept = max(ids.shape[1] for _, ids, _ in parts)
        features = None
        if features_too or not self.tokens_only:
            features = torch.zeros(len(parts), longest, parts[0][0].shape[1], dim, dtype=torch.float16)
        b = Batch(
            tokens=torch.zeros(len(parts), longest, dtype=torch.long),
            lengths=torch.tensor(lengths),
            features=features,
            ids=torch.zeros(len(parts), longest, kept, dtype=torch.long),
            probs=torch.zeros(len(parts), longest, kept),
            own=torch.zeros(len(parts), longest, dtype=torch.bool),
            choice=torch.full((len(parts), longest), -1),
        )
        for i, (c, n) in enumerate(zip(conversations, lengths, strict=True)):
            span = slice(self.corpus.offsets[c], self.corpus.offsets[c + 1])
            states, ids, probs = parts[i]
            b.tokens[i, :n] = torch.from_numpy(self.corpus.tokens[span].astype(np.int64))
            if features is not None:
                features[i, :n] = torch.from_numpy(np.array(states))
            b.ids[i, :n, : ids.shape[1]] = torch.from_numpy(ids.astype(np.int64))
            b.probs[i, :n, : ids.shape[1]] = torch.from_numpy(probs.astype(np.float32))
            b.own[i, : n - 1] = torch.from_numpy(self.corpus.role[span][1:] != GIVEN)
            b.choice[i, : n - 1] = torch.from_numpy(self.place[self.corpus.argmax[span][:-1]])
        return b

    def _rows(self, conversation: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """(features, draft-vocabulary indices of the kept tokens, their probabilities) of a conversation."""
        if conversation not in self.where:
            span = slice(self.corpus.offsets[conversation], self.corpus.offsets[conversation + 1])
            first = self.place[self.corpus.argmax[span]][:, None].clip(min=0)
            return None, first, np.ones(first.shape)
        shard, row = self.where[conversation]
        if shard not in self._open:
            states = np.load(shard_path(self.features, shard), mmap_mode="r")
            self._open[shard] = (states, *load_laws(self.laws, self.features, shard, self.head))
        span = slice(row, row + self.corpus.lengths([conversation])[0])
        return tuple(part[span] for part in self._open[shard])  # type: ignore[return-value]
