"""Where two greedy outputs part, and whether rounding can be the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from playground.engine.trace import Lane

# How many steps of its dtype a logit may differ by when one model computes it in two ways. A 16-bit model sums in fp32
# and rounds a few times per layer; an fp32 or fp64 model rounds at every term of its long sums.
STEPS_ALLOWED = {"fp64": 512, "fp32": 512, "bf16": 8, "fp16": 8}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TYPICAL_LOGIT = 16.0  # stands in for the winning logit: a trace does not carry it


@dataclass(frozen=True)
class Divergence:
    """The outputs first differ at ``index``, where the gap is ``margin``; ``verdict``: ``near tie`` or ``bug``."""

    index: int
    margin: float | None
    verdict: str


def dtype_step(dtype: str, magnitude: float = TYPICAL_LOGIT) -> float:
    """The gap between neighbouring numbers of ``dtype`` (``fp32``, ``bf16``, ...) at ``magnitude``.

    >>> dtype_step("bf16", 16.0), dtype_step("bf16", 40.0)
    (0.125, 0.25)
    """
    return torch.finfo(DTYPES[dtype]).eps * 2.0 ** math.floor(math.log2(max(abs(magnitude), 1.0)))


def margins(lane: Lane) -> tuple[float | None, ...]:
    """The top-2 logit margin with which each output token of ``lane`` was chosen."""
    found: list[float | None] = []
    for step in lane.steps:
        rows = [0, *(i + 1 for i, node in enumerate(step.nodes) if node.state == "accepted")]
        found += [step.rows[row].margin for row in rows[: len(step.outputs)]]
    return tuple(found)


def compare(
    a: Sequence[int],
    b: Sequence[int],
    margins: Sequence[float | None],
    dtype: str = "fp32",
    magnitude: float = TYPICAL_LOGIT,
) -> Divergence | None:
    """The first difference between two greedy outputs, or ``None`` when they are the same.

    ``margins[i]`` is the top-2 logit margin (nats) with which token i was chosen, ``magnitude`` the size of the winning
    logit. In exact arithmetic the outputs are equal; a pass over several positions only rounds differently. So a
    difference is a near tie when the margin there is within a few steps of the dtype, and a bug otherwise. One output
    ending before the other is a bug too, and so is an unknown margin.
    """
    index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if index is None:
        return None if len(a) == len(b) else Divergence(min(len(a), len(b)), None, "bug")
    margin = margins[index] if index < len(margins) else None
    is_near = margin is not None and margin <= STEPS_ALLOWED[dtype] * dtype_step(dtype, magnitude)
    return Divergence(index, margin, "near tie" if is_near else "bug")


def between(ours: Lane, plain: Lane, dtype: str = "fp32") -> Divergence | None:
    """Where the output of ``ours`` leaves that of ``plain``. A lane that has not ended is not shorter, only later."""
    a, b = ours.output_tokens, plain.output_tokens
    if not (ours.finish and plain.finish):
        both = min(len(a), len(b))
        a, b = a[:both], b[:both]
    return compare(a, b, margins(plain), dtype)
