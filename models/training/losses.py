"""What each drafter is asked to predict, and how wrong it is. All return a ``Score`` summed over rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from models.heads import Eagle, Medusa, TinyLM
from models.training.batches import Batch

CHUNK = 512  # rows whose logits exist at one time
TOKEN_WEIGHT = 0.1  # of the token loss beside the feature loss, as in EAGLE (arXiv 2401.15077)


@dataclass
class Score:
    """``loss`` is what is differentiated; ``hits`` and ``rows`` count per depth how often the first choices agreed.

    A row whose first choice is outside the draft vocabulary counts as a miss.
    """

    loss: Tensor
    hits: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy against a sparse law over a frozen head. The gradient is made in the forward pass, chunk by chunk:
    logits of all rows at once would be the largest tensor of training."""

    @staticmethod
    def forward(ctx, states: Tensor, head: Tensor, ids: Tensor, probs: Tensor, choice: Tensor):
        loss, hits = head.new_zeros(()), head.new_zeros(())
        gradient = torch.empty_like(states)
        for at in range(0, len(states), CHUNK):
            rows = slice(at, at + CHUNK)
            logits = (states[rows] @ head.T).float()
            hits += (logits.argmax(-1) == choice[rows]).sum()
            norm = logits.logsumexp(-1, keepdim=True)
            loss += (norm[:, 0] - (logits.gather(1, ids[rows]) * probs[rows]).sum(-1)).sum()
            law = logits.sub_(norm).exp_()
            law.scatter_add_(1, ids[rows], -probs[rows])
            gradient[rows] = law @ head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx, grad: Tensor, _hits: Tensor):
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None, None, None


def cross_entropy(states: Tensor, head: Tensor, batch: Batch, b: Tensor, t: Tensor) -> tuple[Tensor, float, float]:
    """(summed loss, hits, rows) of ``states`` ``[n, dim]`` against the laws after tokens ``t`` of sequences ``b``."""
    choice = batch.choice[b, t]
    keep = choice >= 0
    loss, hits = _CrossEntropy.apply(states[keep], head, batch.ids[b, t][keep], batch.probs[b, t][keep], choice[keep])
    return loss, float(hits), float(len(t))


def tiny_loss(model: TinyLM, batch: Batch, embedding: Tensor, head: Tensor) -> Score:
    positions = torch.arange(batch.tokens.shape[1])
    states = model(embedding[batch.tokens], positions)
    b, t = batch.own.nonzero(as_tuple=True)
    loss, hits, rows = cross_entropy(states[b, t], head, batch, b, t)
    return Score(loss / max(rows, 1), [hits], [rows])


def medusa_loss(model: Medusa, batch: Batch, head: Tensor, rate: float, generator: torch.Generator) -> Score:
    """Depth i, from the state at t, learns the law after token t + 1 + i. ``rate``: share of the places taken."""
    total, hits, rows = head.new_zeros(()), [], []
    chosen = torch.rand(batch.own.shape, generator=generator) < rate
    for depth in range(len(model.heads)):
        ahead = depth + 1
        b, t = (batch.own[:, ahead:] & chosen[:, :-ahead]).nonzero(as_tuple=True)
        loss, h, n = cross_entropy(model(batch.features[b, t, -1].float(), depth), head, batch, b, t + ahead)
        total = total + 0.8**depth * loss / max(n, 1)
        hits.append(h)
        rows.append(n)
    return Score(total, hits, rows)


def eagle_loss(
    model: Eagle,
    batch: Batch,
    read: slice,
    embedding: Tensor,
    head: Tensor,
    steps: int,
    rate: float,
    chain_rate: float,
    generator: torch.Generator,
) -> Score:
    """Training-time test: from anchors t the head goes on for ``steps`` steps on its own states (arXiv 2503.01840).

    ``read``: which of the batch's features the head taps. One step is plain training on the target's states. A head
    that predicts features also learns the target's last state of token t + j, by smooth L1.

    Slot s holds token s + 1 and the fused state of token s. Step 1 of an anchor sees the slots up to t; step j, which
    holds token t + j and the state that step j - 1 put out, sees those and its own chain, and learns the law after
    token t + j. Only a ``rate`` of all places are anchors and only ``chain_rate`` of them go beyond the first step: one
    block's keys and values need no more than its input, so nothing else has to be computed for the others.
    """
    state = model.fuse(batch.features[:, :-1, read].float())
    embedded = embedding[batch.tokens]
    x = model.enter(embedded[:, 1:], state)  # [B, L - 1, dim]
    slots = torch.arange(x.shape[1])
    keys, values = model.block.keys_values(x, slots)

    t, valid = _anchors(batch, rate, generator)  # [B, n]
    rows = torch.arange(len(t))[:, None]
    visible = (slots <= t[..., None])[:, None, None]  # [B, 1, 1, n, L - 1]
    chain: list[tuple[Tensor, Tensor]] = []
    total, hits, counts = head.new_zeros(()), [], []
    x = x[rows, t]
    for j in range(1, steps + 1):
        if j == 2:
            n = max(1, round(chain_rate * t.shape[1]))
            t, valid, visible, state = t[:, :n], valid[:, :n], visible[:, :, :, :n], state[:, :n]
        if j > 1:
            reach = (t + j).clamp(max=batch.tokens.shape[1] - 1)
            x = model.enter(embedded[rows, reach], state)
            chain.append(model.block.keys_values(x, t + j - 1))
        q = model.block.queries(x, t + j - 1)
        state = model.carry(model.block.finish(x, _attend(q, keys, values, visible, chain)))
        keep = valid & (t + j < batch.lengths[:, None] - 1)
        keep &= batch.own[rows, (t + j).clamp(max=batch.own.shape[1] - 1)]
        b, i = keep.nonzero(as_tuple=True)
        loss, h, n_rows = cross_entropy(model.speak(state[b, i]), head, batch, b, t[b, i] + j)
        loss = loss / max(n_rows, 1)
        if model.predicts_feature:
            true = batch.features[b, t[b, i] + j, -1].float()
            loss = TOKEN_WEIGHT * loss + F.smooth_l1_loss(state[b, i], true)
        total = total + 0.8 ** (j - 1) * loss
        hits.append(h)
        counts.append(n_rows)
    return Score(total, hits, counts)


def _anchors(batch: Batch, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random places t ``[B, n]`` whose law after t + 1 can be learned, in random order, and which of them are real."""
    can = batch.own[:, 1:]  # [B, L - 1]: place t, law after t + 1
    order = torch.where(can, torch.rand(can.shape, generator=generator), 2.0).argsort(-1)
    wanted = (can.sum(-1) * rate).ceil().long()
    n = max(int(wanted.max()), 1)
    return order[:, :n], torch.arange(n) < wanted[:, None]


def _attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """``[B, n, heads * head_dim]``: attention to the visible slots and to the anchor's own chain.

    ``q`` ``[B, n, heads, d]``, ``keys`` ``[B, slots, kv heads, d]``; a chain entry has one key per anchor.
    """
    q = q.unflatten(2, (keys.shape[2], -1)) * q.shape[-1] ** -0.5  # [B, n, kv, group, d]
    scores = torch.einsum("bnkgd,bskd->bkgns", q, keys).masked_fill(~visible, -torch.inf)
    own = [torch.einsum("bnkgd,bnkd->bkgn", q, k[:, : q.shape[1]])[..., None] for k, _ in chain]
    weights = torch.cat([scores, *own], -1).softmax(-1)
    slots = keys.shape[1]
    out = torch.einsum("bkgns,bskd->bnkgd", weights[..., :slots], values)
    for i, (_, v) in enumerate(chain):
        out = out + weights[..., slots + i].permute(0, 3, 1, 2)[..., None] * v[:, : q.shape[1], :, None]
    return out.flatten(2)
