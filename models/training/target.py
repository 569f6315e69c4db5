"""The pieces of the target that training needs: its tables, its norm and its layers, never a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """A Llama-shaped target's weights in fp32."""

    name: str
    embedding: Tensor  # [vocab, dim]
    head: Tensor  # [vocab, dim]
    norm: Tensor  # [dim], of the final norm
    layers: nn.ModuleList
    config: Any

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
