"""Where training starts: drafters built from the target's own weights, so that the first step is already a fair guess.

A random start wastes most of a small budget. The EAGLE head's two linear maps have a closed form: ridge regression
from its inputs to the target's last state one token later; its block adds nothing at first. The tiny language model
starts as the target's first layers. Medusa's heads start at zero and repeat the target's next token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.heads import Eagle3, Medusa, TinyLM
from models.training.batches import Batch
from models.training.target import Target

RIDGE = 1e-3  # of the mean squared input


def start_medusa(target: Target, layers: int, num_heads: int) -> Medusa:
    last = target.config.num_hidden_layers
    model = Medusa(target.shape(layers=layers, taps=(last,)), num_heads)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def start_tiny(target: Target, layers: int, intermediate: int) -> TinyLM:
    """The first ``layers`` layers with their ``intermediate`` heaviest MLP neurons; the final norm is halved, since two
    layers should not be as sure as thirty."""
    model = TinyLM(target.shape(layers=layers, intermediate=min(intermediate, target.config.intermediate_size)))
    for i, block in enumerate(model.blocks):
        block.load_state_dict(_narrowed(target.layer(i), model.shape.intermediate))
    with torch.no_grad():
        model.norm.weight.copy_(target.norm / 2)
    return model


def start_eagle(target: Target, taps: Sequence[int], batches: Sequence[Batch], head: Tensor) -> Eagle3:
    """``batches``: a few thousand tokens or more, for the regressions."""
    model = Eagle3(target.shape(taps=taps))
    weights = target.layer(target.config.num_hidden_layers - 1)
    model.block.load_state_dict(weights)
    nn.init.zeros_(model.block.output.weight)
    nn.init.zeros_(model.block.down.weight)
    with torch.no_grad():
        features, embedded, following = _pairs(batches, len(taps), target)
        model.tap_scale.copy_(1 / model.scale(features[:, : len(taps)]).std(0).clamp(min=1e-3).view_as(model.tap_scale))
        here = features[:, -1] / target.norm  # the last state before the final norm's weight
        model.fusion.weight.copy_(_regress(model.scale(features[:, : len(taps)]), here))
        state = model.fuse(features[:, : len(taps)])
        model.entry.weight.copy_(_regress(model.join(embedded, state), following / target.norm))
        _calibrate(model, model.enter(embedded[:2048], state[:2048]), following[:2048], target.norm, head)
    return model


def _pairs(batches: Sequence[Batch], taps: int, target: Target) -> tuple[Tensor, Tensor, Tensor]:
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


def _calibrate(model: Eagle3, states: Tensor, following: Tensor, norm: Tensor, head: Tensor) -> None:
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
