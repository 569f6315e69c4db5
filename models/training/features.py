"""One target pass over the corpus: hidden states on disk, so that training never runs the target.

A shard is ``features/00012.npy``, ``[tokens, taps + 1, dim]`` in fp16: the tapped layers and, last, the state after the
final norm, from which the target's law follows by its LM head. Shards are written under another name and renamed when
complete; a killed run starts again at the first missing shard. Several workers share the work by shard number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from models.training.corpus import Corpus

FP16_MAX = 65504.0


@dataclass(frozen=True)
class FeatureMeta:
    """What the shards of a folder were made from; a folder holds one kind only."""

    target: str
    corpus: str  # digest
    taps: tuple[int, ...]  # hidden_states indices: 0 = embedding, i = after layer i
    dim: int
    shard_size: int  # conversations per shard


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """Low, middle and high, as EAGLE-3 takes them (arXiv 2503.01840).

    >>> default_taps(30)
    (2, 15, 28)
    """
    return (min(2, num_layers), num_layers // 2, max(num_layers - 2, 0))


def open_folder(folder: Path, meta: FeatureMeta) -> None:
    """Create ``folder`` or check that it holds features of the same kind; raises ``ValueError`` when it does not."""
    path = folder / "meta.json"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        there = read_meta(folder)
        if there != meta:
            raise ValueError(f"{folder} holds other features ({there}); remove it or choose another folder.")
        return
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(asdict(meta), indent=1))
    os.replace(partial, path)


def read_meta(folder: Path) -> FeatureMeta:
    path = folder / "meta.json"
    if not path.exists():
        raise FileNotFoundError(
            f"There are no features at {folder}: make them with `python -m models.training features`."
        )
    data = json.loads(path.read_text())
    return FeatureMeta(**{**data, "taps": tuple(data["taps"])})


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"{index:05d}.npy"


def finished_shards(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.npy"))


@torch.inference_mode()
def extract(
    model: nn.Module,
    corpus: Corpus,
    meta: FeatureMeta,
    folder: Path,
    worker: int = 0,
    workers: int = 1,
    max_shards: int | None = None,
) -> None:
    """Write every missing shard whose number is ``worker`` modulo ``workers``, at most up to ``max_shards`` in all."""
    open_folder(folder, meta)
    total = corpus.num_shards(meta.shard_size)
    indices = range(worker, min(total, max_shards or total), workers)
    for index in tqdm([i for i in indices if not shard_path(folder, i).exists()], desc=f"features {worker}/{workers}"):
        conversations = corpus.shard(index, meta.shard_size)
        states = np.empty((sum(corpus.lengths(conversations)), len(meta.taps) + 1, meta.dim), np.float16)
        sequences = [corpus.tokens[corpus.offsets[c] : corpus.offsets[c + 1]] for c in conversations]
        for rows, block in hidden_states(model, sequences, meta.taps):
            states[rows] = block
        partial = folder / f"partial-{worker}.tmp"
        with partial.open("wb") as file:
            np.save(file, states)
        os.replace(partial, shard_path(folder, index))


def hidden_states(
    model: nn.Module, sequences: Sequence[np.ndarray], taps: Sequence[int], batch_tokens: int = 1536
) -> Iterator[tuple[slice, np.ndarray]]:
    """(rows, ``[length, taps + 1, dim]`` fp16) of each sequence; rows count through ``sequences`` laid end to end.

    Sequences of like length go through the model together, padded on the right: causal attention never looks there.
    """
    starts = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
    queue = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    while queue:
        longest = len(sequences[queue[0]])
        batch, queue = queue[: max(1, batch_tokens // longest)], queue[max(1, batch_tokens // longest) :]
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(sequences[i])] = torch.from_numpy(sequences[i].astype(np.int64))
        out = model.model(input_ids=ids.to(model.device), output_hidden_states=True, use_cache=False)
        kept: list[Tensor] = [out.hidden_states[tap] for tap in taps] + [out.last_hidden_state]
        block: Any = torch.stack(kept, 2).float().clamp(-FP16_MAX, FP16_MAX).half().cpu().numpy()
        for row, i in enumerate(batch):
            yield slice(starts[i], starts[i + 1]), block[row, : len(sequences[i])]
