"""The exact law of whatever consumes coins: the shipped function is run over all of its coins, nothing is sampled.

A coin is one of 2^53 equally likely numbers i * 2^-53. A function that reads coins is a step function of each of them.
For the first coin it asks for, the steps are found by bisection and each piece is weighed by its length; the next coin
is then integrated inside each piece, and so on. The rule itself is a black box: a wrong rule gives its own wrong law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playground.engine.sampling import Coin, coins
from playground.engine.tree import ROOT, Draft
from playground.engine.verify import Rule

NUM_VALUES = 2**53  # of one coin
NUM_CELLS = 8  # a coin's range is first looked at on this grid
Key = tuple[int, str]  # (position, purpose)
Prefix = dict[Key, int]  # coins that are held fixed, in the order they were asked for
Law = dict[Hashable, float]  # outcome -> probability
Sample = Callable[[Coin], Hashable]

# What the coins behind the one under study do while its steps are looked for: all low, all high, and a mixture.
_REST: tuple[Coin, ...] = (lambda *_: 0.0, lambda *_: 1 - 2.0**-53, coins(1))


def exact_law(sample: Sample, hints: Iterable[float] = ()) -> Law:
    """Outcome -> probability of ``sample(coin)``, to about 1e-15.

    ``sample`` must depend on nothing but its coins, which it asks for one by one as ``coin(position, purpose)``.
    Its outcome should tell what each coin decided (a drafted token too, not only what became of it): bisection passes
    over a piece narrower than a grid cell when its neighbours on both sides look alike. ``hints`` are places in [0, 1]
    at which a coin may matter, such as a cumulated law. They are looked at, never believed.

    >>> exact_law(lambda coin: coin(0, "a") < 0.25 and coin(0, "b") < 0.5)
    {True: 0.125, False: 0.875}
    """
    # rounding may put the step a few values beside its hint
    near = {min(max(round(hint * NUM_VALUES) + d, 0), NUM_VALUES - 1) for hint in hints for d in (-4, 4)}
    grid = {i * (NUM_VALUES // NUM_CELLS) for i in range(NUM_CELLS)}
    return _law(sample, {}, near, defaultdict(lambda: grid))


def _law(sample: Sample, fixed: Prefix, near: set[int], places: dict[Key, set[int]]) -> Law:
    """Each coin is looked at ``near`` its hints and at its ``places``: a grid, and from then on its latest steps."""
    asked, outcome = _run(sample, fixed, _REST[0])
    if len(asked) == len(fixed):
        return {outcome: 1.0}
    key = asked[len(fixed)]
    law: Law = {}
    steps = _steps(sample, fixed, key, near | places[key])
    places[key] = {place for step in steps for place in (max(step - 1, 0), step)}
    for low, high in zip(steps, [*steps[1:], NUM_VALUES], strict=True):
        inner = _law(sample, {**fixed, key: (low + high) // 2}, near, places)
        for outcome, probability in inner.items():
            law[outcome] = law.get(outcome, 0.0) + probability * ((high - low) / NUM_VALUES)
    return law


def _run(sample: Sample, fixed: Prefix, rest: Coin) -> tuple[list[Key], Hashable]:
    """Which coins ``sample`` asked for, in order, and its outcome; coins that are not ``fixed`` come from ``rest``."""
    asked: dict[Key, None] = {}

    def coin(position: int, purpose: str) -> float:
        key = (position, purpose)
        asked[key] = None
        return fixed[key] / NUM_VALUES if key in fixed else rest(position, purpose)

    outcome = sample(coin)
    return list(asked), outcome


def _steps(sample: Sample, fixed: Prefix, key: Key, points: set[int]) -> list[int]:
    """Values of coin ``key`` at which a new piece begins, the first being 0."""
    steps = {0}
    for rest in _REST:

        def look(value: int, rest: Coin = rest) -> Any:
            asked, outcome = _run(sample, {**fixed, key: value}, rest)
            return tuple(asked), outcome

        places = sorted(points | steps | {s - 1 for s in steps if s} | {NUM_VALUES - 1})
        looks = [look(place) for place in places]
        for i in range(len(places) - 1):
            steps |= set(_bisect(look, places[i], looks[i], places[i + 1], looks[i + 1]))
        if all(asked[-1] == key for asked, _ in looks):
            break  # the last coin: no other one can tell more
        points = set()  # the others only have to confirm the pieces
    return sorted(steps)


def _bisect(look: Callable[[int], Any], low: int, at_low: Any, high: int, at_high: Any) -> Iterator[int]:
    """The steps in (low, high]."""
    if at_low == at_high:
        return
    if high - low == 1:
        yield high
        return
    middle = (low + high) // 2
    at_middle = look(middle)
    yield from _bisect(look, low, at_low, middle, at_middle)
    yield from _bisect(look, middle, at_middle, high, at_high)


class FirstToken(NamedTuple):
    """Law of the first output token, token by token: ``law[x] = accepted[x] + recovered[x]``."""

    law: tuple[float, ...]
    accepted: tuple[float, ...]  # x was drafted and stands
    recovered: tuple[float, ...]  # x was put out after a rejection

    @property
    def acceptance(self) -> float:
        return sum(self.accepted)


Propose = Callable[[Tensor, Coin], tuple[int, Tensor | None]]  # (q, coin) -> drafted token, the law declared for it


def first_token(rule: Rule, p: Tensor, q: Tensor, propose: Propose, coin: Coin) -> tuple[int, bool]:
    """The first output token, and whether it is the drafted one, accepted.

    ``propose`` drafts one token from ``q`` ``[vocab]``; the target says ``p`` here and after it.
    """
    token, declared = propose(q, coin)
    draft = Draft((token,), (ROOT,), None if declared is None else declared[None])
    verdict = rule(draft, torch.stack([p, p]), coin, 0)
    return (token, True) if verdict.path else (verdict.token, False)


def first_token_law(rule: Rule, p: Tensor, q: Tensor, propose: Propose) -> FirstToken:
    """The law of ``first_token`` over all of its coins; ``p`` and ``q`` are ``[vocab]``.

    >>> drawn = lambda q, coin: (draw(q, coin(0, "draft")), q)  # drawn from q and declared so
    >>> argmax_soft_q = lambda q, coin: (int(q.argmax()), q)  # the mistake: chosen, yet declared as drawn
    >>> one_hot = lambda q, coin: (int(q.argmax()), None)  # chosen, and declared so
    """
    p, q = p.double(), q.double()

    def sample(coin: Coin) -> tuple[int, int, bool]:
        drafted, declared = propose(q, coin)
        return drafted, *first_token(rule, p, q, lambda q, coin: (drafted, declared), coin)

    accepted, recovered = [0.0] * len(p), [0.0] * len(p)
    hints = torch.cat([p.cumsum(0), q.cumsum(0)]).tolist()
    for (_, token, stood), probability in exact_law(sample, hints).items():
        (accepted if stood else recovered)[token] += probability
    return FirstToken(tuple(map(sum, zip(accepted, recovered, strict=True))), tuple(accepted), tuple(recovered))
