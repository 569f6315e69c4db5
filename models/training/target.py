"""The pieces of the target that training needs: its tables, its norm and its layers, never a forward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.heads import Shape

LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Target:
    """A Llama-shaped target's weights in fp32. ``digest`` identifies its embedding table, and so its tokenizer's order."""

    name: str
    embedding: Tensor  # [vocab, dim]
    head: Tensor  # [vocab, dim]
    norm: Tensor  # [dim], of the final norm
    layers: nn.ModuleList
    config: Any

    @property
    def digest(self) -> str:
        return table_digest(self.embedding)

    def shape(self, *, intermediate: int | None = None, layers: int = 1, taps: Sequence[int] = ()) -> Shape:
        """The target's widths, for a drafter of ``layers`` blocks."""
        c = self.config
        rope = getattr(c, "rope_parameters", None) or {}
        return Shape(
            dim=c.hidden_size,
            num_heads=c.num_attention_heads,
            num_kv_heads=c.num_key_value_heads,
            head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
            intermediate=intermediate or c.intermediate_size,
            rope_theta=float(rope.get("rope_theta", getattr(c, "rope_theta", 10000.0))),
            eps=c.rms_norm_eps,
            layers=layers,
            taps=tuple(taps),
        )

    def layer(self, index: int) -> dict[str, Tensor]:
        """The weights of one layer under the names of ``models.heads.Block``."""
        weights = self.layers[index].state_dict()
        return {f"{ours}.weight": weights[f"{theirs}.weight"].float().clone() for ours, theirs in LAYER_NAMES.items()}


def table_digest(table: Tensor) -> str:
    """16 hex digits of the SHA-256 of a table's first 64 columns in bf16: the same in fp32 and bf16 loads."""
    sample = table[:, :64].detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16)
    return hashlib.sha256(sample.numpy().tobytes()).hexdigest()[:16]


def parts(model: nn.Module, name: str) -> Target:
    """The pieces of a transformers model of the Llama family."""
    inner = model.model
    return Target(
        name,
        inner.embed_tokens.weight.detach().float(),
        model.lm_head.weight.detach().float(),
        inner.norm.weight.detach().float(),
        inner.layers,
        model.config,
    )
