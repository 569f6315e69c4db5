"""Figures of a run, from its steps. Counters follow vLLM: accepted drafts are counted before a stop rule cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from playground.engine.trace import Lane, Pass


class Counters(NamedTuple):
    """vLLM's counters over steps. A step in which nothing was drafted is not a draft.

    ``accepted_per_position[i]`` counts the drafts whose node at depth i + 1 was accepted.
    """

    num_drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(self.accepted_tokens, self.drafted_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: what a pass with a draft yields, its own token included, before any stop rule."""
        rate = ratio(self.accepted_tokens, self.num_drafts)
        return None if rate is None else 1 + rate

    @property
    def acceptance_per_position(self) -> tuple[float | None, ...]:
        """The divisor is drafts, not the drafts that reached the position: so the sum is accepted / drafts."""
        return tuple(ratio(n, self.num_drafts) for n in self.accepted_per_position)

    @property
    def conditional_per_position(self) -> tuple[float | None, ...]:
        """Accepted at this position among the drafts accepted at the one before (at the first: among all drafts)."""
        reached = (self.num_drafts, *self.accepted_per_position)
        return tuple(ratio(n, before) for n, before in zip(self.accepted_per_position, reached, strict=False))


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``, or ``None`` where there is nothing to divide by."""
    return part / whole if whole else None


def count(steps: Sequence[Pass]) -> Counters:
    """The counters of ``steps``; as many positions as the deepest draft had levels."""
    drafts = [step for step in steps if step.nodes]
    depth = max((node.depth for step in drafts for node in step.nodes), default=0)
    return Counters(
        num_drafts=len(drafts),
        drafted_tokens=sum(len(step.nodes) for step in drafts),
        accepted_tokens=sum(step.num_verified for step in drafts),
        accepted_per_position=tuple(sum(step.num_verified > i for step in drafts) for i in range(depth)),
    )


def summarise(lane: Lane) -> dict[str, Any]:
    """Headline figures of one lane of ``Pass`` steps; ``None`` where a figure is undefined.

    ``mean_acceptance_length`` comes from the counters, ``mean_emitted_length`` from the tokens that were committed in
    passes with a draft: a stop rule inside a draft makes it the smaller one. Times are sums over the lane.
    """
    steps = lane.steps
    counters = count(steps)
    drafts = [step for step in steps if step.nodes]
    num_tokens = len(lane.output_tokens)
    seconds = steps[-1].ended_ms / 1e3 if steps else 0.0
    return {
        "output_tokens": num_tokens,
        "target_passes": len(steps),
        "num_drafts": counters.num_drafts,
        "drafted_tokens": counters.drafted_tokens,
        "accepted_tokens": counters.accepted_tokens,
        "acceptance_rate": counters.acceptance_rate,
        "mean_acceptance_length": counters.mean_acceptance_length,
        "mean_emitted_length": ratio(sum(len(step.outputs) for step in drafts), len(drafts)),
        "acceptance_per_position": counters.acceptance_per_position,
        "conditional_per_position": counters.conditional_per_position,
        "tokens_per_second": ratio(num_tokens, seconds),
        "draft_ms": sum(step.draft_ms for step in steps),
        "verify_ms": sum(step.verify_ms for step in steps),
        "other_ms": sum(step.other_ms for step in steps),
        "finish_reason": lane.finish,
    }
