"""What drafters cost beside the model they draft for: their weights by part, from the target's shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from playground.engine.cost import Priced, Size
from playground.engine.shapes import Experts, Shape
from playground.engine.trace import step

SMALL_VOCAB = 32_000  # tokens an EAGLE-3 head chooses from


@dataclass(frozen=True)
class Head:
    """Weights that draft one token: what they read by part, and the KV and attention of their own layer."""

    name: str
    hidden: int
    layers: int
    parts: tuple[tuple[str, int], ...]  # (what, parameters), experts counted as one token uses them
    kv_values_per_token: int = 0
    attention_flops_per_token: int = 0
    experts: Experts | None = None
    expert_parameters: int = 0
    num_own: int = 0  # parameters stored beside the target's own

    @property
    def active_parameters(self) -> int:
        return sum(parameters for _, parameters in self.parts)

    def streamed_parameters(self, tokens: Size) -> Size:
        """What a pass over ``tokens`` tokens reads: with experts, those that uniform routing reaches (an average)."""
        if self.experts is None:
            return self.active_parameters
        return self.active_parameters + (self.experts.distinct(tokens) - self.experts.active) * self.expert_parameters


@step
@dataclass(frozen=True)
class Speculator:
    """A drafter as it is priced: ``network`` makes one pass per drafted token, or one pass for all (``is_parallel``).

    ``once`` runs once per target pass, however many tokens are drafted. No network: drafts are free.
    """

    name: str
    network: Shape | Head | None = None
    is_parallel: bool = False
    once: Head | None = None

    def seconds(self, served: Priced, batch: Size, k: Size, context: Size = 0) -> Size:
        """The time to draft ``k`` tokens for each of ``batch`` sequences, on the hardware and profile of ``served``."""
        if self.network is None:
            return 0.0 * np.asarray(k * batch) if np.ndim(k) or np.ndim(batch) else 0.0
        one = served.time(batch, 1, context, self.network)
        fixed = one.overhead_s * (np.minimum(k, 1) if self.is_parallel else k)
        total = k * (one.total_s - one.overhead_s) + fixed
        if self.once is not None:
            total = total + np.minimum(k, 1) * served.time(batch, 1, 0, self.once).total_s
        return total if np.ndim(total) else float(total)

    def token_cost(self, served: Priced, batch: Size = 1, context: Size = 0) -> Size:
        """One more drafted token in plain passes of the target; what runs once per pass is left out."""
        if self.network is None:
            return 0.0
        return served.time(batch, 1, context, self.network).total_s / served.time(batch, 1, context).total_s

    def cost(self, served: Priced, batch: Size = 1, k: Size = 1, context: Size = 0) -> Size:
        """``seconds`` in plain passes of the target."""
        return self.seconds(served, batch, k, context) / served.time(batch, 1, context).total_s

    @property
    def parameters(self) -> int:
        """What one drafted token is multiplied with."""
        return self.network.active_parameters if self.network else 0

    @property
    def stored_parameters(self) -> int:
        """What stands in memory beside the target."""
        own = self.network.total_parameters if isinstance(self.network, Shape) else getattr(self.network, "num_own", 0)
        return own + (self.once.active_parameters if self.once else 0)

    @property
    def kv_values_per_token(self) -> int:
        return self.network.kv_values_per_token if self.network else 0

    def parameter_share(self, target: Shape, k: int = 1) -> float:
        """``k`` drafted tokens' parameters by those of a target step, both tables counted where a model has two.

        The short way to a draft cost; ``cost`` prices what is read and multiplied instead.
        """
        own = self.parameters
        if isinstance(self.network, Shape):
            own += (1 - self.network.tied) * self.network.embedding_parameters
        return k * own / (target.active_parameters + (1 - target.tied) * target.embedding_parameters)


def eagle(target: Shape) -> Speculator:
    """EAGLE (Li et al. 2024): token embedding and last feature fused, one layer of the target, the target's LM head."""
    layer = ("layer", target.layer_parameters)
    parts = (("fusion", 2 * target.hidden**2), layer, ("lm head", target.embedding_parameters))
    return Speculator("EAGLE head", _layer_head("EAGLE head", target, parts, shared=target.embedding_parameters))


def eagle3(target: Shape, vocab: int = SMALL_VOCAB) -> Speculator:
    """EAGLE-3 (Li et al. 2025) with a smaller draft vocabulary.

    Attention reads embedding and feature side by side; three features of the target are fused once per pass, not per
    drafted token.
    """
    wide = target.hidden * (target.heads + 2 * target.kv_heads) * target.head_dim + target.hidden  # the second half
    parts = (("layer", target.layer_parameters + wide), ("draft lm head", vocab * target.hidden))
    fusion = Head("feature fusion", target.hidden, 0, (("fusion", 3 * target.hidden**2),))
    name = f"EAGLE-3 head, {vocab:,} tokens"
    return Speculator(name, _layer_head(name, target, parts), once=fusion)


def medusa(target: Shape) -> Speculator:
    """Medusa heads (Cai et al. 2024), one per drafted token: a residual block with bias and an LM head of its own."""
    block = target.hidden**2 + target.hidden
    parts = (("residual block", block), ("lm head", target.embedding_parameters))
    own = block + target.embedding_parameters
    return Speculator("Medusa heads", Head("Medusa head", target.hidden, 1, parts, num_own=own), is_parallel=True)


def mtp(target: Shape) -> Speculator:
    """DeepSeek-V3's MTP module (2024): two norms, a projection, one block of the target, the target's LM head."""
    block = target.expert_layer_parameters(target.experts.active) if target.experts else target.layer_parameters
    projection = ("projection and norms", 2 * target.hidden**2 + 3 * target.hidden)
    parts = (projection, ("block", block), ("lm head", target.embedding_parameters))
    head = _layer_head("MTP module", target, parts, shared=target.embedding_parameters)
    if target.experts:
        idle = (target.experts.total - target.experts.active) * target.expert_parameters
        routed = {"experts": target.experts, "expert_parameters": target.expert_parameters}
        head = replace(head, **routed, num_own=head.num_own + idle)
    return Speculator("MTP module", head)


def ngram(target: Shape) -> Speculator:
    """Copies from the text: no weights."""
    return Speculator("n-gram")


def draft_model(shape: Shape) -> Speculator:
    """A whole model, one pass per drafted token."""
    return Speculator(shape.name, shape)


DRAFTERS = {"eagle": eagle, "eagle3": eagle3, "medusa": medusa, "mtp": mtp, "ngram": ngram}


def speculator(name: str, target: Shape, shape: Any) -> Speculator:
    """The drafter ``name`` for ``target``: one of ``DRAFTERS``, else a draft model that ``shape(name)`` finds.

    Raises ``ValueError`` for a name that is neither.
    """
    if name in DRAFTERS:
        return DRAFTERS[name](target)
    try:
        return draft_model(shape(name))
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}; as drafter also {', '.join(DRAFTERS)}.") from None


def _layer_head(name: str, target: Shape, parts: tuple[tuple[str, int], ...], shared: int = 0) -> Head:
    """A head with one layer of the target's attention; ``shared`` of its parameters are the target's own."""
    own = sum(parameters for _, parameters in parts) - shared
    kv, flops = target.kv_values_per_token // target.layers, target.attention_flops_per_token // target.layers
    return Head(name, target.hidden, 1, parts, kv, flops, num_own=own)
