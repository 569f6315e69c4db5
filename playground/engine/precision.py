"""FP8 E4M3: its numbers, the scales that bring values into its range, and the numerics that a target may run in.

E4M3 has 4 exponent and 3 mantissa bits: 448 is its largest number, 2^-9 its smallest, and it has no infinity
(Micikevicius et al. 2022, arXiv 2209.05433). A matrix product of two E4M3 tensors is exact in every term and summed in
fp32, so fp32 arithmetic on the same numbers emulates it: only the order of the sum may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from playground.engine.model import LanguageModel

E4M3_MAX = 448.0


def e4m3(x: Tensor) -> Tensor:
    """The nearest E4M3 number to each entry (ties to even), in the dtype of ``x``; beyond 448 it is 448.

    The clamp comes before the cast: what a bare cast makes of larger values differs between libraries. NaN stays NaN.

    >>> e4m3(torch.tensor([0.3, 449.0, -1e9])).tolist()
    [0.3125, 448.0, -448.0]
    """
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def scale_of(peak: Tensor) -> Tensor:
    """The scale that maps ``peak``, a largest absolute value, to 448; 1 where all is zero, so that zeros stay zero."""
    return torch.where(peak > 0, peak / E4M3_MAX, torch.ones_like(peak))


def per_row(x: Tensor) -> Tensor:
    """One scale for each row of ``x`` ``[..., rows, dim]``: per token of an activation, per channel of a weight."""
    return scale_of(x.abs().amax(-1, keepdim=True))  # [..., rows, 1]


def per_tensor(x: Tensor) -> Tensor:
    """One scale for all of ``x``, as wide as ``per_row`` gives it: every row depends on the largest entry of any."""
    return scale_of(x.abs().amax()).repeat(*x.shape[:-1], 1)


def running(peaks: Tensor, before: Tensor) -> Tensor:
    """The largest of ``before`` and of the rows' ``peaks`` ``[rows]`` up to each row: a maximum that only grows.

    >>> running(torch.tensor([1.0, 3.0, 2.0]), torch.tensor(2.0))
    tensor([2., 3., 3.])
    """
    return torch.maximum(peaks.cummax(0).values, before)


def rounded(x: Tensor, scale: Tensor | float) -> Tensor:
    """``x`` as it is read back from E4M3 under ``scale``, in its own dtype."""
    return (e4m3(x.float() / scale) * scale).to(x.dtype)


@dataclass(frozen=True)
class Numerics:
    """One way to run a target: the format of its weights, of what enters its linear layers, and of its KV cache.

    ``activations`` is ``token`` or ``tensor`` (what shares a dynamic scale), ``kv`` is ``static``, ``running`` or
    ``window``; nothing means the format of the target itself.
    """

    name: str
    title: str
    weights: str = ""
    activations: str = ""
    kv: str = ""


NUMERICS = {
    each.name: each
    for each in (
        Numerics("fp32", "FP32", "fp32"),
        Numerics("bf16", "BF16", "bf16"),
        Numerics("fp8_weight", "FP8 weights", "fp8"),
        Numerics("fp8_per_token", "FP8, a scale per token", "fp8", "token"),
        Numerics("fp8_per_tensor", "FP8, a scale per tensor", "fp8", "tensor"),
        Numerics("fp8_kv_static", "FP8 KV, fixed scale", kv="static"),
        Numerics("fp8_kv_running", "FP8 KV, running maximum", kv="running"),
        Numerics("fp8_kv_window", "FP8 KV, draft window unquantised", kv="window"),
        Numerics("int8", "INT8 (bitsandbytes)", "int8"),
        Numerics("nf4", "NF4 (bitsandbytes)", "nf4"),
    )
}


@dataclass(frozen=True)
class Variant:
    """A target in one of ``NUMERICS``, or the ``reason`` why it does not run here.

    ``how`` says in a sentence what computes it. Bytes are those of the format: a linear layer's codes and scales, all
    other weights as they are, and ``kv_bytes`` of one token in all layers.
    """

    numerics: Numerics
    model: LanguageModel | None
    reason: str = ""
    how: str = ""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
