"""A byte-level automaton with a stack: rules of states, linked by bytes and by calls of other rules.

A regular language needs one rule and no call. JSON needs calls because values nest. Where the text may be is a
*configuration*: a set of stacks, each a tuple of states, the innermost rule last. The empty stack says that the text
may end here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from playground.engine.grammar.expression import Alt, Call, Chars, Expression, GrammarError, Repeat, Seq, Text, utf8

MAX_STATES = 40_000  # of one grammar, while it is built
MAX_SECONDS = 4.0
Stack = tuple[int, ...]
Config = frozenset[Stack]


@dataclass(frozen=True)
class State:
    """``bytes``: byte -> state. ``calls``: (rule's first state, state to return to). ``is_final``: the rule may end."""

    rule: str
    bytes: Mapping[int, int]
    calls: tuple[tuple[int, int], ...]
    is_final: bool


@dataclass(frozen=True)
class Automaton:
    """``starts``: rule name -> its first state. ``root`` is the rule that a whole text must match."""

    states: tuple[State, ...]
    starts: Mapping[str, int]
    root: str
    _steps: dict[tuple[Config, int], Config] = field(default_factory=dict, repr=False, compare=False)

    @property
    def start(self) -> Config:
        return self.close([(self.starts[self.root],)])

    def close(self, stacks: Iterable[Stack]) -> Config:
        """``stacks`` with calls entered and finished rules left; what stays reads a byte, or is ()."""
        todo, seen, kept = list(stacks), set(), set()
        while todo:
            stack = todo.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if not stack:
                kept.add(stack)
                continue
            outer, state = stack[:-1], self.states[stack[-1]]
            if state.bytes:
                kept.add(stack)
            if state.is_final:
                todo.append(outer)
            for first, back in state.calls:
                to = self.states[back]
                is_tail = to.is_final and not to.bytes and not to.calls
                todo.append((*outer, first) if is_tail else (*outer, back, first))
        return frozenset(kept)

    def step(self, config: Config, byte: int) -> Config:
        """The configuration after one more byte; empty when the grammar has no place for it."""
        found = self._steps.get((config, byte))
        if found is None:
            moved = [
                (*stack[:-1], to)
                for stack in config
                if stack and (to := self.states[stack[-1]].bytes.get(byte)) is not None
            ]
            found = self.close(moved) if moved else frozenset()
            if len(self._steps) > 200_000:
                self._steps.clear()
            self._steps[config, byte] = found
        return found

    def walk(self, config: Config, data: bytes) -> Config:
        for byte in data:
            if not config:
                break
            config = self.step(config, byte)
        return config

    def next_bytes(self, config: Config) -> set[int]:
        return {byte for stack in config if stack for byte in self.states[stack[-1]].bytes}

    def matches(self, data: bytes) -> bool:
        return () in self.walk(self.start, data)


class Limits:
    """How many states and seconds building may take; ``GrammarError`` names the rule where it was too much."""

    def __init__(self, states: int = MAX_STATES, seconds: float = MAX_SECONDS) -> None:
        self.states, self.seconds, self.used, self.began = states, seconds, 0, time.monotonic()

    def spend(self, rule: str, states: int = 1) -> None:
        self.used += states
        if self.used > self.states:
            raise GrammarError(f"{rule} is too large: the grammar needs more than {self.states:,} states.")
        if self.used % 256 == 0 and time.monotonic() - self.began > self.seconds:
            raise GrammarError(f"{rule} is too complex: building it took more than {self.seconds:g} s.")


def build(rules: Mapping[str, Expression], root: str, limits: Limits | None = None) -> Automaton:
    """The automaton of ``rules``. States and rules from which no text can be completed are cut.

    Raises ``GrammarError`` for a rule that calls itself before it reads a byte, for a grammar that no finite text
    matches, and for one past ``limits``.
    """
    limits = limits or Limits()
    tables = {}
    try:
        for name, expression in rules.items():
            tables[name] = _minimise(_determinise(name, _Nfa(name, expression, limits), limits))
    except RecursionError:
        raise GrammarError(f"{name} is nested too deeply.") from None
    tables = _productive(tables, root)
    _refuse_left_recursion(tables)
    return _number(tables, root)


# --- One rule: expression -> nondeterministic -> deterministic -> smallest ---------------------------------


@dataclass
class _Table:
    """A rule's states 0, 1, ...: symbol -> state. A symbol is a byte, or the name of a rule."""

    moves: list[dict[int | str, int]]
    final: set[int]


class _Nfa:
    """Edges ``(low byte, high byte, state)`` or ``(rule, state)``, and free moves, built from the end to the start."""

    def __init__(self, rule: str, expression: Expression, limits: Limits) -> None:
        self.rule, self.limits = rule, limits
        self.edges: list[list[tuple]] = []
        self.free: list[list[int]] = []
        self.known: dict[tuple[int, int], int] = {}
        self.end = self.add()
        self.start = self.before(expression, self.end)

    def add(self, *edges: tuple, free: Iterable[int] = ()) -> int:
        self.limits.spend(self.rule)
        self.edges.append(list(edges))
        self.free.append(list(free))
        return len(self.edges) - 1

    def before(self, expression: Expression, after: int) -> int:
        """The state from which ``expression`` leads to ``after``. Shared parts are built once."""
        place = (id(expression), after)
        if place not in self.known:
            self.known[place] = self._before(expression, after)
        return self.known[place]

    def _before(self, expression: Expression, after: int) -> int:
        match expression:
            case Text(data):
                for byte in reversed(data):
                    after = self.add((byte, byte, after))
                return after
            case Chars(ranges):
                return self._characters(ranges, after)
            case Seq(parts):
                for part in reversed(parts):
                    after = self.before(part, after)
                return after
            case Alt(options):
                return self.add(free=[self.before(option, after) for option in options])
            case Call(rule):
                return self.add((rule, after))
            case Repeat(part, low, high):
                return self._repeat(part, low, high, after)
        raise TypeError(expression)

    def _characters(self, ranges: tuple, after: int) -> int:
        tails: dict[tuple, int] = {(): after}  # the rest of a byte sequence -> the state that reads it
        heads = []
        for sequence in utf8(ranges):
            for i in range(len(sequence) - 1, 0, -1):
                if sequence[i:] not in tails:
                    low, high = sequence[i]
                    tails[sequence[i:]] = self.add((low, high, tails[sequence[i + 1 :]]))
            heads.append((*sequence[0], tails[sequence[1:]]))
        return self.add(*heads)

    def _repeat(self, part: Expression, low: int, high: int | None, after: int) -> int:
        self.limits.spend(self.rule, states=max(low, high or 0))
        if high is None:
            loop = self.add(free=[after])
            self.free[loop].append(self._before(part, loop))
            after = loop
        else:
            leave = after
            for _ in range(high - low):
                after = self.add(free=[leave, self._before(part, after)])
        for _ in range(low):
            after = self._before(part, after)
        return after

    def reach(self, states: Iterable[int]) -> frozenset[int]:
        todo, seen = list(states), set()
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                todo += self.free[state]
        return frozenset(state for state in seen if self.edges[state] or state == self.end)


def _determinise(rule: str, nfa: _Nfa, limits: Limits) -> _Table:
    """The subset construction."""
    start = nfa.reach([nfa.start])
    number, table, todo = {start: 0}, _Table([{}], set()), [start]
    while todo:
        subset = todo.pop()
        here = number[subset]
        if nfa.end in subset:
            table.final.add(here)
        for symbols, targets in _moves([edge for state in subset for edge in nfa.edges[state]]):
            to = nfa.reach(targets)
            if to not in number:
                limits.spend(rule)
                number[to] = len(table.moves)
                table.moves.append({})
                todo.append(to)
            table.moves[here].update(dict.fromkeys(symbols, number[to]))
    return table


def _moves(edges: list[tuple]) -> Iterable[tuple[Iterable[int | str], set[int]]]:
    """Groups of symbols that lead to the same states."""
    calls: dict[str, set[int]] = {}
    ranges = []
    for edge in edges:
        if len(edge) == 2:
            calls.setdefault(edge[0], set()).add(edge[1])
        else:
            ranges.append(edge)
    for rule, targets in calls.items():
        yield [rule], targets
    cuts = sorted({low for low, _, _ in ranges} | {high + 1 for _, high, _ in ranges})
    for low, after in pairwise(cuts):
        targets = {to for first, last, to in ranges if first <= low <= last}
        if targets:
            yield range(low, after), targets


def _minimise(table: _Table) -> _Table:
    """Merge states that no continuation tells apart (Moore's refinement)."""
    block = [int(state in table.final) for state in range(len(table.moves))]
    count = 0
    while len(set(block)) != count:
        count = len(set(block))
        seen: dict[tuple, int] = {}
        block = [
            seen.setdefault((block[s], frozenset((symbol, block[to]) for symbol, to in moves.items())), len(seen))
            for s, moves in enumerate(table.moves)
        ]
    keep = {b: s for s, b in reversed(list(enumerate(block)))}  # block -> its first state
    return _Table(
        [{symbol: block[to] for symbol, to in table.moves[keep[b]].items()} for b in range(count)],
        {block[s] for s in table.final},
    )


# --- All rules together ------------------------------------------------------------------------------------


def _productive(tables: Mapping[str, _Table], root: str) -> dict[str, _Table]:
    """Cut every state from which its rule cannot end, and every call of a rule that cannot."""
    live: dict[str, set[int]] = {name: set(table.final) for name, table in tables.items()}
    ending: set[str] = set()
    grown = True
    while grown:
        grown = False
        for name, table in tables.items():
            while new := {
                state
                for state, moves in enumerate(table.moves)
                if state not in live[name]
                and any(
                    to in live[name] and (isinstance(symbol, int) or symbol in ending) for symbol, to in moves.items()
                )
            }:
                live[name] |= new
            if 0 in live[name] and name not in ending:
                ending.add(name)
                grown = True
    if root not in ending:
        endless = sorted(set(tables) - ending)
        raise GrammarError(f"No finite text can match: {_names(endless)} never comes to an end.")
    return {
        name: _Table(
            [
                {
                    symbol: to
                    for symbol, to in moves.items()
                    if to in live[name] and (isinstance(symbol, int) or symbol in ending)
                }
                for moves in table.moves
            ],
            table.final,
        )
        for name, table in tables.items()
        if name in ending
    }


def _refuse_left_recursion(tables: Mapping[str, _Table]) -> None:
    empty = {name for name, table in tables.items() if 0 in table.final}
    first: dict[str, list[str]] = {}
    for name, table in tables.items():
        todo, seen = [0], set()
        first[name] = []
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                called = [(symbol, to) for symbol, to in table.moves[state].items() if isinstance(symbol, str)]
                first[name] += [symbol for symbol, _ in called]
                todo += [to for symbol, to in called if symbol in empty]
    cycle = find_cycle(first)
    if cycle:
        raise GrammarError(f"{' -> '.join(cycle)} refers to itself without any content between.")


def find_cycle(graph: Mapping[str, Iterable[str]]) -> list[str] | None:
    """A cycle of ``graph`` as the names along it, the first one again at the end; ``None`` when there is none."""
    done: set[str] = set()
    for root in graph:
        path, walks = [], [(root, iter(graph.get(root, ())))]
        if root in done:
            continue
        path.append(root)
        while walks:
            name, children = walks[-1]
            child = next(children, None)
            if child is None:
                walks.pop()
                path.pop()
                done.add(name)
            elif child in path:
                return [*path[path.index(child) :], child]
            elif child not in done:
                path.append(child)
                walks.append((child, iter(graph.get(child, ()))))
    return None


def _number(tables: Mapping[str, _Table], root: str) -> Automaton:
    """One numbering over the rules that ``root`` reaches."""
    order, todo = [], [root]
    while todo:
        name = todo.pop()
        if name not in order:
            order.append(name)
            todo += [symbol for moves in tables[name].moves for symbol in moves if isinstance(symbol, str)]
    base, size = {}, 0
    for name in order:
        base[name] = size
        size += len(tables[name].moves)
    states = tuple(
        State(
            rule=name,
            bytes={symbol: base[name] + to for symbol, to in moves.items() if isinstance(symbol, int)},
            calls=tuple((base[symbol], base[name] + to) for symbol, to in moves.items() if isinstance(symbol, str)),
            is_final=state in tables[name].final,
        )
        for name in order
        for state, moves in enumerate(tables[name].moves)
    )
    return Automaton(states, base, root)


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
