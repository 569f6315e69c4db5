"""A language of fifteen words with an exact law: every lab works on it without any download."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from models.table import TableModel

FOLLOWERS: dict[str, str] = {  # word -> what follows it, likeliest first
    " the": "cat dog bird small old",
    " a": "bird small dog old cat",
    " small": "bird cat dog old",
    " old": "dog cat bird small",
    " cat": "sees sleeps and hears .",
    " dog": "hears follows sleeps and .",
    " bird": "sings sees and . sleeps",
    " sees": "the a",
    " hears": "a the",
    " follows": "the a",
    " sings": ". and",
    " sleeps": ". and",
    " and": "the a sings sleeps sees",
    ".": "the a <end>",
    "<end>": "<end>",
}
WORDS = tuple(FOLLOWERS)
END = WORDS.index("<end>")
FALL = 1.1  # logits lost from one follower to the next
TIRED = 2.5  # logits lost by a word that stood two words ago
RARE = -6.0  # logit of any word that is not listed


@cache
def _followers(last: int | None) -> Tensor:
    logits = torch.full((len(WORDS),), RARE, dtype=torch.float64)
    names = FOLLOWERS[WORDS[last]].split() if last is not None else ["the", "a"]
    for rank, name in enumerate(names):
        logits[WORDS.index(name if name in WORDS else f" {name}")] = -FALL * rank
    return logits


def law(context: tuple[int | None, ...]) -> Tensor:
    """The target's law: by the last word, and shy of the word before it."""
    before, last = context
    logits = _followers(last).clone()
    if before is not None and last != END:
        logits[before] -= TIRED
    return torch.softmax(logits, -1)


def small_law(context: tuple[int | None, ...]) -> Tensor:
    """The draft model's law: it remembers one word only and is less sure."""
    return torch.softmax(_followers(context[-1]) / 1.5, -1)


class TeachingModel(TableModel):
    """``TableModel`` that reads ``the cat`` and ``the  cat`` alike: each word brings its own leading space."""

    def encode(self, text: str) -> list[int]:
        words = text.replace(".", " . ").split()
        return super().encode("".join(word if word in WORDS else f" {word}" for word in words))

    chat = encode


def target() -> TeachingModel:
    return TeachingModel(WORDS, law, "table", frozenset({END}))


def draft_model() -> TeachingModel:
    return TeachingModel(WORDS, small_law, "table, one word back", frozenset({END}))
