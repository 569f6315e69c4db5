"""Multi-token prediction (DeepSeek-AI 2024): the loss at each depth, and what a draft step of the module reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.drafter_cost import mtp
from playground.engine.shapes import Shape
from playground.engine.trace import step


@step
@dataclass(frozen=True)
class DepthLoss:
    """Nats of each guessed token of a text at one depth: depth 0 is the model itself, depth d looks d further.

    ``losses[i]`` belongs to ``tokens[i]``, the token that was to be guessed.
    """

    depth: int
    tokens: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None


def depth_loss(logits: Tensor, tokens: Sequence[int], depth: int) -> DepthLoss:
    """Cross-entropy of ``tokens[depth + 1:]``, one row of ``logits`` ``[rows, vocab]`` each, from row 0 on."""
    wanted = list(tokens[depth + 1 :])[: len(logits)]
    rows = logits[: len(wanted)].float()
    at = torch.tensor(wanted, dtype=torch.long, device=rows.device)
    lost = rows.logsumexp(-1) - rows.gather(1, at[:, None])[:, 0]
    return DepthLoss(depth, tuple(wanted), tuple(round(x, 4) for x in lost.tolist()))


def objective(main: float, deeper: Sequence[float], weight: float) -> float:
    """The main loss plus ``weight`` times the mean of the losses of the further depths.

    >>> objective(2.0, [3.0, 5.0], 0.5)
    4.0
    """
    return main + weight * sum(deeper) / len(deeper) if deeper else main


def terms(target: Shape) -> list[tuple[str, int]]:
    """The parameters that one draft step multiplies, part by part; their sum is the module's with the LM head."""
    h, e = target.hidden, target.experts
    parts = [
        ("two norms", 2 * h),
        ("projection of both halves", 2 * h * h),
        ("attention", target.attention_parameters),
        ("norms of the block", 2 * h),
    ]
    if e:
        parts += [
            ("router", e.total * (h + e.has_bias)),
            (f"{e.active} routed experts of {e.total}", e.active * target.expert_parameters),
            (f"{e.shared} shared expert{'s' * (e.shared != 1)}", e.shared * target.expert_parameters),
        ]
    else:
        parts.append(("MLP", 3 * h * target.intermediate))
    return [*parts, ("norm before the head", h), ("LM head, the target's own", target.embedding_parameters)]


def simple_speedup(acceptance: float, cost: float) -> float:
    """One draft: (1 + acceptance) / (1 + cost), as if checking it were free.

    >>> round(simple_speedup(0.85, 0.043), 2)
    1.77
    """
    return (1 + acceptance) / (1 + cost)


def active_parameters(target: Shape) -> int:
    """What a draft step multiplies apart from the LM head."""
    return mtp(target).parameters - target.embedding_parameters
