"""What a drafter learns from: the target's law over a reduced draft vocabulary, its likeliest tokens per row."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.training.corpus import GIVEN, Corpus
from models.training.features import shard_path

KEPT = 32  # tokens kept per row; on the default target they hold 95 % of the law


def choose_vocabulary(corpus: Corpus, shard_size: int, size: int) -> np.ndarray:
    """Ids of the ``size`` tokens that the target writes and prefers most often, ascending, ``[size]`` int64.

    Counted over what the model sampled and over its first choices there, without the validation shard: a draft
    vocabulary chosen on other text misses tokens that the target likes.
    """
    rows = corpus.rows(corpus.order()[shard_size:].tolist())
    own = rows[corpus.role[rows] != GIVEN]
    largest = int(max(corpus.tokens.max(), corpus.argmax.max())) + 1
    counts = np.bincount(corpus.tokens[own], minlength=largest) + np.bincount(corpus.argmax[own], minlength=largest)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def teacher_path(folder: Path, index: int) -> Path:
    return folder / f"{index:05d}.npz"


def load_laws(folder: Path, features: Path, index: int, head: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(draft-vocabulary indices ``[tokens, KEPT]`` uint16, their probabilities fp16) of one shard, made when missing.

    ``head`` ``[draft vocabulary, dim]``; the law is renormalised over the draft vocabulary, then over the kept tokens.
    """
    path = teacher_path(folder, index)
    if not path.exists():
        states = np.load(shard_path(features, index), mmap_mode="r")[:, -1]
        chunks = (states[i : i + 512].astype(np.float32) for i in range(0, len(states), 512))
        kept = [_law(torch.from_numpy(chunk), head) for chunk in chunks]
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"partial-{os.getpid()}.npz"
        np.savez(partial, ids=np.concatenate([k[0] for k in kept]), probs=np.concatenate([k[1] for k in kept]))
        os.replace(partial, path)
    with np.load(path) as data:
        return data["ids"], data["probs"]


@torch.inference_mode()
def _law(states: Tensor, head: Tensor) -> tuple[np.ndarray, np.ndarray]:
    best = (states @ head.T).float().topk(min(KEPT, len(head)), dim=-1)
    return best.indices.numpy().astype(np.uint16), best.values.softmax(-1).numpy().astype(np.float16)
