"""The training loop: one drafter, from whatever shards are on disk, with a checkpoint every minute."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from models.training import losses
from models.training.batches import Batch, Shards
from models.training.features import read_meta
from models.training.optimizer import Pair
from models.training.start import build_eagle, build_medusa, build_tiny, start_eagle, start_medusa, start_tiny
from models.training.target import Target

CHECKPOINT_S = 60.0


class Recipe(NamedTuple):
    """What sets a one-layer head apart: the states it reads, the most steps it goes on alone in training, its goal."""

    read: slice = slice(0, -1)  # of the stored states: the tapped layers, then the last state
    unroll: int | None = None  # None: the plan's
    predicts_feature: bool = False

    def taps(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The hidden_states indices that it reads, of those that are stored."""
        return tuple(stored)[self.read]


LAST, NOTHING = slice(-1, None), slice(0, 0)
EAGLES = {
    "eagle3": Recipe(),
    "eagle": Recipe(LAST, 1, predicts_feature=True),  # the first version
    "mtp": Recipe(LAST, 1),  # DeepSeek-V3's module: depth 1
    "eagle3_short": Recipe(),  # EAGLE-3 at the budget of the ablations, for comparison with them
    "eagle3_blind": Recipe(NOTHING),
    "eagle3_noroll": Recipe(unroll=1),
    "eagle3_top": Recipe(LAST),
}
DRAFTERS = (*EAGLES, "medusa", "tiny")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run, apart from its length: ``steps`` may grow when a run is taken up again."""

    drafter: str
    steps: int = 600
    sequences: int = 16  # per step
    lr: float = 2.5e-3
    seed: int = 0
    rate: float = 0.7  # share of places that are anchors (EAGLE, Medusa)
    chain_rate: float = 0.5  # share of anchors that go beyond the first step (EAGLE)
    unroll: int = 4  # steps of training-time test (EAGLE)
    width: int = 0  # MLP of a one-layer head; 0: as wide as the target's
    heads: int = 4  # Medusa
    layers: int = 2  # blocks per Medusa head, layers of the tiny language model
    intermediate: int = 896  # tiny language model
    start: int = 200  # conversations that the closed-form start is fitted on
    warmup: int = 20
    decay: float = 0.3  # last share of the steps, in which the learning rate falls to zero
    ema: float = 0.99

    def scale(self, step: int) -> float:
        """The learning rate's factor: up, level, down.

        >>> [Plan("tiny", steps=100, warmup=10).scale(s) for s in (0, 50, 85)]
        [0.1, 1.0, 0.5]
        """
        falling = max(self.steps * self.decay, 1)
        return min((step + 1) / self.warmup, 1.0, (self.steps - step) / falling)


Loss = Callable[[nn.Module, Batch, torch.Generator, float | None], losses.Score]


def make_loss(plan: Plan, embedding: Tensor, head: Tensor) -> Loss:
    """``loss(model, batch, generator, rate)``; ``rate`` overrides the plan's share of anchors, for validation."""

    def eagle(model: nn.Module, batch: Batch, generator: torch.Generator, rate: float | None) -> losses.Score:
        recipe, chain = EAGLES[plan.drafter], plan.chain_rate if rate is None else 1.0
        steps = plan.unroll if rate is not None else recipe.unroll or plan.unroll  # validation always goes all the way
        return losses.eagle_loss(model, batch, recipe.read, embedding, head, steps, rate or plan.rate, chain, generator)

    def medusa(model: nn.Module, batch: Batch, generator: torch.Generator, rate: float | None) -> losses.Score:
        return losses.medusa_loss(model, batch, head, rate or plan.rate, generator)

    def tiny(model: nn.Module, batch: Batch, generator: torch.Generator, rate: float | None) -> losses.Score:
        return losses.tiny_loss(model, batch, embedding, head)

    return {"medusa": medusa, "tiny": tiny}.get(plan.drafter, eagle)


def build(plan: Plan, target: Target, taps: Sequence[int]) -> nn.Module:
    """The drafter's module, its weights yet to be filled in. ``taps`` are the layers whose states are stored."""
    if plan.drafter in EAGLES:
        recipe, stored = EAGLES[plan.drafter], (*taps, target.config.num_hidden_layers)
        return build_eagle(target, recipe.taps(stored), plan.width, recipe.predicts_feature)
    if plan.drafter == "tiny":
        return build_tiny(target, plan.layers, plan.intermediate)
    return build_medusa(target, plan.layers, plan.heads)


@torch.autocast("cpu", enabled=False)  # regressions need every digit
def start(plan: Plan, target: Target, shards: Shards) -> nn.Module:
    """The untrained drafter, the same for the same plan and shards."""
    some = sorted(c for c, (shard, _) in shards.where.items() if shard)[: plan.start]
    if not some:
        raise ValueError(f"No shard to train on in {shards.features} yet: run `python -m models.training features`.")
    batches = [shards.load(some[i : i + 16], features_too=True) for i in range(0, len(some), 16)]
    if plan.drafter == "medusa":
        return start_medusa(target, plan.layers, plan.heads, batches, shards.head)
    if plan.drafter == "tiny":
        return start_tiny(target, plan.layers, plan.intermediate, batches, shards.head)
    fresh = build(plan, target, read_meta(shards.features).taps)
    return start_eagle(fresh, target, EAGLES[plan.drafter].read, batches, shards.head)


class Run:
    """A drafter in training. ``folder`` holds its checkpoint and its log; an existing checkpoint is taken up."""

    def __init__(self, plan: Plan, target: Target, shards: Shards, folder: Path) -> None:
        self.plan, self.shards, self.folder = plan, shards, folder
        self.loss = make_loss(plan, target.embedding, shards.head)
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint.pt"
        self.step, self.seen, self.cpu_s = 0, 0, 0.0
        saved = torch.load(self.checkpoint, weights_only=True) if self.checkpoint.exists() else None
        if saved:
            self._check(saved["plan"])
        taps = read_meta(shards.features).taps
        self.model = build(plan, target, taps) if saved else start(plan, target, shards)
        self.average = deepcopy(self.model)
        self.optimizer = Pair(self.model, plan.lr)
        if saved:
            self._restore(saved)

    def _check(self, saved: dict) -> None:
        sizes = ("drafter", "heads", "layers", "intermediate", "width")
        fixed = [k for k, v in asdict(self.plan).items() if k in sizes and saved.get(k, 0) != v]
        if fixed:
            raise ValueError(f"{self.checkpoint} was made with another {', '.join(fixed)}; choose another run name.")

    def _restore(self, saved: dict) -> None:
        self.model.load_state_dict(saved["model"])
        self.average.load_state_dict(saved["average"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.seen, self.cpu_s = saved["step"], saved["seen"], saved["cpu_s"]
        self.shards.visits |= saved["visits"]

    def save(self) -> None:
        data = {
            "plan": asdict(self.plan),
            "taps": list(read_meta(self.shards.features).taps),
            "distinct": sum(self.shards.corpus.lengths([c for c, n in self.shards.visits.items() if n])),
            "step": self.step,
            "seen": self.seen,
            "cpu_s": self.cpu_s,
            "visits": dict(self.shards.visits),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(data, partial)
        os.replace(partial, self.checkpoint)

    def advance(self) -> dict[str, float | list[float]]:
        """One step; what it saw."""
        plan, rng = self.plan, np.random.default_rng((self.plan.seed, self.step))
        batch = self.shards.load(self.shards.pick(plan.sequences, rng))
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + self.step)
        score = self.loss(self.model, batch, generator, None)
        score.loss.backward()
        self.optimizer.step(plan.scale(self.step))
        decay = min(plan.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
        self.step += 1
        self.seen += int(batch.lengths.sum())
        return {"loss": score.loss.item(), "hits": [h / max(n, 1) for h, n in zip(score.hits, score.rows, strict=True)]}

    @torch.no_grad()
    def validate(self, conversations: int = 32) -> list[float]:
        """Agreement of first choices per depth on the validation shard, everything before being right."""
        names = self.shards.validation[:conversations]
        hits, rows = None, None
        for i in range(0, len(names), 8):
            generator = torch.Generator().manual_seed(0)
            score = self.loss(self.average, self.shards.load(names[i : i + 8]), generator, 0.5)
            hits = [a + b for a, b in zip(hits or [0.0] * 9, score.hits, strict=False)]
            rows = [a + b for a, b in zip(rows or [0.0] * 9, score.rows, strict=False)]
        return [h / max(n, 1) for h, n in zip(hits or [], rows or [], strict=True)]

    def run(self, validate_every: int = 50) -> None:
        """Go on to the plan's last step."""
        saved = time.monotonic()
        bar = tqdm(total=self.plan.steps, initial=self.step, desc=self.plan.drafter, mininterval=5)
        if self.step == 0:
            self._log({"step": 0, "validation": self.validate()})
        while self.step < self.plan.steps:
            cpu = time.process_time()
            record = self.advance()
            self.cpu_s += time.process_time() - cpu
            bar.update()
            bar.set_postfix(loss=f"{record['loss']:.3f}", hits=" ".join(f"{h:.2f}" for h in record["hits"]))
            last = self.step == self.plan.steps
            if self.step % validate_every == 0 or last:
                record["validation"] = self.validate()
            self._log({"step": self.step, "tokens": self.seen, "cpu_s": round(self.cpu_s), **record})
            if time.monotonic() - saved > CHECKPOINT_S:
                self.save()
                self.shards.refresh()
                saved = time.monotonic()
        self.save()
        bar.close()

    def _log(self, record: dict) -> None:
        rounded = {k: [round(x, 4) for x in v] if isinstance(v, list) else v for k, v in record.items()}
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(rounded) + "\n")
