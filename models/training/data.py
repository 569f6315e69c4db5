"""Training data made by the target itself: it writes the user's turn too, then the reply.

Half of the conversations follow Magpie (arXiv 2406.08464): after the chat template up to the user's turn, an aligned
model goes on with a question. The other half takes its prompt from templates, some over texts that it wrote before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from models.training.corpus import GIVEN, REPLY, USER, Corpus

PROMPTS = Path(__file__).parent / "prompts.json"
TEMPERATURES = (0.0, 0.0, 0.3, 0.5, 0.7, 0.8)  # of replies
MARK = "<<<user turn>>>"


@dataclass(frozen=True)
class Frame:
    """The chat template around a user's turn, as token ids."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def chat_frame(tokenizer: Any) -> Frame:
    """Empty after and one token before for a tokenizer without a chat template."""
    if not tokenizer.chat_template:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return Frame((start or 0,), ())
    messages = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in text.split(MARK))
    return Frame(tuple(before), tuple(after))


@dataclass
class Conversation:
    """Grows token by token; ``argmax[i]`` is the target's first choice after token i, 0 where it was not asked."""

    tokens: list[int]
    role: list[int]
    argmax: list[int]
    template: bool

    def give(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.role += [GIVEN] * len(tokens)
        self.argmax += [0] * len(tokens)


@torch.inference_mode()
def sample(
    model: Any,
    rows: Sequence[Conversation],
    temperatures: Sequence[float],
    role: int,
    limit: int,
    seed: int,
    ends: frozenset[int],
) -> None:
    """Let every conversation go on until an end id or ``limit`` tokens in all. The end id is kept."""
    generator = torch.Generator().manual_seed(seed)
    width = max(len(r.tokens) for r in rows)
    ids = torch.tensor([[0] * (width - len(r.tokens)) + r.tokens for r in rows])
    mask = torch.tensor([[0] * (width - len(r.tokens)) + [1] * len(r.tokens) for r in rows])
    heat = torch.tensor(temperatures)[:, None].clamp(min=1e-4)
    going = [len(r.tokens) < limit for r in rows]
    cache = None
    while any(going):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        cache, logits = out.cache, out.logits[:, -1].float()
        first = logits.argmax(-1)
        drawn = torch.multinomial((logits / heat).softmax(-1), 1, generator=generator)[:, 0]
        ids = torch.where(heat[:, 0] > 1e-3, drawn, first)[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        for i, (token, choice) in enumerate(zip(ids[:, 0].tolist(), first.tolist(), strict=True)):
            if going[i]:
                row = rows[i]
                row.argmax[-1] = choice
                row.tokens.append(token)
                row.role.append(role)
                row.argmax.append(0)
                going[i] = token not in ends and len(row.tokens) < limit


def make_chunk(
    model: Any, tokenizer: Any, texts: Sequence[str], size: int, limit: int, seed: int, ends: frozenset[int]
) -> list[Conversation]:
    """``size`` conversations, half with a sampled user turn; ``texts`` are replies written before, for copy tasks."""
    rng, frame = np.random.default_rng(seed), chat_frame(tokenizer)
    rows: list[Conversation] = []
    for i in range(size):
        row = Conversation([], [], [], template=i % 2 == 1)
        row.give(frame.before)
        if row.template:
            row.give(tokenizer.encode(prompt(rng, texts), add_special_tokens=False)[: limit // 2])
        rows.append(row)
    asked = [row for row in rows if not row.template]
    sample(model, asked, [1.0] * len(asked), USER, limit // 2, seed, ends)
    for row in rows:
        while row.tokens[-1] in ends and row.role[-1] == USER:  # the frame brings its own end of turn
            row.tokens.pop(), row.role.pop(), row.argmax.pop()
        row.give(frame.after)
    heat = [TEMPERATURES[j] for j in rng.integers(len(TEMPERATURES), size=size)]
    sample(model, rows, heat, REPLY, limit, seed + 1, ends)
    return rows


def prompt(rng: np.random.Generator, texts: Sequence[str]) -> str:
    """A prompt from the templates; without ``texts`` a topic stands in for the text to copy."""
    data = json.loads(PROMPTS.read_text())
    topic = data["topics"][rng.integers(len(data["topics"]))]
    text = texts[rng.integers(len(texts))] if texts else topic
    a, b, c = (str(n) for n in rng.integers(2, 99, size=3))
    return data["forms"][rng.integers(len(data["forms"]))].format(topic=topic, text=text, a=a, b=b, c=c)


def make(
    model: Any, tokenizer: Any, folder: Path, chunks: int, size: int, limit: int, seed: int, ends: frozenset[int]
) -> Corpus:
    """Make the chunks that are missing in ``folder`` and join all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for index in tqdm(range(chunks), desc="data"):
        path = folder / f"{index:05d}.json"
        if not path.exists():
            rows = make_chunk(model, tokenizer, texts[-500:], size, limit, seed + 2 * index, ends)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps([vars(row) for row in rows]))
            os.replace(partial, path)
        rows = [Conversation(**row) for row in json.loads(path.read_text())]
        own = ([t for t, role in zip(r.tokens, r.role, strict=True) if role == REPLY][:120] for r in rows)
        texts += [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in own if len(tokens) > 20]
    every = [Conversation(**row) for i in range(chunks) for row in json.loads((folder / f"{i:05d}.json").read_text())]
    return join(every, len(tokenizer))


def join(rows: Sequence[Conversation], num_tokens: int) -> Corpus:
    kind = np.uint16 if num_tokens <= 1 << 16 else np.uint32
    return Corpus(
        tokens=np.concatenate([np.array(r.tokens, kind) for r in rows]),
        offsets=np.cumsum([0, *(len(r.tokens) for r in rows)], dtype=np.int64),
        role=np.concatenate([np.array(r.role, np.uint8) for r in rows]),
        argmax=np.concatenate([np.array(r.argmax, kind) for r in rows]),
        template=np.array([r.template for r in rows]),
    )
