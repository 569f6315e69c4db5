"""Where training starts: drafters built from the target's own weights, already a fair guess before the first step.

A random start wastes most of a small budget. Every drafter has linear maps that end where the target's last state would
be, and those have a closed form: ridge regression. What comes behind them adds nothing at first. The tiny language
model also starts with the target's first layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.heads import Eagle, Medusa, TinyLM
from models.training.batches import Batch
from models.training.target import Target

RIDGE = 1e-3  # of the mean squared input


def build_medusa(target: Target, layers: int, num_heads: int) -> Medusa:
    """Heads of ``layers`` blocks each, all zero."""
    model = Medusa(target.shape(layers=layers, taps=(target.config.num_hidden_layers,)), num_heads)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


@torch.no_grad()
def start_medusa(target: Target, layers: int, num_heads: int, batches: Sequence[Batch], head: Tensor) -> Medusa:
    """Head i maps the last state to the best linear guess of the last state i + 1 tokens later."""
    model = build_medusa(target, layers, num_heads)
    for depth, linears in enumerate(model.heads):
        here, later = [], []
        for batch in batches:
            b, t = batch.own[:, depth + 1 :].nonzero(as_tuple=True)
            here.append(batch.features[b, t, -1].float())
            later.append(batch.features[b, t + depth + 1, -1].float())
        _fit(linears[0], torch.cat(here), torch.cat(later), head)
    return model


def build_tiny(target: Target, layers: int, intermediate: int) -> TinyLM:
    """The target's first ``layers`` layers with their ``intermediate`` heaviest MLP neurons."""
    model = TinyLM(target.shape(layers=layers, intermediate=min(intermediate, target.config.intermediate_size)))
    for i, block in enumerate(model.blocks):
        block.load_state_dict(_narrowed(target.layer(i), model.shape.intermediate))
    return model


@torch.no_grad()
def start_tiny(target: Target, layers: int, intermediate: int, batches: Sequence[Batch], head: Tensor) -> TinyLM:
    """The target's first layers and the best linear map from there to its last state."""
    model = build_tiny(target, layers, intermediate)
    inner, model.exit = model.exit, nn.Identity()
    here, last = [], []
    for batch in batches:
        b, t = batch.own.nonzero(as_tuple=True)
        positions = torch.arange(batch.tokens.shape[1])
        here.append(model(target.embedding[batch.tokens], positions)[b, t])
        last.append(batch.features[b, t, -1].float())
    here, last = torch.cat(here), torch.cat(last)
    model.norm.weight.copy_(1 / here.std(0).clamp(min=1e-3))
    _fit(inner, here * model.norm.weight, last, head)
    model.exit = inner
    return model


def build_eagle(target: Target, taps: Sequence[int], width: int, predicts_feature: bool) -> Eagle:
    """A head whose block is the target's last layer with its ``width`` heaviest MLP neurons (0: all), not heard yet."""
    widest = target.config.intermediate_size
    model = Eagle(target.shape(taps=taps, intermediate=min(width or widest, widest)), predicts_feature)
    model.block.load_state_dict(_narrowed(target.layer(target.config.num_hidden_layers - 1), model.shape.intermediate))
    nn.init.zeros_(model.block.output.weight)
    nn.init.zeros_(model.block.down.weight)
    return model


@torch.no_grad()
def start_eagle(model: Eagle, target: Target, read: slice, batches: Sequence[Batch], head: Tensor) -> Eagle:
    """Fit the maps around the block of a fresh head; ``batches``: a few thousand tokens or more to fit them on."""
    features, embedded, following = _pairs(batches, target)
    read_states = features[:, read]
    if len(model.shape.taps) > 1:
        model.tap_scale.copy_(1 / model.scale(read_states).std(0).clamp(min=1e-3).view_as(model.tap_scale))
        here = features[:, -1] / target.norm  # the last state before the final norm's weight
        model.fusion.weight.copy_(_regress(model.scale(read_states), here))
    elif model.shape.taps:
        model.state_norm.weight.copy_(1 / model.state_norm(read_states[:, 0]).std(0).clamp(min=1e-3))
    state = model.fuse(read_states)
    wanted = following if model.predicts_feature else following / target.norm
    model.entry.weight.copy_(_regress(model.join(embedded, state), wanted))
    if not model.predicts_feature:
        _calibrate(model, model.enter(embedded[:2048], state[:2048]), following[:2048], target.norm, head)
    return model


def _pairs(batches: Sequence[Batch], target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """Features of tokens ``[n, taps + 1, dim]``; embedding and last state of the tokens after them ``[n, dim]``."""
    features, embedded, following = [], [], []
    for batch in batches:
        b, t = batch.own[:, 1:].nonzero(as_tuple=True)
        features.append(batch.features[b, t].float())
        embedded.append(target.embedding[batch.tokens[b, t + 1]])
        following.append(batch.features[b, t + 1, -1].float())
    return torch.cat(features), torch.cat(embedded), torch.cat(following)


def _regress(x: Tensor, y: Tensor) -> Tensor:
    """``[out, in]`` W that minimises |x W' - y|^2 + a small penalty."""
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    return torch.linalg.solve(gram, x.T @ y).T


def _fit(linear: nn.Linear, x: Tensor, y: Tensor, head: Tensor) -> None:
    """Set ``linear`` to the regression from ``x`` to ``y``, scaled so that its guesses are as sure as they ought."""
    mean_x, mean_y = x.mean(0), y.mean(0)
    weight = _regress(x - mean_x, y - mean_y)
    bias = mean_y - weight @ mean_x
    some = torch.linspace(0, len(x) - 1, min(len(x), 2048)).long()
    guess, law = x[some] @ weight.T + bias, (y[some] @ head.T).softmax(-1)

    def loss(scale: float) -> float:
        return float(-(law * (guess * scale @ head.T).log_softmax(-1)).sum(-1).mean())

    best = min((0.6, 0.8, 1.0, 1.2), key=loss)
    linear.weight.copy_(weight * best)
    linear.bias.copy_(bias * best)


def _calibrate(model: Eagle, states: Tensor, following: Tensor, norm: Tensor, head: Tensor) -> None:
    """Scale the head's final norm so that its first guesses are as sure as they should be."""
    law = (following @ head.T).softmax(-1)

    def loss(scale: float) -> float:
        logits = (F.rms_norm(states, states.shape[-1:]) * norm * scale) @ head.T
        return float(-(law * logits.log_softmax(-1)).sum(-1).mean())

    best = min((0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0), key=loss)
    model.norm.weight.copy_(norm * best)


def _narrowed(layer: dict[str, Tensor], intermediate: int) -> dict[str, Tensor]:
    weight = layer["gate.weight"].norm(dim=1) * layer["up.weight"].norm(dim=1) * layer["down.weight"].norm(dim=0)
    kept = weight.topk(intermediate).indices.sort().values
    return layer | {
        "gate.weight": layer["gate.weight"][kept],
        "up.weight": layer["up.weight"][kept],
        "down.weight": layer["down.weight"][:, kept],
    }
