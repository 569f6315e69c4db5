"""A small random target with random weights for every trained drafter: what tests of drafting run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from models import trained
from models.heads import Eagle, Medusa, Shape, TinyLM
from models.hf import HFModel
from playground.engine.draft_trees import SHAPES, best_tree
from playground.engine.sampling import Knob
from playground.engine.tree_drafting import Drawn, Dynamic, Grower, Ranked
from tests.models.conftest import CONFIGS, load, save_model

TEN = best_tree((0.4, 0.3, 0.2), 10, 4)


def finish(work: Iterator[Any]) -> Any:
    """The return value of a loading generator."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def small_target(folder: Path) -> HFModel:
    """A random Llama, its drafters' weights saved in ``folder / weights``."""
    host = load(str(save_model(folder / "target", CONFIGS["llama"])))
    save_weights(host, folder / "weights")
    return host


def save_weights(host: HFModel, folder: Path) -> None:
    """Random modules that agree with the target now and then: their output comes close to its own last state."""
    size = Shape(dim=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate=48, taps=(1, 2, 4))
    last = {**size.as_dict(), "taps": (4,)}
    modules = {
        "eagle3": (Eagle(size), {}),
        "medusa": (Medusa(Shape(**last), 4), {"heads": 4}),
        "tiny": (TinyLM(Shape(**{**size.as_dict(), "layers": 2, "taps": ()})), {}),
        "eagle": (Eagle(Shape(**last), predicts_feature=True), {}),
        "mtp": (Eagle(Shape(**last)), {}),
        "eagle3_short": (Eagle(size), {}),
        "eagle3_noroll": (Eagle(size), {}),
        "eagle3_top": (Eagle(Shape(**last)), {}),
        "eagle3_blind": (Eagle(Shape(**{**size.as_dict(), "taps": ()})), {}),
    }
    vocabulary = torch.arange(1, 300)
    torch.manual_seed(0)
    for name, (module, more) in modules.items():
        for p in module.parameters():
            p.data = 0.3 * torch.randn_like(p)
        trained.save(
            folder / f"{name}.safetensors",
            name.partition("_")[0],
            module,
            vocabulary,
            table(host),
            {**more, "target": "small"},
        )


def table(host: HFModel) -> torch.Tensor:
    return host.model.get_input_embeddings().weight


def growers(knobs: tuple[Knob, ...] = ()) -> dict[str, Grower]:
    """Every way to make a tree."""
    return {
        "ten": Ranked(TEN),
        "medusa": Ranked(SHAPES["medusa"]),
        "dynamic": Dynamic(10, 4),
        "drawn": Drawn(TEN, knobs),
    }
