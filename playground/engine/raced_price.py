"""Drafters that ran here as contenders on a served model: their measured acceptance, other people's prices."""

from __future__ import annotations

from collections.abc import Sequence

from playground.engine.drafter_cost import Speculator
from playground.engine.metrics import count, ratio
from playground.engine.serving import Contender, tokens_from_hits
from playground.engine.trace import Pass


def raced(name: str, drafter: Speculator, passes: Sequence[Pass], is_best: bool = False) -> Contender | None:
    """The drafter of ``passes``, priced as ``drafter``; ``None`` when it drafted nothing.

    Tokens per pass count every pass, those without a draft too. A chain keeps its length or, with ``is_best``, picks
    one at every batch; a tree is verified whole. ``alpha`` is the share of the judged levels that stood.
    """
    found = count(passes)
    if not found.num_drafts:
        return None
    stood = found.accepted_per_position
    alpha = ratio(sum(stood), found.num_drafts + sum(stood[:-1]))
    tokens = tokens_from_hits([n / len(passes) for n in stood])
    k, num_nodes = len(stood), max(len(made.nodes) for made in passes)
    is_tree = num_nodes > k
    return Contender(
        name, drafter, tokens, None if is_best and not is_tree else k, alpha, num_nodes if is_tree else None
    )
