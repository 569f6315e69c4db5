"""Trained drafters as modules: Medusa's heads, one-layer heads of the EAGLE family, a tiny language model.

None owns an embedding or an output head: tokens are embedded with the target's table, and logits are taken over a
reduced draft vocabulary, with its rows of the target's LM head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Widths of a Llama block; ``taps`` are the target's hidden_states indices that a head reads."""

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    layers: int = 1
    taps: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, Any]) -> Shape:
        """The shape in ``data``, other keys aside; raises ``ValueError`` naming what is missing."""
        try:
            known = {f.name: data[f.name] for f in fields(Shape)}
        except KeyError as error:
            raise ValueError(f"the weights do not say their {error.args[0]!r}") from None
        return Shape(**{**known, "taps": tuple(known["taps"])})


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE (arXiv 2104.09864) in the half-split layout of Llama checkpoints.

    ``x`` ``[..., n, heads, d]``, ``positions`` ``[..., n]``.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[..., None].float() * frequency  # [..., n, half]
    cos, sin = angle.cos()[..., None, :].to(x.dtype), angle.sin()[..., None, :].to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Block(nn.Module):
    """A Llama layer, taken apart so that a caller can bring its own attention pattern."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s = self.shape = shape
        self.attention_norm = nn.RMSNorm(s.dim, s.eps)
        self.query = nn.Linear(s.dim, s.num_heads * s.head_dim, bias=False)
        self.key = nn.Linear(s.dim, s.num_kv_heads * s.head_dim, bias=False)
        self.value = nn.Linear(s.dim, s.num_kv_heads * s.head_dim, bias=False)
        self.output = nn.Linear(s.num_heads * s.head_dim, s.dim, bias=False)
        self.mlp_norm = nn.RMSNorm(s.dim, s.eps)
        self.gate = nn.Linear(s.dim, s.intermediate, bias=False)
        self.up = nn.Linear(s.dim, s.intermediate, bias=False)
        self.down = nn.Linear(s.intermediate, s.dim, bias=False)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """``[..., n, heads, head_dim]``, rotated."""
        q = self.query(self.attention_norm(x)).unflatten(-1, (self.shape.num_heads, -1))
        return rotate(q, positions, self.shape.rope_theta)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., n, kv heads, head_dim]`` each, keys rotated."""
        normed = self.attention_norm(x)
        k = self.key(normed).unflatten(-1, (self.shape.num_kv_heads, -1))
        v = self.value(normed).unflatten(-1, (self.shape.num_kv_heads, -1))
        return rotate(k, positions, self.shape.rope_theta), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's output ``[..., n, heads * head_dim]`` and the MLP's to the residual stream ``x``."""
        x = x + self.output(attended)
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def forward(self, x: Tensor, positions: Tensor, past: KV | None = None, mask: Tensor | None = None) -> Tensor:
        """``x`` ``[batch, n, dim]``; with ``past`` (batch 1) its rows are attended too and the new rows appended.

        ``mask`` ``[n, past + n]`` bool; causal when it is ``None``.
        """
        q = self.queries(x, positions)
        k, v = self.keys_values(x, positions)
        if past is not None:
            k, v = past.append(k, v)
        if mask is None:
            n, total = q.shape[1], k.shape[1]
            mask = torch.ones(n, total, dtype=torch.bool, device=x.device).tril(total - n)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.finish(x, attended.transpose(1, 2).flatten(2))


class KV:
    """The rows of one layer, ``[1, rows, kv heads, head_dim]``."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[1]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows; all rows are returned."""
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], 1), torch.cat([self.values, values], 1)
        self.keys, self.values = keys, values
        return keys, values

    def keep(self, rows: int) -> None:
        """Drop all rows from ``rows`` on."""
        if self.keys is not None and rows < len(self):
            self.keys, self.values = self.keys[:, :rows], self.values[:, :rows]


class Medusa(nn.Module):
    """Heads that each guess one later token from the same last hidden state, blind to each other (arXiv 2401.10774).

    Each is a linear map and a stack of residual SiLU blocks; the map alone is already the best linear guess.
    """

    def __init__(self, shape: Shape, num_heads: int = 4) -> None:
        super().__init__()
        self.shape = shape
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Linear(shape.dim, shape.dim) for _ in range(1 + shape.layers)) for _ in range(num_heads)
        )

    def forward(self, last: Tensor, depth: int) -> Tensor:
        """States ``[..., dim]`` of the token ``depth`` + 1 places after the next one, from ``last`` ``[..., dim]``."""
        entry, *blocks = self.heads[depth]
        x = entry(last)
        for linear in blocks:
            x = x + F.silu(linear(x))
        return x


class Eagle(nn.Module):
    """One block that drafts in feature space, from the target's states and the token that followed (arXiv 2401.15077).

    How many states it taps makes it one of three. Several: ``fuse`` makes one of them (EAGLE-3, 2503.01840). One, the
    target's last: it is read as it is (EAGLE, and DeepSeek-V3's MTP module, 2412.19437). None: the block reads tokens
    only. ``enter`` joins state and embedding; what the block puts out stands in for the next state, so that the head
    can go on alone. With ``predicts_feature`` that is the target's next last state itself, ready for its LM head.
    """

    def __init__(self, shape: Shape, predicts_feature: bool = False) -> None:
        super().__init__()
        self.shape, self.predicts_feature = shape, predicts_feature
        n, d = len(shape.taps), shape.dim
        if n > 1:
            self.tap_scale = nn.Parameter(torch.ones(n, d))
            self.fusion = nn.Linear(n * d, d, bias=False)
        self.embedding_norm = nn.RMSNorm(d, shape.eps)
        if n:
            self.state_norm = nn.RMSNorm(d, shape.eps)
        self.entry = nn.Linear((2 if n else 1) * d, d, bias=False)
        self.block = Block(shape)
        self.norm = nn.Identity() if predicts_feature else nn.RMSNorm(d, shape.eps)

    def scale(self, features: Tensor) -> Tensor:
        """Taps ``[..., taps, dim]`` at unit RMS, weighted per channel, side by side ``[..., taps * dim]``."""
        return (F.rms_norm(features, features.shape[-1:], eps=self.shape.eps) * self.tap_scale).flatten(-2)

    def fuse(self, features: Tensor) -> Tensor:
        """One state ``[..., dim]`` of the taps ``[..., taps, dim]``; ``[..., 0]`` where none is tapped."""
        return self.fusion(self.scale(features)) if len(self.shape.taps) > 1 else features.flatten(-2)

    def join(self, embedded: Tensor, state: Tensor) -> Tensor:
        parts = [self.embedding_norm(embedded)]
        return torch.cat([*parts, self.state_norm(state)] if self.shape.taps else parts, -1)

    def enter(self, embedded: Tensor, state: Tensor) -> Tensor:
        return self.entry(self.join(embedded, state))

    def carry(self, x: Tensor) -> Tensor:
        """The block's output as the next step's state: in the likeness of the target's last one where it reads that."""
        return self.norm(x) if len(self.shape.taps) == 1 else x

    def speak(self, state: Tensor) -> Tensor:
        """A carried state as the target's LM head wants it."""
        return state if len(self.shape.taps) == 1 else self.norm(state)


class TinyLM(nn.Module):
    """A language model of a few blocks that reads tokens only; ``exit`` carries their states to the target's last."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, shape.eps)
        self.exit = nn.Linear(shape.dim, shape.dim)

    def forward(
        self, embedded: Tensor, positions: Tensor, past: Sequence[KV] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """States ``[batch, n, dim]`` for the target's LM head."""
        x = embedded
        for i, block in enumerate(self.blocks):
            x = block(x, positions, past[i] if past else None, mask)
        return self.exit(self.norm(x))
