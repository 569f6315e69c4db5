"""An automaton and where a text stands in it, small enough to travel in a trace and be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from playground.engine.grammar.automaton import Automaton, Config
from playground.engine.trace import step

MAX_STATES = 1_500  # of an automaton that is drawn at all


@dataclass(frozen=True)
class DrawnState:
    """``edges``: (lowest byte, highest byte, state). ``calls``: (rule, state to return to)."""

    rule: str
    edges: tuple[tuple[int, int, int], ...]
    calls: tuple[tuple[str, int], ...]
    is_final: bool


@step
@dataclass(frozen=True)
class DrawnAutomaton:
    """The states by number, and the first state of each rule."""

    states: tuple[DrawnState, ...]
    starts: tuple[tuple[str, int], ...]
    root: str


@step
@dataclass(frozen=True)
class Place:
    """Where the text stood before a pass and after it: the stacks of states, innermost last; an empty one may end."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    forced: str  # text that must come next, after the pass


def drawn(automaton: Automaton) -> DrawnAutomaton | None:
    """``automaton`` as a step of a trace; ``None`` when it is too large to look at."""
    if len(automaton.states) > MAX_STATES:
        return None
    names = {first: rule for rule, first in automaton.starts.items()}
    states = tuple(
        DrawnState(
            state.rule,
            byte_ranges(state.bytes),
            tuple((names[first], back) for first, back in state.calls),
            state.is_final,
        )
        for state in automaton.states
    )
    return DrawnAutomaton(states, tuple(automaton.starts.items()), automaton.root)


def byte_ranges(bytes_: dict[int, int]) -> tuple[tuple[int, int, int], ...]:
    """Runs of bytes with one target.

    >>> byte_ranges({97: 1, 98: 1, 100: 2})
    ((97, 98, 1), (100, 100, 2))
    """
    runs = []
    for (to, _), group in groupby(enumerate(sorted(bytes_)), key=lambda item: (bytes_[item[1]], item[1] - item[0])):
        members = [byte for _, byte in group]
        runs.append((members[0], members[-1], to))
    return tuple(runs)


def stacks(config: Config) -> tuple[tuple[int, ...], ...]:
    """A configuration as tuples, in a fixed order."""
    return tuple(sorted(config))
