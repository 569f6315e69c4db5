"""Shapes of the models that people serve: what a pass reads and multiplies, from the sizes of a ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SIZE = 10**9  # of any one size: far above every model, and products of a few stay exact


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads from one short vector per token.

    ``q_rank`` is 0 where queries are not compressed. ``nope``, ``rope`` and ``value`` are head dimensions.
    """

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """Routed experts: ``active`` of ``total`` per token, ``shared`` ones always; the first ``dense_layers`` have none.

    ``intermediate`` is the width of one expert.
    """

    total: int
    active: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0
    has_bias: bool = False  # one number per expert that balances the load, as in DeepSeek-V3

    def distinct(self, tokens: Any) -> Any:
        """How many different experts ``tokens`` tokens reach in one layer, on average, if each picks at random.

        >>> round(Experts(256, 8, 2048).distinct(2), 2)
        15.75
        """
        return self.total * (1 - (1 - self.active / self.total) ** tokens)


@dataclass(frozen=True)
class Shape:
    """A decoder with a gated MLP, as its public configuration states it: dense or with experts, grouped or latent KV.

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
    latent: Latent | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            _check_size(self.name, size, getattr(self, size))
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} KV heads; "
                "heads must be a multiple of kv_heads."
            )
        for part, may_be_zero in ((self.latent, ("q_rank",)), (self.experts, ("shared", "dense_layers"))):
            for size, value in vars(part).items() if part else ():
                _check_size(self.name, size, value, 0 if size in may_be_zero or isinstance(value, bool) else 1)
        if self.experts and self.experts.active > self.experts.total:
            raise ValueError(
                f"{self.name}: {self.experts.active} experts cannot be active when there are {self.experts.total}; "
                "active experts must not exceed the total."
            )
        if self.experts and self.experts.dense_layers > self.layers:
            raise ValueError(
                f"{self.name}: {self.experts.dense_layers} dense layers do not fit into {self.layers} layers."
            )

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent is None:
            queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
            norms = 2 * self.head_dim if self.has_qk_norm else 0
            return 2 * self.hidden * queries + 2 * self.hidden * keys + norms  # q and o, k and v
        a, h = self.latent, self.heads
        queries = h * (a.nope + a.rope)
        down = self.hidden * a.q_rank + a.q_rank + a.q_rank * queries if a.q_rank else self.hidden * queries
        latents = self.hidden * (a.kv_rank + a.rope) + a.kv_rank  # one norm on the latent
        return down + latents + a.kv_rank * h * (a.nope + a.value) + h * a.value * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Of a dense layer: attention, MLP, two norms."""
        return self.attention_parameters + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Of one routed expert."""
        return 3 * self.hidden * self.experts.intermediate if self.experts else 0

    @property
    def expert_layers(self) -> int:
        return self.layers - self.experts.dense_layers if self.experts else 0

    def expert_layer_parameters(self, routed: Any) -> Any:
        """Of a layer with experts, ``routed`` of them counted: attention, router, experts, two norms."""
        e = self.experts
        assert e is not None
        router = e.total * (self.hidden + e.has_bias)
        return self.attention_parameters + router + (routed + e.shared) * self.expert_parameters + 2 * self.hidden

    def _parameters(self, routed: Any) -> Any:
        """All but the input embedding, with ``routed`` experts of each layer."""
        body = (self.layers - self.expert_layers) * self.layer_parameters
        if self.experts:
            body = body + self.expert_layers * self.expert_layer_parameters(routed)
        return body + self.embedding_parameters + self.hidden

    @property
    def read_parameters(self) -> int:
        """All but the input embedding, of which a pass reads only the rows that it looks up."""
        return self._parameters(self.experts.total if self.experts else 0)

    @property
    def total_parameters(self) -> int:
        return self.read_parameters + (1 - self.tied) * self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """What one token is multiplied with: all but the input embedding and the experts it is not routed to."""
        return self._parameters(self.experts.active if self.experts else 0)

    def streamed_parameters(self, tokens: Any) -> Any:
        """What a pass over ``tokens`` tokens reads: with experts, those that uniform routing reaches (an average)."""
        return self._parameters(self.experts.distinct(tokens)) if self.experts else self.read_parameters

    @property
    def kv_values_per_token(self) -> int:
        """Numbers the KV cache holds for one token: a key and a value per layer and KV head, or a latent per layer."""
        if self.latent:
            return self.layers * (self.latent.kv_rank + self.latent.rope)
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, value_bytes: float = 2.0) -> float:
        return value_bytes * self.kv_values_per_token

    @property
    def attention_flops_per_token(self) -> int:
        """FLOPs of one new token for each token of context: scores and weighted sum, two each per head dimension.

        Latent attention works on the latents themselves (the "absorbed" form, which reads the short cache).
        """
        if self.latent:
            return 2 * self.layers * self.heads * (2 * self.latent.kv_rank + self.latent.rope)
        return 4 * self.layers * self.heads * self.head_dim


def _check_size(name: str, size: str, value: Any, least: int = 1) -> None:
    if not (isinstance(value, int) and math.isfinite(value)):
        raise ValueError(f"{name}: {size} must be a whole number, not {str(value)[:40]!r}.")
    if not least <= value <= MAX_SIZE:
        raise ValueError(f"{name}: {size} must be at least {least} and at most {MAX_SIZE:,}, not {value}.")


# --- A config.json ---

NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
}
OWN = (*NAMES, "name", "has_qk_norm", "latent", "experts")
LATENT = {
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
    "value": "v_head_dim",
}


def from_config(text: str) -> Shape:
    """The shape of a model from its ``config.json``, or from an object with the fields of ``Shape``.

    Raises ``ValueError`` that says what is missing or contradicts itself.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("The model is no valid JSON: paste a config.json, or choose a name of the list.") from None
    if not isinstance(config, dict):
        raise ValueError("The model must be a JSON object, as config.json is.")
    config = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    return from_fields(config) if "layers" in config else _from_hub(config)


def from_fields(fields: Mapping[str, Any]) -> Shape:
    """``Shape`` from a mapping with its own field names; ``latent`` and ``experts`` are mappings too."""
    unknown = [name for name in fields if name not in OWN]
    if unknown:
        raise ValueError(f"A shape has no field {str(unknown[0])[:40]!r}; it has {', '.join(OWN)}.")
    given = {"name": "typed in", **fields}
    given["name"] = str(given["name"])[:80]
    for name, kind in (("latent", Latent), ("experts", Experts)):
        if given.get(name) is not None:
            try:
                given[name] = kind(**given[name])
            except TypeError:
                raise ValueError(f"{given['name']}: {name} has the fields {', '.join(kind.__annotations__)}.") from None
    try:
        return Shape(**given)
    except TypeError:
        missing = [name for name in list(NAMES)[:-1] if name not in given]
        raise ValueError(f"{given['name']}: {', '.join(missing)} missing.") from None


def _from_hub(config: Mapping[str, Any]) -> Shape:
    def size(key: str, default: Any = None) -> Any:
        return default if config.get(key) is None else config[key]

    kind = str(size("model_type", ""))
    name = str(size("_name_or_path", "") or kind or "config.json")[:80]
    missing = [
        key for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size") if not size(key)
    ]
    if missing:
        raise ValueError(f"{name}: the configuration has no {', '.join(missing)}.")
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    _check_size(name, "hidden_size", hidden)
    _check_size(name, "num_attention_heads", heads)
    fields = {own: size(key) for own, key in NAMES.items()}
    fields |= {"name": name, "tied": bool(size("tie_word_embeddings", True)), "has_qk_norm": kind.startswith("qwen3")}
    fields["kv_heads"] = size("num_key_value_heads", heads)
    fields["head_dim"] = size("head_dim") or size("v_head_dim") or hidden // heads
    fields["intermediate"] = size("intermediate_size") or size("moe_intermediate_size") or 4 * hidden
    if size("kv_lora_rank"):
        fields["latent"] = {own: size(key, 0) for own, key in LATENT.items()}
        fields["kv_heads"] = heads
    total = next((size(key) for key in ("n_routed_experts", "num_local_experts", "num_experts") if size(key)), 0)
    if total:
        fields["experts"] = {
            "total": total,
            "active": size("num_experts_per_tok", 1),
            "intermediate": size("moe_intermediate_size") or size("intermediate_size"),
            "shared": size("n_shared_experts", 0),
            "dense_layers": size("first_k_dense_replace", 0),
            "has_bias": kind == "deepseek_v3",
        }
    return from_fields(fields)
