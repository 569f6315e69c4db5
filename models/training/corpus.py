"""Conversations as token ids: what the target wrote, end to end in one array."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

GIVEN, USER, REPLY = 0, 1, 2  # role of a token: template or given prompt, sampled user turn, sampled reply


@dataclass(frozen=True)
class Corpus:
    """``tokens[offsets[i]:offsets[i + 1]]`` is conversation i.

    ``role`` (uint8 per token) is one of GIVEN, USER, REPLY. ``argmax`` is the target's first choice for the token after
    this one (0 at a conversation's last token). ``template`` (bool per conversation): its prompt came from a template.
    """

    tokens: np.ndarray  # [n] uint16 or uint32
    offsets: np.ndarray  # [conversations + 1] int64
    role: np.ndarray  # [n] uint8
    argmax: np.ndarray  # [n] like tokens
    template: np.ndarray  # [conversations] bool

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of the tokens and offsets."""
        return hashlib.sha256(self.tokens.tobytes() + self.offsets.tobytes()).hexdigest()[:16]

    def order(self, seed: int = 0) -> np.ndarray:
        """Conversation indices in the fixed random order in which shards take them."""
        return np.random.default_rng(seed).permutation(len(self))

    def shard(self, index: int, size: int) -> list[int]:
        """The conversations of shard ``index``. Shard 0 is the validation set and never trained on."""
        return self.order()[index * size : (index + 1) * size].tolist()

    def num_shards(self, size: int) -> int:
        return -(-len(self) // size)

    def rows(self, conversations: Iterable[int]) -> np.ndarray:
        """Token positions of ``conversations``, one conversation after another."""
        return np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in conversations])

    def lengths(self, conversations: Iterable[int]) -> list[int]:
        return [int(self.offsets[c + 1] - self.offsets[c]) for c in conversations]

    def save(self, path: Path) -> None:
        """Write an npz; the file appears whole or not at all."""
        partial = path.with_name(path.name + ".partial.npz")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        np.savez_compressed(partial, **fields)
        os.replace(partial, path)


def load_corpus(path: Path) -> Corpus:
    """Raises ``FileNotFoundError`` or ``ValueError`` with the remedy."""
    if not path.exists():
        raise FileNotFoundError(f"There is no corpus at {path}: make one with `python -m models.training data`.")
    with np.load(path) as data:
        missing = [name for name in Corpus.__dataclass_fields__ if name not in data.files]
        if missing:
            raise ValueError(f"{path} is not a corpus of this pipeline: it lacks {', '.join(missing)}.")
        return Corpus(**{name: data[name] for name in Corpus.__dataclass_fields__})
