"""What a serving engine counted, and what that leaves open about the steps behind it.

vLLM counts drafts, draft tokens and accepted tokens before a stop rule cuts the output, and generation tokens after it.
Its first token of a request comes from the prompt's pass, without a draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

from playground.engine.metrics import ratio
from playground.engine.scrape import Series


@dataclass(frozen=True)
class Counts:
    """What one engine counted; ``None`` where it does not say.

    ``plain_passes`` are passes without a draft, the first of a request included where it has none.
    """

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    generation: float | None = None
    prompt: float | None = None
    first_tokens: float | None = None
    finished: float | None = None
    plain_passes: float | None = None
    per_position: tuple[float, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        """Field by field; a sum with an unknown part is unknown."""
        names = [f.name for f in fields(self) if f.name != "per_position"]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        sums = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
        size = max(len(self.per_position), len(other.per_position))
        padded = [(*counts, *[0] * (size - len(counts))) for counts in (self.per_position, other.per_position)]
        return Counts(**sums, per_position=tuple(map(sum, zip(*padded, strict=True))))

    @property
    def has_positions(self) -> bool:
        """Whether the positions are complete: they sum to the accepted tokens."""
        return self.accepted is not None and math.isclose(sum(self.per_position), self.accepted, abs_tol=1e-6)


def counts_by_engine(series: Mapping[Series, float], gauged: Set[str] = frozenset()) -> dict[str, Counts]:
    """The counts of every engine. One that shows nothing of speculation, not even a gauge, does not speculate: 0."""
    grouped: dict[str, dict[Series, float]] = {}
    for one in sorted(series, key=lambda one: one.engine):
        grouped.setdefault(one.engine, {})[one] = series[one]
    return {engine: _counts_of(own, engine in gauged) for engine, own in grouped.items()}


def _counts_of(own: Mapping[Series, float], has_gauges: bool) -> Counts:
    flat = {one.field: value for one, value in own.items() if one.position is None}
    places = {one.position: value for one, value in own.items() if one.position is not None}
    per_position = tuple(places.get(i, 0) for i in range(max(places, default=-1) + 1))
    counts = Counts(**flat, per_position=per_position)
    if not per_position and not has_gauges and counts.drafts is counts.draft_tokens is counts.accepted is None:
        counts = replace(counts, drafts=0, draft_tokens=0, accepted=0)
    return counts


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of at least one."""
    return reduce(Counts.__add__, counts)


class Account(NamedTuple):
    """What the counts say of steps and discarded tokens: least and most; ``None`` where they say nothing.

    ``undrafted`` tokens came without a draft (first tokens and plain steps, at the least). Steps are passes after the
    prompt's own.
    """

    undrafted: float | None
    discarded_low: float | None
    discarded_high: float | None
    steps_low: float | None
    steps_high: float | None


def account(c: Counts) -> Account:
    """Solve ``generation = first tokens + plain steps + drafts + accepted - discarded`` as far as it goes.

    Plain steps and discarded tokens are both unknown: only their difference is counted. A request ends once, and throws
    away at most what one draft had accepted; so R requests throw away at most the R longest, sum_i min(R, accepted at
    i). Where plain passes are exported, nothing stays open.

    >>> account(Counts(drafts=4816, accepted=12208, generation=16990, finished=80)).discarded_low
    114
    """
    if c.generation is None or c.drafts is None:
        return Account(None, None, None, None, None)
    first = next((n for n in (c.first_tokens, c.finished) if n is not None), 0)
    if c.accepted is None:
        return Account(first, None, None, c.drafts, None)
    if c.plain_passes is not None:
        discarded, steps = c.plain_passes + c.drafts + c.accepted - c.generation, c.drafts + c.plain_passes
        return Account(c.plain_passes, discarded, discarded, steps, steps)
    balance = c.generation - first - c.drafts - c.accepted  # plain steps - discarded
    ends = next((n for n in (c.finished, c.first_tokens) if n is not None), math.inf)
    most = sum(min(ends, n) for n in c.per_position) if c.has_positions else c.accepted
    low, plain = max(0, -balance), max(0, balance)
    high = max(low, most)
    return Account(first + plain, low, high, c.drafts + plain, c.drafts + balance + high)


def figures(engines: list[Counts]) -> dict[str, Any]:
    """The figures of several engines (or one): sums first, then one division; ``None`` where there is no data."""
    if not engines:
        return figures([Counts()])
    c, accounts = total(engines), [account(each) for each in engines]
    sums = Account(*(None if None in column else sum(column) for column in zip(*accounts, strict=True)))
    per_draft = _ratio(c.accepted, c.drafts)
    reached = (c.drafts, *c.per_position)
    shown = c.per_position if c.has_positions and c.drafts else ()
    emitted = None if sums.undrafted is None else c.generation - sums.undrafted
    return {
        "acceptance_rate": _ratio(c.accepted, c.draft_tokens),
        "mean_acceptance_length": None if per_draft is None else 1 + per_draft,
        "mean_emitted_length": _ratio(emitted, c.drafts),
        "acceptance_per_position": [_ratio(n, c.drafts) for n in shown] or None,
        "conditional_per_position": [_ratio(n, at) for n, at in zip(shown, reached, strict=False)] or None,
        "discarded_tokens": sums.discarded_low,
        "discarded_high": sums.discarded_high,
        "steps_low": sums.steps_low,
        "steps_high": sums.steps_high,
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else ratio(part, whole)
