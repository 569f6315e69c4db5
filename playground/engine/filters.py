"""Three filters that fewer engines have: typical-p, top-n-sigma, and top-k with top-p on one and the same law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.sampling import Context, TopK, TopP, softmax


@dataclass(frozen=True)
class TypicalP:
    """Keeps the tokens whose surprise is nearest to the entropy, the shortest list that reaches mass ``p``.

    Ties: lowest id first. 0 keeps the one most typical token, 1 keeps all. Meister et al. 2023.
    """

    p: float
    reads_context = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"typical-p must lie between 0 and 1, not {self.p}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.p >= 1:
            return logits
        law = softmax(logits)
        surprise = -law.log()  # +inf where nothing is left
        entropy = torch.where(law > 0, law * surprise, 0.0).sum(-1, keepdim=True)
        ranked = (
            ((surprise - entropy).abs() / 1e-12).round().sort(dim=-1, stable=True).indices
        )  # equal but for rounding
        masses = law.gather(-1, ranked)
        before = masses.cumsum(-1) - masses
        in_list = before < self.p - 1e-12
        in_list[..., 0] = True
        return logits.masked_fill(~torch.zeros_like(in_list).scatter(-1, ranked, in_list), -torch.inf)


@dataclass(frozen=True)
class TopNSigma:
    """Keeps logits within ``n`` standard deviations of the largest one, the deviation over the tokens still there.

    0 or less keeps all. Tang et al. 2024; the deviation divides by the number of tokens, as llama.cpp's does.
    """

    n: float
    reads_context = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.n):
            raise ValueError(f"top-n-sigma must be a number, not {self.n}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.n <= 0:
            return logits
        is_left = ~logits.isneginf()
        count = is_left.sum(-1, keepdim=True)
        mean = logits.masked_fill(~is_left, 0).sum(-1, keepdim=True) / count
        deviation = ((logits - mean).masked_fill(~is_left, 0).square().sum(-1, keepdim=True) / count).sqrt()
        cut = logits.amax(-1, keepdim=True) - self.n * deviation
        return logits.masked_fill(logits < cut - 1e-12, -torch.inf)


@dataclass(frozen=True)
class TopKTopP:
    """Top-k and top-p both judge the law as it comes in, and a token stays if both keep it: no step between."""

    k: int
    p: float
    reads_context = False

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        by_mass = TopP(self.p)(logits, contexts)
        return TopK(self.k)(logits, contexts).masked_fill(by_mass.isneginf(), -torch.inf)
