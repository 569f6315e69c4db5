"""JSON numbers between bounds, as expressions: integers exactly, other numbers with up to six decimals."""

from __future__ import annotations

import math
from fractions import Fraction

from playground.engine.grammar.expression import EMPTY, Alt, Chars, Expression, Repeat, alt, chars, optional, seq, text

DIGIT = chars("0123456789")
POSITIVE = seq(chars("123456789"), Repeat(DIGIT))
INTEGER = alt(text("0"), seq(optional(text("-")), POSITIVE))
NUMBER = seq(
    optional(text("-")),
    alt(text("0"), POSITIVE),
    optional(seq(text("."), Repeat(DIGIT, 1))),
    optional(seq(chars("eE"), optional(chars("+-")), Repeat(DIGIT, 1))),
)
NUM_DECIMALS = 6  # of a bounded number that is no integer
SCALE = 10**NUM_DECIMALS


def integers(low: int | None, high: int | None) -> Expression:
    """Every integer from ``low`` to ``high``, both included; ``None`` is no bound."""
    options: list[Expression] = []
    if low is None or low < 0:
        most = None if low is None else -low
        least = 1 if high is None or high >= 0 else -high
        options.append(seq(text("-"), _naturals(least, most)))
    if (low is None or low <= 0) and (high is None or high >= 0):
        options.append(text("0"))
    if high is None or high > 0:
        options.append(_naturals(1 if low is None or low < 1 else low, high))
    return Alt(tuple(options))


def _naturals(low: int, high: int | None) -> Expression:
    """Integers from ``low`` >= 1 up, by number of digits."""
    size = len(str(low))
    top = size if high is None else len(str(high))
    options = [
        _digits(str(low) if n == size else "1" + "0" * (n - 1), str(high) if high is not None and n == top else "9" * n)
        for n in range(size, top + 1)
    ]
    if high is None:
        options.append(seq(chars("123456789"), Repeat(DIGIT, size)))
    return Alt(tuple(options))


def _digits(low: str, high: str) -> Expression:
    """Strings of as many digits as ``low`` and ``high`` have, between the two.

    ``_digits("25", "31")`` is ``2[5-9] | 3[0-1]``.
    """
    if not low:
        return EMPTY
    if low > high:
        return Alt(())
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(DIGIT, len(low), len(low))
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    if first == last:
        return seq(text(low[0]), _digits(low[1:], high[1:]))
    options = [seq(text(low[0]), _digits(low[1:], nines)), seq(text(high[0]), _digits(zeros, high[1:]))]
    if last - first > 1:
        options.append(seq(Chars(((0x30 + first + 1, 0x30 + last - 1),)), _digits(zeros, nines)))
    return Alt(tuple(options))


def decimals(low: Fraction | None, high: Fraction | None, above: bool = False, below: bool = False) -> Expression:
    """Numbers from ``low`` to ``high`` (excluded: ``above``, ``below``), written plainly, with at most six decimals."""
    least = None if low is None else math.floor(low * SCALE) + 1 if above else math.ceil(low * SCALE)
    most = None if high is None else math.ceil(high * SCALE) - 1 if below else math.floor(high * SCALE)
    options: list[Expression] = []
    if least is None or least < 0:
        zero = most is None or most >= 0
        size = None if least is None else -least
        options.append(seq(text("-"), _magnitudes(0 if zero else -most, size, bare_zero=False)))
    if most is None or most >= 0:
        options.append(_magnitudes(max(0, least or 0), most))
    return Alt(tuple(options))


def _magnitudes(least: int, most: int | None, bare_zero: bool = True) -> Expression:
    """Numbers from ``least`` up, counted in millionths. Without ``bare_zero``, 0 needs a decimal point."""
    if most is not None and least > most:
        return Alt(())
    whole, first = divmod(least, SCALE)
    free = _fraction(0, SCALE - 1)
    if most is None:
        return Alt((_with_fraction(whole, first, SCALE - 1, bare_zero), seq(_naturals(whole + 1, None), free)))
    top, last = divmod(most, SCALE)
    if whole == top:
        return _with_fraction(whole, first, last, bare_zero)
    options = [_with_fraction(whole, first, SCALE - 1, bare_zero), _with_fraction(top, 0, last, bare_zero)]
    if top - whole > 1:
        options.append(seq(_naturals(whole + 1, top - 1), free))
    return Alt(tuple(options))


def _with_fraction(whole: int, first: int, last: int, bare_zero: bool) -> Expression:
    """``whole`` with decimals from ``first`` to ``last`` millionths."""
    return seq(text(str(whole)), _fraction(first, last, bare=bare_zero or whole > 0))


def _fraction(first: int, last: int, bare: bool = True) -> Expression:
    """``.`` and one to six decimals, or nothing where that says zero (and ``bare`` allows it)."""
    low, high = f"{first:0{NUM_DECIMALS}}", f"{last:0{NUM_DECIMALS}}"
    point = seq(text("."), _prefixes(low, high, at_least=1))
    return optional(point) if bare and first == 0 else point


def _prefixes(low: str, high: str, at_least: int = 0) -> Expression:
    """Digit strings, at most as long as ``low``, that lie between ``low`` and ``high`` once filled up with zeros."""
    rest = len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    if rest < 0:
        return EMPTY
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(DIGIT, at_least, len(low))
    options = [
        seq(text(str(d)), _prefixes(low[1:] if d == int(low[0]) else zeros, high[1:] if d == int(high[0]) else nines))
        for d in range(int(low[0]), int(high[0]) + 1)
    ]
    if at_least == 0 and set(low) == {"0"}:
        options.append(EMPTY)
    return Alt(tuple(options))
