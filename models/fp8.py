"""FP8 in a model of transformers: linear layers with E4M3 weights, and KV caches that keep E4M3 numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.hf import HFModel
from models.kv import RowCache, RowLayer
from models.linear import few_rows
from playground.engine.precision import e4m3, per_row, per_tensor, rounded, running, scale_of

STATIC_SCALE = 1.0  # of an FP8 KV cache whose checkpoint brings none: what servers fall back to
SCALES = {"token": per_row, "tensor": per_tensor}
SCALE_BYTES = 4  # fp32
SLOWER = 4  # times: from here on the emulation is taken


# --- Linear layers ----------------------------------------------------------------------------------------------------


def num_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the tensors that there are."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def first_line(error: Exception) -> str:
    """The first line of an error's message, short."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")


class Matmul(NamedTuple):
    """Who multiplies FP8 tensors here: ``torch._scaled_mm``, or its emulation; ``why`` in a sentence."""

    is_scaled_mm: bool
    why: str


def emulated(x: Tensor, codes: Tensor, x_scale: Tensor, scale: Tensor) -> Tensor:
    """``x`` ``[rows, in]`` and ``codes`` ``[out, in]``: E4M3 numbers in fp32; scales ``[rows, 1]``, ``[out, 1]``."""
    return few_rows(x, codes) * x_scale * scale.t()  # [rows, out]


def scaled_mm(x: Tensor, codes: Tensor, x_scale: Tensor, scale: Tensor) -> Tensor:
    """The same by ``torch._scaled_mm`` on float8 tensors; on CUDA its sums come out in bf16."""
    out = torch.bfloat16 if x.is_cuda else torch.float32
    x8, codes8 = (t.to(torch.float8_e4m3fn) for t in (x, codes))
    return torch._scaled_mm(x8, codes8.t(), x_scale.contiguous(), scale.t().contiguous(), out_dtype=out)


@cache
def choose_matmul(device: str) -> Matmul:
    """``torch._scaled_mm`` where it runs, is right and is not several times slower than the emulation.

    Both are tried on one row, as decoding has it: without instructions for FP8 a processor takes hundreds of times
    longer, so what the machine does beside cannot turn the choice.
    """
    torch.manual_seed(0)
    x, w = torch.randn(1, 512, device=device), torch.randn(1024, 512, device=device)
    sizes = per_row(x), per_row(w)
    args = (e4m3(x / sizes[0]), e4m3(w / sizes[1]), *sizes)
    want = emulated(*args)
    try:
        got = scaled_mm(*args).float()
    except Exception as error:  # whatever a build of torch raises
        return Matmul(False, f"torch._scaled_mm does not run here ({first_line(error)}): emulated in fp32.")
    step = 2.0**-7 if device.startswith("cuda") else 1e-5
    if not (got - want).abs().max() <= step * want.abs().max():
        return Matmul(False, "torch._scaled_mm gives other products than exact arithmetic here: emulated in fp32.")
    fast, slow = (_fastest(lambda f=f: f(*args)) for f in (emulated, scaled_mm))
    if slow > SLOWER * fast:
        return Matmul(False, "torch._scaled_mm gives the same products here, far slower: emulated in fp32.")
    return Matmul(True, "Multiplied by torch._scaled_mm.")


def _fastest(work: Callable[[], Tensor], tries: int = 3) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        work().sum().item()
        times.append(time.perf_counter() - began)
    return min(times)


class FP8Linear(nn.Module):
    """A linear layer with E4M3 weights and a scale per output channel; ``activations``: what shares a dynamic scale."""

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None, is_scaled_mm: bool) -> None:
        super().__init__()
        self.codes, self.scale, self.bias = codes, scale, bias  # [out, in] float8 or fp32, [out, 1], [out]
        self.is_scaled_mm, self.activations = is_scaled_mm, ""

    @staticmethod
    def of(linear: nn.Linear, is_scaled_mm: bool) -> FP8Linear:
        weight = linear.weight.detach().float()
        scale = per_row(weight)
        codes = e4m3(weight / scale)
        codes = codes.to(torch.float8_e4m3fn) if is_scaled_mm else codes
        return FP8Linear(codes, scale, linear.bias, is_scaled_mm)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()  # of the whole pass
        if self.activations:
            x_scale = SCALES[self.activations](rows)
            multiply = scaled_mm if self.is_scaled_mm else emulated
            y = multiply(e4m3(rows / x_scale), self.codes, x_scale, self.scale)
        else:
            y = few_rows(rows, self.codes.float()) * self.scale.t()
        y = y.to(x.dtype).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias

    @property
    def weight_bytes(self) -> int:
        return self.codes.numel() + self.scale.numel() * SCALE_BYTES + num_bytes([self.bias])


def to_fp8(linear: nn.Linear) -> nn.Module:
    return FP8Linear.of(linear, choose_matmul(str(linear.weight.device)).is_scaled_mm)


# --- KV cache ---------------------------------------------------------------------------------------------------------


class FP8Layer(RowLayer):
    """Rows of keys and values that are kept as E4M3 numbers.

    ``static``: a fixed scale. ``running``: each row gets the scale of the largest entry so far; it is never taken back,
    not when rows are. ``window``: fixed, but a pass reads the rows that it writes before they are rounded.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.peaks = [torch.zeros(()), torch.zeros(())]  # of keys and of values, so far

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        held = self.get_seq_length() if self.is_initialized else 0
        fresh = (key_states, value_states)
        stored = super().update(*(rounded(new, self._scale(i, new)) for i, new in enumerate(fresh)))
        if self.kind != "window":
            return stored
        keys, values = (torch.cat([old[..., :held, :], new], -2) for old, new in zip(stored, fresh, strict=True))
        return keys, values

    def _scale(self, which: int, new: Tensor) -> Tensor | float:
        if self.kind != "running":
            return STATIC_SCALE
        peaks = new.float().abs().amax((0, 1, 3))  # [rows]
        peaks = running(peaks, self.peaks[which].to(peaks))
        self.peaks[which] = peaks[-1]
        return scale_of(peaks)[:, None]

    def copy(self) -> FP8Layer:
        made = FP8Layer(self.kind)
        if self.is_initialized:
            RowLayer.update(made, self.keys, self.values)
        made.peaks = list(self.peaks)
        return made


class FP8Cache(RowCache):
    """One ``FP8Layer`` per layer of the model."""

    def __init__(self, num_layers: int, kind: str) -> None:
        super().__init__(0)
        self.layers = [FP8Layer(kind) for _ in range(num_layers)]

    def copy(self) -> FP8Cache:
        made = FP8Cache(0, "")
        made.layers = [layer.copy() for layer in self.layers]
        return made


class FP8KVModel(HFModel):
    """A model whose sessions keep their KV rows in FP8."""

    kv = "static"

    def new_cache(self) -> RowCache:
        return FP8Cache(len(self.windows), self.kv)
