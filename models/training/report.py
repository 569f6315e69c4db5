"""Drafters by name, evaluated on the kept held-out replies; weights and their provenance written out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models import trained
from models.drafters import EagleDrafter, MedusaDrafter, TinyModel, ngram_or_eagle
from models.training.evaluate import Item, evaluate, load_items
from models.training.target import Target
from models.training.train import EAGLES, Plan, build
from playground.engine.drafters import Drafter, DraftModel, NGram
from playground.engine.sampling import Temperature

GREEDY = (Temperature(0.0),)


def from_checkpoint(folder: Path, target: Target) -> trained.Trained:
    """The averaged weights of a run, rounded to bf16 as the exported file is."""
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    module = build(Plan(**saved["plan"]), target, saved["taps"])
    module.load_state_dict({name: t.to(torch.bfloat16).float() for name, t in saved["average"].items()})
    vocabulary = torch.from_numpy(np.load(folder / "vocabulary.npy"))
    return trained.Trained(module.eval(), vocabulary, target.embedding, target.head)


def makers(weights: dict[str, trained.Trained], longest: int = 4) -> dict[str, Callable[[Item], Drafter]]:
    """A maker of fresh greedy drafters per name, for whatever ``weights`` hold; n-gram needs none."""
    makes: dict[str, Callable[[Item], Drafter]] = {"ngram": lambda item: NGram(3, 1)}
    if "medusa" in weights:
        makes["medusa"] = lambda item: MedusaDrafter(weights["medusa"], GREEDY)
    if "tiny" in weights:
        tiny = TinyModel(weights["tiny"], max_tokens=1 << 30)
        makes["tiny"] = lambda item: DraftModel(tiny.session(item.prompt), GREEDY, "tiny")
    for name in filter(EAGLES.__contains__, weights):
        makes[name] = lambda item, name=name: EagleDrafter(weights[name], GREEDY, name)
    if "eagle3" in weights:
        makes["combination"] = lambda item: ngram_or_eagle(EagleDrafter(weights["eagle3"], GREEDY), longest=longest)
    return makes


def report(
    heldout: Path, kept: list[int], weights: dict[str, trained.Trained], k: int, longest: int = 4
) -> dict[str, Any]:
    """Held-out figures of every drafter at hand, by name. ``kept`` names the hidden states in ``heldout``."""
    items = load_items(heldout)
    return {name: evaluate(make, items, k, kept) for name, make in makers(weights, longest).items()}


def learning_curve(run: Path) -> list[dict[str, Any]]:
    """Agreement of first choices per depth on the validation shard, against steps and token visits."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    keys = ("step", "tokens", "validation")
    return [{k: record.get(k, 0) for k in keys} for record in records if "validation" in record]


def export(
    run: Path, target: Target, figures: dict[str, Any], command: str, data: dict[str, Any], folder: Path
) -> Path:
    """Write a run's averaged weights and beside them their provenance; returns the weights' path."""
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    plan, ready = Plan(**saved["plan"]), from_checkpoint(run, target)
    path = folder / f"{plan.drafter}.safetensors"
    more = {"target": target.name, "heads": plan.heads}
    kind = plan.drafter.partition("_")[0]  # an ablation is built like what it was taken from
    trained.save(path, kind, ready.module, ready.vocabulary, target.embedding, more)
    provenance = {
        "drafter": plan.drafter,
        "target": target.name,
        "data": data,
        "plan": saved["plan"],
        "steps": saved["step"],
        "token_visits": saved["seen"],
        "distinct_tokens": saved["distinct"],
        "training_cpu_seconds": round(saved["cpu_s"]),
        "parameters": ready.num_parameters,
        "draft_vocabulary": len(ready.vocabulary),
        "learning_curve": learning_curve(run),
        "evaluate": command,
        "heldout": figures,
    }
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(provenance, indent=1) + "\n")
    os.replace(partial, path.with_suffix(".json"))
    return path
