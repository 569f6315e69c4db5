"""How many tokens to draft next. A policy is a value: ``after`` returns the next one, so nothing leaks between runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol


class Length(Protocol):
    """``k`` tokens now; ``after(drafted, accepted)`` is the policy for the next step."""

    @property
    def k(self) -> int: ...
    def after(self, drafted: int, accepted: int) -> Length: ...


@dataclass(frozen=True)
class Fixed:
    """Always ``k``."""

    k: int

    def after(self, drafted: int, accepted: int) -> Fixed:
        return self


@dataclass(frozen=True)
class Heuristic:
    """Two more after a draft that was accepted whole, else one less (transformers' "heuristic" schedule).

    An empty draft says nothing and changes nothing.

    >>> Heuristic(5).after(5, 5).k, Heuristic(5).after(5, 3).k, Heuristic(3).after(0, 0).k
    (7, 4, 3)
    """

    k: int

    def after(self, drafted: int, accepted: int) -> Heuristic:
        if drafted == 0:
            return self
        return replace(self, k=self.k + 2 if accepted == drafted else max(self.k - 1, 1))


def room(k: int, remaining: int, context_left: int) -> int:
    """Draft tokens that fit: one output token per pass comes without a draft, and each node needs a position.

    >>> [room(3, remaining, 100) for remaining in (1, 2, 3, 10)]
    [0, 1, 2, 3]
    """
    return max(0, min(k, remaining - 1, context_left - 1))
