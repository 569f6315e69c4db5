"""What a grammar is made of: characters, texts, sequences, choices, repetitions and calls of named rules.

The regex parser and the JSON-schema reader both write these; ``automaton`` turns them into states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]  # code points, inclusive, sorted, disjoint


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is one sentence that names the place."""


class Unsupported(GrammarError):
    """A valid schema that an automaton of this package cannot enforce."""


@dataclass(frozen=True, eq=False)
class Chars:
    """One character out of ``ranges``."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Text:
    """Exactly these bytes."""

    data: bytes


@dataclass(frozen=True, eq=False)
class Seq:
    """The parts one after another; no parts: the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Alt:
    """One of the options; no options: nothing at all matches."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """``low`` to ``high`` times ``part``; ``high`` ``None`` is without end."""

    part: Expression
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """Whatever the rule of that name matches."""

    rule: str


Expression = Chars | Text | Seq | Alt | Repeat | Call
EMPTY = Seq(())


def text(string: str) -> Text:
    return Text(string.encode())


def seq(*parts: Expression) -> Expression:
    return parts[0] if len(parts) == 1 else Seq(parts)


def alt(*options: Expression) -> Expression:
    return options[0] if len(options) == 1 else Alt(options)


def optional(part: Expression) -> Expression:
    return Repeat(part, 0, 1)


def chars(characters: str) -> Chars:
    """One of these characters."""
    return Chars(merge([(ord(c), ord(c)) for c in characters]))


def merge(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint and joined where they touch.

    >>> merge([(5, 9), (1, 2), (3, 4), (8, 12)])
    ((1, 12),)
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All code points that are not in ``ranges`` (sorted and disjoint).

    >>> complement(((0, 9), (11, LAST)))
    ((10, 10),)
    """
    gaps, start = [], 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        gaps.append((start, LAST))
    return tuple(gaps)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """The code points in both."""
    return complement(merge([*complement(a), *complement(b)]))


def map_chars(expression: Expression, change: Callable[[Chars], Expression]) -> Expression:
    """``expression`` with every ``Chars`` replaced."""
    match expression:
        case Chars():
            return change(expression)
        case Seq(parts):
            return Seq(tuple(map_chars(part, change) for part in parts))
        case Alt(options):
            return Alt(tuple(map_chars(option, change) for option in options))
        case Repeat(part, low, high):
            return Repeat(map_chars(part, change), low, high)
        case _:
            return expression


SURROGATES = (0xD800, 0xDFFF)


def utf8(ranges: Ranges) -> list[tuple[tuple[int, int], ...]]:
    """The byte sequences that encode ``ranges``, each a tuple of inclusive byte ranges; surrogates have no encoding.

    >>> utf8(((0x61, 0x7A), (0xE9, 0xE9)))
    [((97, 122),), ((195, 195), (169, 169))]
    """
    sequences = []
    for low, high in intersect(ranges, complement((SURROGATES,))):
        for end in (0x7F, 0x7FF, 0xFFFF, LAST):  # split where the encoding grows by a byte
            if low <= min(high, end):
                sequences += _same_length(low, min(high, end))
                low = end + 1
    return sequences


def _same_length(low: int, high: int) -> list[tuple[tuple[int, int], ...]]:
    """``utf8`` of one range whose ends have equally long encodings: split until each byte varies on its own."""
    for i in range(1, len(chr(low).encode())):
        block = (1 << (6 * i)) - 1  # what the last i bytes say
        if low & ~block != high & ~block:
            if low & block:
                return _same_length(low, low | block) + _same_length((low | block) + 1, high)
            if high & block != block:
                return _same_length(low, (high & ~block) - 1) + _same_length(high & ~block, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]
