"""What a pass costs: a roofline over model shapes and hardware, each a value with the facts that follow from it.

A pass streams its weights and the KV of every sequence once, and multiplies every new token with every weight that it
uses. The slower of the two sets the time (Williams et al. 2009). With figures from data sheets a time is a floor;
ratios of times are closer to the truth than the times themselves. A ``Profile`` says how far real passes fall short.

Sizes may be numbers or numpy arrays that broadcast: a sweep is one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from playground.engine.shapes import Shape
from playground.engine.trace import step

MAX_DRAFT = 1_000  # the longest draft that is priced
BF16_BYTES = 2.0
TERMS = ("weights", "kv", "gemm", "attention", "communication", "overhead")
Size = Any  # a number, or an array that broadcasts with the others


class Network(Protocol):
    """What can be priced: a model's ``Shape``, or the ``Head`` of a drafter."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def active_parameters(self) -> int: ...
    @property
    def kv_values_per_token(self) -> int: ...
    @property
    def attention_flops_per_token(self) -> int: ...
    def streamed_parameters(self, tokens: Size) -> Size: ...


@dataclass(frozen=True)
class Hardware:
    """What executes a pass: ``bandwidth`` in B/s, ``peak_flops`` in dense bf16 FLOP/s, ``memory_bytes``.

    ``num_devices`` share every layer, and the figures are of all of them together. ``fp8_flops`` is the peak with
    numbers of one byte, where the hardware has it.
    """

    name: str
    bandwidth: float
    peak_flops: float
    memory_bytes: float
    fp8_flops: float | None = None
    num_devices: int = 1

    def __post_init__(self) -> None:
        for size in ("bandwidth", "peak_flops", "memory_bytes"):
            if not (math.isfinite(getattr(self, size)) and getattr(self, size) > 0):
                raise ValueError(f"{self.name}: {size} must be above 0, not {getattr(self, size)}.")

    def flops(self, weight_bytes: float = BF16_BYTES) -> float:
        """Peak FLOP/s with weights of this size; smaller ones than a byte are unpacked and multiplied in bf16."""
        return self.fp8_flops if self.fp8_flops and weight_bytes == 1 else self.peak_flops

    def ridge(self, weight_bytes: float = BF16_BYTES) -> float:
        """Tokens per pass whose products (two FLOPs per weight and token) take as long as streaming the weights."""
        return self.flops(weight_bytes) / self.bandwidth * weight_bytes / 2


def tensor_parallel(hardware: Hardware, degree: int) -> Hardware:
    """``degree`` devices that share every layer: bandwidth, FLOP/s and memory pool.

    What they say to each other costs time only in a profile with a link.
    """
    if degree < 1:
        raise ValueError(f"The tensor parallel degree must be at least 1, not {degree}.")
    if degree == 1:
        return hardware
    return replace(
        hardware,
        name=f"{degree} x {hardware.name}",
        bandwidth=degree * hardware.bandwidth,
        peak_flops=degree * hardware.peak_flops,
        memory_bytes=degree * hardware.memory_bytes,
        fp8_flops=hardware.fp8_flops and degree * hardware.fp8_flops,
        num_devices=degree * hardware.num_devices,
    )


@dataclass(frozen=True)
class Profile:
    """How a pass falls short of the data sheet.

    ``is_split``: matrix products and attention run one after the other, each bound by its own slower side; otherwise
    the whole pass overlaps. ``bandwidth_share`` and ``flops_share`` of the peaks are reached. ``layer_s`` and
    ``pass_s`` are fixed seconds per layer and pass. Two ring all-reduces per layer cross a ``link_bandwidth`` (B/s of
    one device); ``None`` leaves communication out. ``is_serial``: streaming and multiplying do not overlap at all.
    ``wide_s``: what any pass over more than one token pays, where a single one has a faster kernel of its own.
    """

    name: str
    is_split: bool = False
    bandwidth_share: float = 1.0
    flops_share: float = 1.0
    layer_s: float = 0.0
    pass_s: float = 0.0
    link_bandwidth: float | None = None
    is_serial: bool = False
    wide_s: float = 0.0


DATA_SHEET = Profile("data_sheet")
SPLIT = Profile("split", is_split=True)
REALISTIC = Profile("realistic", True, 0.80, 0.65, layer_s=58e-6, pass_s=150e-6, link_bandwidth=450e9)
PROFILES = {profile.name: profile for profile in (DATA_SHEET, SPLIT, REALISTIC)}


@step
@dataclass(frozen=True)
class StepTime:
    """The seconds of one pass by term: streaming (weights, KV), multiplying (GEMM, attention), communication, overhead.

    How the first four overlap is the profile's: altogether, in two halves (``is_split``), or not (``is_serial``).
    """

    batch: float
    new_tokens: float
    context: float
    weights_s: float
    kv_s: float
    gemm_s: float
    attention_s: float
    communication_s: float = 0.0
    overhead_s: float = 0.0
    is_split: bool = False
    is_serial: bool = False

    @property
    def memory_s(self) -> Size:
        return self.weights_s + self.kv_s

    @property
    def compute_s(self) -> Size:
        return self.gemm_s + self.attention_s

    @property
    def total_s(self) -> Size:
        return _plain(self._roofline() + self.communication_s + self.overhead_s)

    def _roofline(self) -> Size:
        if self.is_serial:
            return self.memory_s + self.compute_s
        if self.is_split:
            return np.maximum(self.weights_s, self.gemm_s) + np.maximum(self.kv_s, self.attention_s)
        return np.maximum(self.memory_s, self.compute_s)

    @property
    def binding(self) -> Any:
        """The largest of ``TERMS`` that counts, those hidden behind a slower side left out; an array for arrays."""
        parts = np.broadcast_arrays(*(np.asarray(getattr(self, f"{name}_s"), float) for name in TERMS))
        weights, kv, gemm, attention, communication, overhead = parts
        if not self.is_serial:
            hides = (weights >= gemm, kv >= attention) if self.is_split else (weights + kv >= gemm + attention,) * 2
            weights, gemm = np.where(hides[0], weights, -1), np.where(hides[0], -1, gemm)
            kv, attention = np.where(hides[1], kv, -1), np.where(hides[1], -1, attention)
        largest = np.argmax(np.stack((weights, kv, gemm, attention, communication, overhead)), axis=0)
        return np.array(TERMS)[largest] if largest.ndim else TERMS[int(largest)]


def _plain(value: Size) -> Size:
    """A number as Python's own, an array as it is."""
    return value if isinstance(value, np.ndarray) and value.ndim else float(value)


def pass_time(
    shape: Network,
    hardware: Hardware,
    batch: Size,
    new_tokens: Size = 1,
    context: Size = 0,
    *,
    weight_bytes: float = BF16_BYTES,
    kv_bytes: float = BF16_BYTES,
    profile: Profile = DATA_SHEET,
) -> StepTime:
    """One pass over ``batch`` sequences with ``new_tokens`` each, every sequence having ``context`` tokens of KV.

    ``weight_bytes`` and ``kv_bytes`` are bytes per stored number. Raises ``ValueError`` for a size that is too small.
    """
    if np.min(batch) <= 0 or np.min(new_tokens) <= 0 or np.min(context) < 0:
        asked = f"{np.min(batch)}, {np.min(new_tokens)} and {np.min(context)}"
        raise ValueError(f"A pass needs batch > 0, new tokens > 0 and context >= 0, not {asked}.")
    tokens = batch * new_tokens
    bandwidth = profile.bandwidth_share * hardware.bandwidth
    flops = profile.flops_share * hardware.flops(weight_bytes)
    return StepTime(
        batch=batch,
        new_tokens=new_tokens,
        context=context,
        weights_s=weight_bytes * shape.streamed_parameters(tokens) / bandwidth,
        kv_s=batch * context * (kv_bytes * shape.kv_values_per_token) / bandwidth,
        gemm_s=2 * shape.active_parameters * tokens / flops,
        attention_s=shape.attention_flops_per_token * context * tokens / flops,
        communication_s=_communication(shape, hardware, tokens, profile),
        overhead_s=_overhead(shape, tokens, profile),
        is_split=profile.is_split,
        is_serial=profile.is_serial,
    )


def _overhead(shape: Network, tokens: Size, profile: Profile) -> Size:
    fixed = profile.layer_s * shape.layers + profile.pass_s
    return fixed + profile.wide_s * (np.asarray(tokens) > 1) if profile.wide_s else fixed


def _communication(shape: Network, hardware: Hardware, tokens: Size, profile: Profile) -> Size:
    """Seconds of two ring all-reduces per layer over bf16 activations: each sends 2 (n - 1) / n of them."""
    n = hardware.num_devices
    if profile.link_bandwidth is None or n == 1:
        return 0.0
    return 2 * shape.layers * 2 * (n - 1) / n * tokens * shape.hidden * BF16_BYTES / profile.link_bandwidth


def cost_ratio(
    shape: Network, hardware: Hardware, batch: Size, new_tokens: Size, context: Size = 0, **how: Any
) -> Size:
    """t(n) / t(1): what a pass with ``new_tokens`` per sequence costs, in plain passes; ``how`` as in ``pass_time``."""
    plain = pass_time(shape, hardware, batch, 1, context, **how)
    return pass_time(shape, hardware, batch, new_tokens, context, **how).total_s / plain.total_s


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per pass with ``k`` drafts, each accepted with chance ``alpha`` (Leviathan et al. 2023).

    >>> expected_tokens(0.5, 1), expected_tokens(1.0, 4), expected_tokens(0.0, 4)
    (1.5, 5.0, 1.0)
    """
    if not (0 <= alpha <= 1 and 0 <= k <= MAX_DRAFT):
        raise ValueError(f"alpha must lie between 0 and 1 and k between 0 and {MAX_DRAFT:,}, not {alpha} and {k}.")
    return float(sum(alpha**i for i in range(k + 1)))


def speedup(
    shape: Shape,
    hardware: Hardware,
    batch: float,
    k: int,
    tokens_per_pass: float,
    context: float = 0,
    draft_cost: float = 0.0,
    **how: Any,
) -> float:
    """Tokens per second with ``k`` drafts against plain decoding; ``draft_cost`` is the drafter's time in plain passes.

    ``tokens_per_pass`` is what a pass puts out: ``expected_tokens(alpha, k)``, or a measured mean.
    """
    return tokens_per_pass / (cost_ratio(shape, hardware, batch, k + 1, context, **how) + draft_cost)


def spare_batch(hardware: Hardware, k: int, weight_bytes: float = BF16_BYTES) -> float:
    """The batch at which spare compute ends: B (k + 1) reaches the ridge; beyond it, verifying drafts costs time."""
    return hardware.ridge(weight_bytes) / (k + 1)


def break_even_batch(hardware: Hardware, k: int, tokens_per_pass: float, weight_bytes: float = BF16_BYTES) -> float:
    """The batch from which a free drafter with fixed ``k`` loses: its pass costs B (k + 1) / ridge. At context 0.

    Infinite when every pass puts out k + 1 tokens: then even a compute-bound pass loses nothing.
    """
    return spare_batch(hardware, k, weight_bytes) * tokens_per_pass if tokens_per_pass < k + 1 else math.inf


def losing_batch(
    shape: Shape,
    hardware: Hardware,
    tokens_per_pass: float,
    new_tokens: float,
    context: float = 0,
    most: int = 4096,
    **how: Any,
) -> int | None:
    """The smallest batch up to ``most`` at which a pass costs more plain passes than the tokens it puts out.

    ``None`` when there is none: KV reads, to which drafts add nothing, outweigh everything else at a long context.
    """
    batches = np.arange(1, most + 1, dtype=float)  # all: with experts the ratio rises and falls
    gain = tokens_per_pass * (1 + 1e-9)  # a pass that only ever breaks even does not lose
    loses = np.asarray(cost_ratio(shape, hardware, batches, new_tokens, context, **how)) > gain
    return int(batches[loses.argmax()]) if loses.any() else None


def max_batch(
    shape: Shape,
    hardware: Hardware,
    context: float,
    *,
    weight_bytes: float = BF16_BYTES,
    kv_bytes: float = BF16_BYTES,
    drafter_parameters: float = 0,
    drafter_kv_values: float = 0,
) -> int | None:
    """The most sequences of ``context`` tokens whose KV fits beside the weights; ``None`` when nothing bounds it.

    A drafter's stored parameters and its KV numbers per token share the memory.
    """
    left = hardware.memory_bytes - weight_bytes * (shape.total_parameters + drafter_parameters)
    if left < 0:
        return 0
    return None if context == 0 else int(left / (context * kv_bytes * (shape.kv_values_per_token + drafter_kv_values)))


@step
@dataclass(frozen=True)
class Priced:
    """What priced figures stand for: ``shape`` served on ``hardware``, with numbers of these sizes, by this profile."""

    shape: Shape
    hardware: Hardware
    profile: Profile = DATA_SHEET
    weight_bytes: float = BF16_BYTES
    kv_bytes: float = BF16_BYTES

    def time(self, batch: Size, new_tokens: Size = 1, context: Size = 0, network: Network | None = None) -> StepTime:
        """A pass of the model, or of another ``network`` on the same hardware."""
        return pass_time(
            network or self.shape,
            self.hardware,
            batch,
            new_tokens,
            context,
            weight_bytes=self.weight_bytes,
            kv_bytes=self.kv_bytes,
            profile=self.profile,
        )
