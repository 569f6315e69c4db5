"""One rule of a grammar as states: from its expression, nondeterministic, to the smallest deterministic table."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from playground.engine.grammar.expression import Alt, Call, Chars, Expression, GrammarError, Repeat, Seq, Text, utf8

MAX_STATES = 40_000  # of one grammar, while it is built
MAX_SECONDS = 4.0


class Limits:
    """How many states and seconds building may take; ``GrammarError`` names the rule where it was too much."""

    def __init__(self, states: int = MAX_STATES, seconds: float = MAX_SECONDS) -> None:
        self.states, self.seconds, self.used, self.began = states, seconds, 0, time.monotonic()

    def spend(self, rule: str, states: int = 1) -> None:
        self.used += states
        if self.used > self.states:
            raise GrammarError(f"{rule} is too large: the grammar needs more than {self.states:,} states.")
        if self.used % 256 == 0:
            self.pause(rule)

    def pause(self, rule: str) -> None:
        if time.monotonic() - self.began > self.seconds:
            raise GrammarError(f"{rule} is too complex: building it took more than {self.seconds:g} s.")


@dataclass
class Table:
    """A rule's states 0, 1, ...: symbol -> state. A symbol is a byte, or the name of a rule."""

    moves: list[dict[int | str, int]]
    final: set[int]


class Nfa:
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


def determinise(rule: str, nfa: Nfa, limits: Limits) -> Table:
    """The subset construction."""
    start = nfa.reach([nfa.start])
    number, table, todo = {start: 0}, Table([{}], set()), [start]
    while todo:
        limits.pause(rule)
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


def minimise(rule: str, table: Table, limits: Limits) -> Table:
    """Merge states that no continuation tells apart.

    Blocks of states are split until all states of a block lead to the same blocks (Moore 1956). After a split the
    largest part keeps its number, so that only what leads to the smaller ones is looked at again (Hopcroft 1971).
    """
    leads, before = _arrows(table)
    block = [int(state in table.final) for state in range(len(table.moves))]
    members: list[set[int]] = [{s for s, b in enumerate(block) if b == number} for number in (0, 1)]
    dirty = set(range(len(block)))
    while dirty:
        touched: dict[int, set[int]] = {}
        for state in dirty:
            touched.setdefault(block[state], set()).add(state)
        dirty = set()
        for number, states in touched.items():
            limits.pause(rule)
            parts: dict[Any, set[int]] = {None: members[number] - states}
            for state in states:
                parts.setdefault(_signature(leads[state], block), set()).add(state)
            largest, *rest = sorted(filter(None, parts.values()), key=len, reverse=True)
            members[number] = largest
            for part in rest:
                for state in part:
                    block[state] = len(members)
                members.append(part)
                dirty |= {source for state in part for source in before[state]}
    order = {number: i for i, number in enumerate(dict.fromkeys(block))}  # state 0 stays the first
    keep = {order[b]: s for s, b in reversed(list(enumerate(block)))}
    return Table(
        [{symbol: order[block[to]] for symbol, to in table.moves[keep[i]].items()} for i in range(len(order))],
        {order[block[s]] for s in table.final},
    )


def _arrows(table: Table) -> tuple[list[list[tuple[int, int]]], list[set[int]]]:
    """For each state, (target, symbols that lead there as bits of one number), and the states that lead to it."""
    names: dict[int | str, int] = {}
    leads, before = [], [set() for _ in table.moves]
    for state, moves in enumerate(table.moves):
        symbols: dict[int, int] = {}
        for symbol, to in moves.items():
            bit = symbol if isinstance(symbol, int) else 256 + names.setdefault(symbol, len(names))
            symbols[to] = symbols.get(to, 0) | 1 << bit
            before[to].add(state)
        leads.append(list(symbols.items()))
    return leads, before


def _signature(leads: list[tuple[int, int]], block: list[int]) -> frozenset[tuple[int, int]]:
    merged: dict[int, int] = {}
    for to, symbols in leads:
        merged[block[to]] = merged.get(block[to], 0) | symbols
    return frozenset(merged.items())
