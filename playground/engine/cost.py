"""What a pass costs: a roofline over model shapes and hardware, each a value with the facts that follow from it.

A pass streams its weights and the KV of every sequence once, and multiplies every new token with every weight. The
slower of the two sets the time (Williams et al. 2009). With figures from data sheets a time is a floor; ratios of times
are closer to the truth than the times themselves.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace

from playground.engine.trace import step

MAX_DRAFT = 1_000  # the longest draft that is priced
BF16_BYTES = 2.0


@dataclass(frozen=True)
class Shape:
    """A dense decoder with grouped-query attention and a gated MLP, as its public configuration states it.

    Raises ``ValueError`` with the rule when the sizes contradict each other.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False  # input embedding and output head are one matrix
    has_qk_norm: bool = False  # an RMS norm on each query and key head, as in Qwen3

    def __post_init__(self) -> None:
        for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            if getattr(self, size) < 1:
                raise ValueError(f"{self.name}: {size} must be at least 1, not {getattr(self, size)}.")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} KV heads; "
                "heads must be a multiple of kv_heads."
            )

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def layer_parameters(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys  # q and o, k and v
        norms = 2 * self.hidden + (2 * self.head_dim if self.has_qk_norm else 0)
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def total_parameters(self) -> int:
        return (2 - self.tied) * self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def read_parameters(self) -> int:
        """Parameters streamed in one pass: all but the input embedding, of which only the rows looked up are read."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Numbers the KV cache holds for one token: a key and a value per layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, value_bytes: float = BF16_BYTES) -> float:
        return value_bytes * self.kv_values_per_token

    @property
    def attention_flops_per_token(self) -> int:
        """FLOPs of one new token for each token of context: scores and weighted sum, two each per head dimension."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True)
class Hardware:
    """What executes a pass: ``bandwidth`` in B/s, ``peak_flops`` in dense bf16 FLOP/s, ``memory_bytes``."""

    name: str
    bandwidth: float
    peak_flops: float
    memory_bytes: float

    def __post_init__(self) -> None:
        for size in ("bandwidth", "peak_flops", "memory_bytes"):
            if not (math.isfinite(getattr(self, size)) and getattr(self, size) > 0):
                raise ValueError(f"{self.name}: {size} must be above 0, not {getattr(self, size)}.")

    def ridge(self, weight_bytes: float = BF16_BYTES) -> float:
        """Tokens per pass whose products (two FLOPs per weight and token) take as long as streaming the weights."""
        return self.peak_flops / self.bandwidth * weight_bytes / 2


def tensor_parallel(hardware: Hardware, degree: int) -> Hardware:
    """``degree`` devices that share every layer: bandwidth, FLOP/s and memory pool; communication is not counted."""
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
    )


@step
@dataclass(frozen=True)
class StepTime:
    """The seconds of one pass by term: streaming (weights, KV) and multiplying (GEMM, attention).

    The two sides overlap completely: the pass takes as long as the slower one.
    """

    batch: float
    new_tokens: float
    context: float
    weights_s: float
    kv_s: float
    gemm_s: float
    attention_s: float

    @property
    def memory_s(self) -> float:
        return self.weights_s + self.kv_s

    @property
    def compute_s(self) -> float:
        return self.gemm_s + self.attention_s

    @property
    def total_s(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def binding(self) -> str:
        """The largest term of the slower side: ``weights``, ``kv``, ``gemm`` or ``attention``."""
        names = ("weights", "kv") if self.memory_s >= self.compute_s else ("gemm", "attention")
        return max(names, key=lambda name: getattr(self, f"{name}_s"))


def pass_time(
    shape: Shape,
    hardware: Hardware,
    batch: float,
    new_tokens: float = 1,
    context: float = 0,
    *,
    weight_bytes: float = BF16_BYTES,
    kv_bytes: float = BF16_BYTES,
) -> StepTime:
    """One pass over ``batch`` sequences with ``new_tokens`` each, every sequence having ``context`` tokens of KV.

    ``weight_bytes`` and ``kv_bytes`` are bytes per stored number. Raises ``ValueError`` for a size that is too small.
    """
    if batch <= 0 or new_tokens <= 0 or context < 0:
        asked = f"{batch}, {new_tokens} and {context}"
        raise ValueError(f"A pass needs batch > 0, new tokens > 0 and context >= 0, not {asked}.")
    tokens = batch * new_tokens
    return StepTime(
        batch=batch,
        new_tokens=new_tokens,
        context=context,
        weights_s=weight_bytes * shape.read_parameters / hardware.bandwidth,
        kv_s=batch * context * shape.kv_bytes_per_token(kv_bytes) / hardware.bandwidth,
        gemm_s=2 * shape.read_parameters * tokens / hardware.peak_flops,
        attention_s=shape.attention_flops_per_token * context * tokens / hardware.peak_flops,
    )


def cost_ratio(
    shape: Shape, hardware: Hardware, batch: float, new_tokens: float, context: float = 0, **dtypes: float
) -> float:
    """t(n) / t(1): what a pass with ``new_tokens`` per sequence costs, in plain passes."""
    plain = pass_time(shape, hardware, batch, 1, context, **dtypes)
    return pass_time(shape, hardware, batch, new_tokens, context, **dtypes).total_s / plain.total_s


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
    **dtypes: float,
) -> float:
    """Tokens per second with ``k`` drafts against plain decoding; ``draft_cost`` is the drafter's time in plain passes.

    ``tokens_per_pass`` is what a pass puts out: ``expected_tokens(alpha, k)``, or a measured mean.
    """
    return tokens_per_pass / (cost_ratio(shape, hardware, batch, k + 1, context, **dtypes) + draft_cost)


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
    **dtypes: float,
) -> int | None:
    """The smallest batch up to ``most`` at which a pass costs more plain passes than the tokens it puts out.

    ``None`` when there is none: KV reads, to which drafts add nothing, outweigh everything else at a long context.
    """
    batches = range(1, most + 1)  # the ratio never falls with the batch
    gain = tokens_per_pass * (1 + 1e-9)  # a pass that only ever breaks even does not lose
    found = bisect.bisect_right(
        batches, gain, key=lambda batch: cost_ratio(shape, hardware, batch, new_tokens, context, **dtypes)
    )
    return batches[found] if found < most else None


def max_batch(
    shape: Shape,
    hardware: Hardware,
    context: float,
    *,
    weight_bytes: float = BF16_BYTES,
    kv_bytes: float = BF16_BYTES,
) -> int | None:
    """The most sequences of ``context`` tokens whose KV fits beside the weights; ``None`` when nothing bounds it."""
    left = hardware.memory_bytes - weight_bytes * shape.total_parameters
    if left < 0:
        return 0
    return None if context == 0 else int(left / (context * shape.kv_bytes_per_token(kv_bytes)))


@step
@dataclass(frozen=True)
class Priced:
    """What the priced figures of a run stand for: ``shape`` served on ``hardware``."""

    shape: Shape
    hardware: Hardware
