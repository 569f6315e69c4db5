"""Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly: singular values near 1, by Newton-Schulz (Jordan 2024, "Muon").

    In the matrix's own precision: torch's version works in bf16, which a CPU without bf16 instructions emulates.
    """
    a, b, c = COEFFICIENTS
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised; the step's RMS is ``lr`` times 0.2, as large as AdamW's would be."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalize(p.grad.lerp(state["momentum"], group["momentum"]))  # Nesterov
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


class Pair:
    """Both optimisers as one; ``scale`` multiplies their learning rates at a step."""

    def __init__(self, module: nn.Module, lr: float, weight_decay: float = 0.0) -> None:
        matrices = [p for p in module.parameters() if p.requires_grad and p.ndim == 2 and min(p.shape) > 8]
        ids = {id(p) for p in matrices}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in ids]
        adam = torch.optim.AdamW(others, lr, (0.9, 0.95), weight_decay=0)
        self.parts = [Muon(matrices, lr, weight_decay=weight_decay), adam]
        self.base = lr

    def step(self, scale: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.base * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
