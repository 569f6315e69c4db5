"""A byte-level automaton with a stack: rules of states, linked by bytes and by calls of other rules.

A regular language needs one rule and no call. JSON needs calls because values nest. Where the text may be is a
*configuration*: a set of stacks, each a tuple of states, the innermost rule last. The empty stack says that the text
may end here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from playground.engine.grammar.expression import Expression, GrammarError
from playground.engine.grammar.states import Limits, Nfa, Table, determinise, minimise

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


def build(rules: Mapping[str, Expression], root: str, limits: Limits | None = None) -> Automaton:
    """The automaton of ``rules``. States and rules from which no text can be completed are cut.

    Raises ``GrammarError`` for a rule that calls itself before it reads a byte, for a grammar that no finite text
    matches, and for one past ``limits``.
    """
    limits = limits or Limits()
    tables = {}
    try:
        for name, expression in rules.items():
            tables[name] = minimise(name, determinise(name, Nfa(name, expression, limits), limits), limits)
    except RecursionError:
        raise GrammarError(f"{name} is nested too deeply.") from None
    tables = _productive(tables, root)
    _refuse_left_recursion(tables)
    return _number(tables, root)


def _productive(tables: Mapping[str, Table], root: str) -> dict[str, Table]:
    """Cut every state from which its rule cannot end, and every call of a rule that cannot."""
    before: dict[tuple[str, int], list[tuple[int, int | str]]] = {}  # state -> (state that leads there, symbol)
    for name, table in tables.items():
        for state, moves in enumerate(table.moves):
            for symbol, to in moves.items():
                before.setdefault((name, to), []).append((state, symbol))
    live: dict[str, set[int]] = {name: set() for name in tables}
    ending: set[str] = set()
    waiting: dict[str, list[tuple[str, int]]] = {}  # rule -> states that come alive once it is known to end
    todo = [(name, state) for name, table in tables.items() for state in table.final]
    while todo:
        name, state = todo.pop()
        if state in live[name]:
            continue
        live[name].add(state)
        for source, symbol in before.get((name, state), ()):
            if isinstance(symbol, int) or symbol in ending:
                todo.append((name, source))
            else:
                waiting.setdefault(symbol, []).append((name, source))
        if state == 0:
            ending.add(name)
            todo += waiting.pop(name, [])
    if root not in ending:
        endless = sorted(set(tables) - ending)
        raise GrammarError(f"No finite text can match: {_names(endless)} never comes to an end.")
    return {
        name: Table(
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


def _refuse_left_recursion(tables: Mapping[str, Table]) -> None:
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


def _number(tables: Mapping[str, Table], root: str) -> Automaton:
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
