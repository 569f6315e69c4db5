"""Acceptance on held-out prompts, greedy: the shipped drafters against replies that the target wrote beforehand.

The target runs once per set of prompts: its replies and their hidden states are kept. Greedy verification then needs
no target: a drafted token is accepted exactly when it is the reply's next token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.training.features import hidden_states
from playground.engine.drafters import Drafter
from playground.engine.length import room
from playground.engine.sampling import Context, coins

PROMPTS = Path(__file__).parent / "heldout.json"


@dataclass(frozen=True, eq=False)
class Item:
    """A held-out prompt and the target's greedy reply. ``features`` ``[prompt + reply, taps + 1, dim]``."""

    kind: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    features: Tensor


def load_prompts(path: Path = PROMPTS) -> list[tuple[str, str]]:
    """(class, text) of every held-out prompt."""
    return [(kind, text) for kind, texts in json.loads(path.read_text()).items() for text in texts]


@torch.inference_mode()
def write_replies(
    model: Any,
    prompts: Sequence[tuple[str, Sequence[int]]],
    taps: Sequence[int],
    path: Path,
    max_new: int,
    eos_ids: frozenset[int],
) -> None:
    """Greedy replies of up to ``max_new`` tokens and their states, kept at ``path`` (``.npz``)."""
    replies: list[list[int]] = []
    for i in range(0, len(prompts), 12):
        some = [list(tokens) for _, tokens in prompts[i : i + 12]]
        width = max(map(len, some))
        ids = torch.tensor([[0] * (width - len(s)) + s for s in some], device=model.device)
        mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in some], device=model.device)
        ends = {"eos_token_id": sorted(eos_ids) or None, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new, **ends)
        replies += [_until(row[width:].tolist(), eos_ids) for row in out]
    sequences = [np.array([*tokens, *reply]) for (_, tokens), reply in zip(prompts, replies, strict=True)]
    states = np.empty((sum(map(len, sequences)), len(taps) + 1, model.config.hidden_size), np.float16)
    for rows, block in hidden_states(model, sequences, taps):
        states[rows] = block
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        tokens=np.concatenate(sequences).astype(np.int32),
        prompts=np.array([len(tokens) for _, tokens in prompts]),
        totals=np.array([len(s) for s in sequences]),
        kinds=np.array([kind for kind, _ in prompts]),
        states=states,
    )
    os.replace(partial, path)


def _until(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """``tokens`` up to the first end-of-sequence id, that id included."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tokens[:end]


def load_items(path: Path) -> list[Item]:
    with np.load(path) as data:
        ends = np.cumsum(data["totals"])
        tokens, states = data["tokens"].tolist(), torch.from_numpy(data["states"])
        items = []
        for kind, end, total, prompt in zip(data["kinds"], ends, data["totals"], data["prompts"], strict=True):
            row, own = tokens[end - total : end], states[end - total : end].float()
            items.append(Item(str(kind), tuple(row[:prompt]), tuple(row[prompt:]), own))
    return items


@dataclass
class Count:
    """Raw counts over drafts; ratios only at the end."""

    passes: int = 0
    drafts: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * 16)  # by position
    accepted: list[int] = field(default_factory=lambda: [0] * 16)

    def add(self, drafted: int, accepted: int) -> None:
        self.passes += 1
        self.drafts += drafted > 0
        for i in range(drafted):
            self.drafted[i] += 1
            self.accepted[i] += i < accepted

    def __add__(self, other: Count) -> Count:
        def sums(a: list[int], b: list[int]) -> list[int]:
            return [x + y for x, y in zip(a, b, strict=True)]

        return Count(
            self.passes + other.passes,
            self.drafts + other.drafts,
            sums(self.drafted, other.drafted),
            sums(self.accepted, other.accepted),
        )

    def figures(self) -> dict[str, Any]:
        """Mean acceptance length (output tokens per pass), and acceptance per position, plain and conditional."""
        per = [a / n for a, n in zip(self.accepted, self.drafted, strict=True) if n]
        before = [self.drafts, *self.accepted]
        conditional = [a / b for a, b, n in zip(self.accepted, before, self.drafted, strict=False) if n and b]
        length = 1 + sum(self.accepted) / self.passes if self.passes else None
        return {
            "mean_acceptance_length": round(length, 4) if length is not None else None,
            "acceptance_per_position": [round(x, 4) for x in per],
            "conditional_per_position": [round(x, 4) for x in conditional],
            "passes": self.passes,
        }


def simulate(drafter: Drafter, item: Item, k: int, columns: Sequence[int]) -> Count:
    """Speculation along the reply. ``columns`` pick the drafter's taps out of the kept states.

    Every pass counts, also one without a draft; only the pass over the prompt does not, when a drafter that reads
    hidden states has none yet.
    """
    tokens, prompt, count = [*item.prompt, *item.reply], len(item.prompt), Count()
    coin, now, fed = coins(0), prompt, 0
    while levels := room(k, len(tokens) - now, 1 << 30):
        hidden = item.features[fed : now - 1][:, list(columns)] if columns and now > prompt else None
        guesses = drafter.propose(Context(tuple(tokens[:now]), prompt), levels, coin, hidden).tokens
        fed = now - 1 if now > prompt else 0
        accepted = 0
        while accepted < len(guesses) and guesses[accepted] == tokens[now + accepted]:
            accepted += 1
        if guesses or now > prompt:
            count.add(len(guesses), accepted)
        now += accepted + 1
        drafter.sync(tokens[:now])
    return count


def evaluate(make: Callable[[Item], Drafter], items: Sequence[Item], k: int, kept: Sequence[int]) -> dict[str, Any]:
    """Figures over ``items`` and by class. ``make`` gives a drafter per prompt; ``kept`` names the kept states."""
    by_class: dict[str, Count] = {}
    for item in items:
        drafter = make(item)
        count = simulate(drafter, item, k, [kept.index(tap) for tap in drafter.taps])
        by_class[item.kind] = by_class.get(item.kind, Count()) + count
    total = sum(by_class.values(), Count())
    return {**total.figures(), "by_class": {kind: count.figures() for kind, count in by_class.items()}}
