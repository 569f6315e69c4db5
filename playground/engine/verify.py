"""Verification: which drafted tokens the target lets stand, and the token that follows them.

Every rule has the same shape, ``rule(draft, p, coin, start) -> Verdict``. ``p`` is the target's law after the knobs,
``[n + 1, vocab]``: row 0 follows the last committed token, row i + 1 follows node i. ``draft.q`` is the law the tokens
were drawn from. ``coin(position, purpose)`` gives the uniform numbers; ``start`` is the position of the first drafted
token. Rejection rule: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (2302.01318); siblings one after
another: Miao et al. 2023 (2305.09781).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from playground.engine.sampling import Coin, draw
from playground.engine.tree import ROOT, Draft


@dataclass(frozen=True)
class Verdict:
    """``path``: accepted nodes from the top; ``token`` follows them. ``coins``: judged node -> its coin, in order.

    ``law`` ``[vocab]`` is what ``token`` was drawn from, with coin ``emit_coin``; ``is_recovered`` says that a draft
    token was rejected where ``token`` now stands.
    """

    path: tuple[int, ...]
    token: int
    is_recovered: bool
    coins: dict[int, float | None] = field(default_factory=dict)
    law: Tensor | None = None
    emit_coin: float | None = None


Rule = Callable[[Draft, Tensor, Coin, int], Verdict]


def verify_greedy(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """Keep the path on which every token is the target's own choice; then the target's next choice follows."""
    choice = p.argmax(-1).cpu()  # [n + 1]
    if not draft:
        return Verdict((), int(choice[0]), is_recovered=False)
    tokens, parents = torch.tensor(draft.tokens), torch.tensor(draft.parents)
    agrees = tokens == choice[parents + 1]  # [n] node = the target's choice after its parent
    stands = (agrees | ~draft.mask).all(-1)  # [n] so are all of its ancestors
    depth = torch.tensor(draft.depths) * stands
    last = int(depth.argmax()) if stands.any() else ROOT
    judged = [i for i, parent in enumerate(draft.parents) if parent == ROOT or stands[parent]]
    return Verdict(draft.path(last), int(choice[last + 1]), last in draft.parents, dict.fromkeys(judged))


def verify_sampling(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """Speculative sampling: the output has the target's law exactly, whatever the drafter.

    From the top, each child x is accepted when u * q(x) < p(x). After a rejection what is left of p, the residual
    max(p - q, 0), is judged against the next sibling, and the token drawn at the end comes from it. A child chosen
    without chance (q is None) is accepted with p(x); after a rejection x leaves p.
    """
    node, coins = ROOT, {}
    while True:
        position = start + len(draft.path(node))
        law, children = p[node + 1], draft.children(node)
        for i, child in enumerate(children):
            x = draft.tokens[child]
            q = draft.q[child] if draft.q is not None else None
            u = coins[child] = coin(position, f"accept {i}")
            if u * (1.0 if q is None else float(q[x])) < float(law[x]):
                node = child
                break
            law = residual(law, q, x)
        else:
            u = coin(position, "emit")
            return Verdict(draft.path(node), draw(law, u), bool(children), coins, law, u)


def residual(p: Tensor, q: Tensor | None, x: int) -> Tensor:
    """The law ``[vocab]`` left after ``x`` was rejected: max(p - q, 0) normalised; p itself when nothing is left.

    >>> residual(torch.tensor([0.5, 0.3, 0.2]), None, 0)
    tensor([0.0000, 0.6000, 0.4000])
    """
    if q is None:
        left = p.clone()
        left[x] = 0
    else:
        left = (p - q).clamp(min=0)
    mass = left.sum()
    return left / mass if mass > 0 else p


# Rules seen in the wild, for comparison. Each says what its output law is.


def verify_match_keep(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """Draw the target's own token first; the draft stands while it matches. Lossless, but accepts only sum p * q."""
    node, coins = ROOT, {}
    while True:
        u = coin(start + len(draft.path(node)), "emit")
        token, children = draw(p[node + 1], u), draft.children(node)
        coins |= dict.fromkeys(children, u)
        match = [child for child in children if draft.tokens[child] == token]
        if not match:
            return Verdict(draft.path(node), token, bool(children), coins, p[node + 1], u)
        node = match[0]


def verify_match_redraw(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """Like ``verify_match_keep``, but a mismatch is thrown away and drawn again from p. Biased towards the draft."""
    kept = verify_match_keep(draft, p, lambda position, purpose: coin(position, "match"), start)
    position = start + len(kept.path)
    law, u = p[(kept.path[-1] if kept.path else ROOT) + 1], coin(position, "emit")
    return Verdict(kept.path, draw(law, u), kept.is_recovered, kept.coins, law, u)
