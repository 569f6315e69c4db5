"""Trained drafter weights on disk and in memory, with what they share with their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from models.heads import Eagle, Medusa, Shape, TinyLM
from models.linear import faster_linears, few_rows

FORMAT = "decoding-playground-drafter/1"
FOLDER = Path(__file__).parent / "weights"
SAMPLES = 256  # entries of the embedding table that tell one target from another
SAME_TARGET = 0.95  # cosine; quantised or rounded weights of one model stay far above, another model's near 0
_LOADED: WeakKeyDictionary[Any, dict[str, Trained]] = WeakKeyDictionary()  # by target


class Unfit(ValueError):
    """These weights cannot be used with this target; the message says why, as a sentence."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A module with the tables that it shares with its target; of the LM head it uses the draft vocabulary's rows."""

    module: nn.Module
    vocabulary: Tensor  # [draft vocabulary] token ids
    embedding: Tensor  # [vocab, dim]
    lm_head: Tensor  # [vocab, dim]

    @cached_property
    def head(self) -> Tensor:
        """``[draft vocabulary, dim]``"""
        return self.lm_head[self.vocabulary].detach()

    @property
    def num_parameters(self) -> int:
        """Its own parameters; the shared tables are the target's."""
        return sum(p.numel() for p in self.module.parameters())

    def logits(self, states: Tensor) -> Tensor:
        """``[..., vocab]``; tokens outside the draft vocabulary get -inf."""
        wide = torch.full((*states.shape[:-1], len(self.embedding)), -torch.inf, device=states.device)
        wide[..., self.vocabulary] = self._narrow(states).float()
        return wide

    def _narrow(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        multiply = few_rows if states.device.type == "cpu" else torch.nn.functional.linear
        return multiply(states, self.head)

    def embed(self, tokens: Any) -> Tensor:
        """``[n, dim]``"""
        return self.embedding[torch.as_tensor(tokens, device=self.embedding.device)]


BUILD: dict[str, Callable[[Shape, dict[str, Any]], nn.Module]] = {
    "eagle3": lambda shape, _: Eagle(shape),
    "eagle": lambda shape, _: Eagle(shape, predicts_feature=True),
    "mtp": lambda shape, _: Eagle(shape),
    "medusa": lambda shape, more: Medusa(shape, int(more["heads"])),
    "tiny": lambda shape, _: TinyLM(shape),
}


def fingerprint(embedding: Tensor) -> list[float]:
    """``SAMPLES`` entries of a table, evenly spread."""
    flat = embedding.detach().flatten()
    at = torch.linspace(0, len(flat) - 1, SAMPLES, dtype=torch.float64).long()
    return [round(float(x), 4) for x in flat[at.to(flat.device)]]


def save(path: Path, kind: str, module: nn.Module, vocabulary: Tensor, embedding: Tensor, more: dict[str, Any]) -> None:
    """Write ``module`` in bf16 with its draft vocabulary; ``more`` goes into the file's header."""
    tensors = {name: t.detach().to(torch.bfloat16).contiguous() for name, t in module.state_dict().items()}
    header = {
        "kind": kind,
        "shape": module.shape.as_dict(),
        "vocab_size": len(embedding),
        "fingerprint": fingerprint(embedding),
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": FORMAT, "drafter": json.dumps(header)}
    save_file({**tensors, "vocabulary": vocabulary.to(torch.int32).contiguous()}, path, metadata)


def load(path: Path, embedding: Tensor, lm_head: Tensor) -> Trained:
    """The drafter at ``path`` for the target with these tables, in their dtype and on their device.

    Raises ``Unfit`` for a file that is missing, damaged, or made for another target.
    """
    if not path.exists():
        raise Unfit(f"There are no weights at {path.name}: train them with `python -m models.training`.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 a safe_open handle is no dict
        header = json.loads(metadata["drafter"])
        kind, shape = header["kind"], Shape.of(header["shape"])
        module = BUILD[kind](shape, header)
        vocabulary = tensors.pop("vocabulary").long()
        module.load_state_dict(tensors)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Unfit(f"{path.name} is damaged or no drafter of this app: {str(error).splitlines()[0]}.") from None
    _check_target(path.name, header, shape, embedding)
    place = {"device": embedding.device, "dtype": embedding.dtype}
    vocabulary = vocabulary.to(embedding.device)
    if embedding.device.type == "cpu":
        faster_linears(module)
    return Trained(module.to(**place).eval().requires_grad_(False), vocabulary, embedding, lm_head.detach())


def load_for(target: Any, name: str) -> Trained:
    """The drafter ``name`` for a loaded target, read once for each. Raises ``Unfit``."""
    if not hasattr(target, "model"):
        raise Unfit(f"{name} needs a neural target: {target.name} has no hidden layers. Choose ngram or layer_skip.")
    held = _LOADED.setdefault(target, {})
    if name not in held:
        tables = target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
        held[name] = load(FOLDER / f"{name}.safetensors", *tables)
    return held[name]


def record(name: str) -> dict[str, Any] | None:
    """The provenance of the weights ``name``: data, command, held-out acceptance; ``None`` where there is none."""
    path = FOLDER / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _check_target(name: str, header: dict[str, Any], shape: Shape, embedding: Tensor) -> None:
    if (len(embedding), embedding.shape[1]) != (header["vocab_size"], shape.dim):
        raise Unfit(
            f"{name} was trained for a target with {header['vocab_size']:,} tokens of width {shape.dim:,}; "
            f"this one has {len(embedding):,} of width {embedding.shape[1]:,}."
        )
    ours, theirs = torch.tensor(fingerprint(embedding)), torch.tensor(header["fingerprint"])
    if float(torch.cosine_similarity(ours, theirs, dim=0)) < SAME_TARGET:
        raise Unfit(f"{name} was trained for another target ({header.get('target', 'unnamed')}).")
