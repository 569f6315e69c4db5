"""The tiny language model as transformers runs it: for its assisted generation, beside which ours is measured."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from models.drafters import TinyModel
from models.trained import Trained

NAMES = {  # of a block's parts: ours -> transformers'
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


class DraftHead(nn.Module):
    """From the last states to logits over the whole vocabulary, -inf outside the draft vocabulary."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.exit, self.trained = trained.module.exit, trained  # type: ignore[union-attr]

    def forward(self, states: Tensor) -> Tensor:
        return self.trained.logits(self.exit(states)).to(states.dtype)


def as_transformers(tiny: TinyModel) -> Any:
    """A ``LlamaForCausalLM`` with the weights of ``tiny``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape, embedding = tiny.lm.shape, tiny.trained.embedding
    config = LlamaConfig(
        vocab_size=len(embedding),
        hidden_size=shape.dim,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.eps,
        max_position_embeddings=tiny.max_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": tiny.lm.norm.weight}
    for i, block in enumerate(tiny.lm.blocks):
        weights |= {f"model.layers.{i}.{theirs}.weight": getattr(block, ours).weight for ours, theirs in NAMES.items()}
    model.lm_head = DraftHead(tiny.trained)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(embedding.device)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected
    assert all(name.startswith(("lm_head", "model.rotary")) for name in missing)
    return model.eval()
