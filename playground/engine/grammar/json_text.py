"""Pieces of JSON text as expressions: strings with their escapes, and object keys that differ from given names."""

from __future__ import annotations

import json
from collections.abc import Sequence

from playground.engine.grammar.expression import (
    LAST,
    Alt,
    Chars,
    Expression,
    Ranges,
    Repeat,
    Seq,
    alt,
    chars,
    complement,
    intersect,
    map_chars,
    merge,
    seq,
    text,
)

RAW: Ranges = intersect(((0x20, LAST),), complement(((0x22, 0x22), (0x5C, 0x5C))))  # needs no escape in a string
SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
HEX = chars("0123456789abcdefABCDEF")
QUOTE = text('"')
BODY = Repeat(alt(Chars(RAW), seq(text("\\"), alt(chars('"\\/bfnrt'), seq(text("u"), Repeat(HEX, 4, 4))))))
STRING = seq(QUOTE, BODY, QUOTE)


def hex_digit(value: int) -> Expression:
    return chars(f"{value:x}{value:X}") if value > 9 else text(f"{value:x}")


def code_escape(point: int) -> Expression:
    """``\\uXXXX`` of a character, with hexadecimal letters in either case; two of them beyond U+FFFF."""
    units = chr(point).encode("utf-16-be", "surrogatepass")
    parts: list[Expression] = []
    for i in range(0, len(units), 2):
        parts.append(text("\\u"))
        parts += [hex_digit(nibble) for byte in units[i : i + 2] for nibble in (byte >> 4, byte & 15)]
    return seq(*parts)


def one_character() -> Expression:
    """One decoded character: raw, or an escape. A surrogate pair is one; a lone surrogate is none."""
    d, high, low = hex_digit(13), chars("89abAB"), chars("cdefCDEF")
    plain = alt(
        seq(chars("0123456789abcefABCEF"), Repeat(HEX, 3, 3)),
        seq(d, chars("01234567"), Repeat(HEX, 2, 2)),
    )
    pair = seq(d, high, Repeat(HEX, 2, 2), text("\\u"), d, low, Repeat(HEX, 2, 2))
    return alt(Chars(RAW), seq(text("\\"), alt(chars('"\\/bfnrt'), seq(text("u"), alt(plain, pair)))))


def in_json(expression: Expression) -> Expression:
    """``expression`` over decoded characters as it stands in a JSON string: escaped where it must be, else raw."""
    return map_chars(expression, _written)


def _written(leaf: Chars) -> Expression:
    options: list[Expression] = []
    raw = intersect(leaf.ranges, RAW)
    if raw:
        options.append(Chars(raw))
    for point in [*range(0x20), 0x22, 0x5C]:
        if any(low <= point <= high for low, high in leaf.ranges):
            short = SHORT.get(chr(point))
            options.append(text("\\" + short) if short else code_escape(point))
    return Alt(tuple(options))


def literal(value: object) -> Expression:
    """A constant, written compactly, as ``json.dumps`` does with ``,`` and ``:``."""
    return text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def key(name: str) -> Expression:
    return text(json.dumps(name, ensure_ascii=False))


def other_key(names: Sequence[str]) -> Expression:
    """A key that is none of ``names``, however escaped. Surrogate escapes are left out while a name is possible."""
    return seq(QUOTE, _other(sorted(set(names))))


def _other(names: list[str]) -> Expression:
    """What may follow in a key, up to its closing quote, so that the rest is none of ``names``."""
    if not names:
        return seq(BODY, QUOTE)
    first = sorted({name[0] for name in names if name})
    options: list[Expression] = [] if "" in names else [QUOTE]
    for letter in first:
        rest = [name[1:] for name in names if name.startswith(letter)]
        options.append(seq(_spellings(letter), _other(rest)))
    taken = merge([(ord(letter), ord(letter)) for letter in first])
    others = [Chars(intersect(RAW, complement(taken))), seq(text("\\u"), _codes_except({ord(c) for c in first}))]
    others += [text("\\" + short) for character, short in SHORT.items() if character not in first]
    options.append(seq(Alt(tuple(others)), BODY, QUOTE))
    return Alt(tuple(options))


def _spellings(letter: str) -> Expression:
    options = [code_escape(ord(letter))]
    if any(low <= ord(letter) <= high for low, high in RAW):
        options.append(text(letter))
    if letter in SHORT:
        options.append(text("\\" + SHORT[letter]))
    return Alt(tuple(options))


def _codes_except(points: set[int], prefix: int = 0, size: int = 0) -> Expression:
    """Four hexadecimal digits that name none of ``points`` and no surrogate."""
    options: list[Expression] = []
    for digit in range(16):
        value, rest = prefix * 16 + digit, 3 - size
        low, high = value << (4 * rest), ((value + 1) << (4 * rest)) - 1
        if low >= 0xD800 and high <= 0xDFFF:
            continue
        clash = any(low <= point <= high for point in points) or (low <= 0xD800 and high >= 0xDFFF)
        if not clash:
            options.append(Seq((hex_digit(digit), Repeat(HEX, rest, rest))))
        elif rest:
            options.append(Seq((hex_digit(digit), _codes_except(points, value, size + 1))))
    return Alt(tuple(options))
