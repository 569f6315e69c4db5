"""Regular expressions in the dialect that JSON Schema means (ECMA-262), without what no automaton can do."""

from __future__ import annotations

from playground.engine.grammar.expression import (
    EMPTY,
    LAST,
    Chars,
    Expression,
    GrammarError,
    Ranges,
    Repeat,
    alt,
    complement,
    merge,
    seq,
)

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = merge(
    [
        *[(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)],
        *[(0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)],
    ]
)
DOT: Ranges = complement(merge([(10, 10), (13, 13), (0x2028, 0x2029)]))  # everything but line ends
ANY = Chars(((0, LAST),))
CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE, "D": complement(DIGIT), "W": complement(WORD), "S": complement(SPACE)}
CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
SYNTAX = "^$\\.*+?()[]{}|/-"


def parse_regex(pattern: str) -> Expression:
    """Texts that match ``pattern`` from their first to their last character.

    ``^`` and ``$`` may stand at the ends of an alternative. Raises ``GrammarError`` that names the position of what is
    not understood: lookaround, back references, word boundaries, flags and Unicode classes are not supported.
    """
    return _parse(pattern, search=False)


def parse_pattern(pattern: str) -> Expression:
    """Texts that contain a match of ``pattern``, as the keyword ``pattern`` asks: ends are free unless anchored."""
    return _parse(pattern, search=True)


def _parse(pattern: str, search: bool) -> Expression:
    parser = _Parser(pattern)
    try:
        options = [parser.alternative(top=True)]
        while parser.take("|"):
            options.append(parser.alternative(top=True))
    except RecursionError:
        raise GrammarError("The regex is nested too deeply.") from None
    if parser.peek():
        raise parser.error("this ) closes nothing")
    free = Repeat(ANY)
    if not search:
        return alt(*(body for body, _, _ in options))
    return alt(*(seq(EMPTY if first else free, body, EMPTY if last else free) for body, first, last in options))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def error(self, reason: str, at: int | None = None) -> GrammarError:
        position = self.at if at is None else at
        return GrammarError(f"The regex fails at character {position + 1}: {reason}.")

    def peek(self, length: int = 1) -> str:
        return self.pattern[self.at : self.at + length]

    def take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def alternative(self, top: bool = False) -> tuple[Expression, bool, bool]:
        """One alternative, and whether it is anchored at its start and at its end."""
        first = top and self.take("^")
        parts: list[Expression] = []
        last = False
        while self.peek() and self.peek() not in "|)":
            if top and self.peek() == "$" and self.pattern[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                last = True
                break
            parts.append(self.repeated())
        return seq(*parts) if parts else EMPTY, first, last

    def repeated(self) -> Expression:
        atom = self.atom()
        while (symbol := self.peek()) and symbol in "*+?{":
            atom = self.quantifier(atom)
        return atom

    def quantifier(self, atom: Expression) -> Expression:
        at = self.at
        symbol = self.peek()
        self.at += 1
        if symbol == "{":
            low, high = self.bounds(at)
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
        self.take("?")  # lazy: the same texts match
        if self.peek() == "+":
            raise self.error("possessive quantifiers are not supported")
        return Repeat(atom, low, high)

    def bounds(self, at: int) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at : end].partition(",") if end >= 0 else ("", "", "")
        if not (low.isdecimal() and len(low) < 8 and (high == "" or (high.isdecimal() and len(high) < 8))):
            raise self.error("{ must start a count such as {2}, {2,} or {2,5}; write \\{ for the character", at)
        self.at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            raise self.error(f"the count {{{low},{high}}} runs backwards", at)
        return least, most

    def atom(self) -> Expression:
        at, symbol = self.at, self.peek()
        self.at += 1
        if symbol == "(":
            return self.group(at)
        if symbol == "[":
            return Chars(self.bracket(at))
        if symbol == ".":
            return Chars(DOT)
        if symbol == "\\":
            return Chars(self.escape(at))
        if symbol in "*+?{":
            raise self.error(f"{symbol} has nothing to repeat", at)
        if symbol in "^$":
            raise self.error(
                f"{symbol} may stand only at an end of the whole pattern; write \\{symbol} for the character", at
            )
        return Chars(((ord(symbol), ord(symbol)),))

    def group(self, at: int) -> Expression:
        if self.take("?"):
            if self.take("<") and self.peek() not in ("=", "!"):
                end = self.pattern.find(">", self.at)
                if end < 0:
                    raise self.error("this group name has no >", at)
                self.at = end + 1
            elif self.pattern[self.at - 1] == "<" or self.peek() in ("=", "!"):
                raise self.error("lookaround is not supported", at)
            elif not self.take(":"):
                raise self.error("group flags are not supported", at)
        options = [self.alternative()[0]]
        while self.take("|"):
            options.append(self.alternative()[0])
        if not self.take(")"):
            raise self.error("this ( is never closed", at)
        return alt(*options)

    def escape(self, at: int, in_class: bool = False) -> Ranges:
        symbol = self.peek()
        self.at += 1
        if symbol in CLASSES:
            return CLASSES[symbol]
        if symbol in CONTROLS and symbol:
            point = CONTROLS[symbol]
        elif symbol in ("x", "u"):
            point = self.code(at, symbol)
        elif symbol == "b" and in_class:
            point = 8
        elif symbol in ("b", "B"):
            raise self.error("word boundaries are not supported", at)
        elif symbol in ("p", "P"):
            raise self.error("Unicode classes are not supported", at)
        elif symbol.isdecimal() or symbol == "k":
            raise self.error("back references are not supported", at)
        elif symbol == "" or symbol.isalnum():
            raise self.error(f"\\{symbol} is not a known escape", at)
        else:
            point = ord(symbol)
        return ((point, point),)

    def code(self, at: int, kind: str) -> int:
        if kind == "u" and self.take("{"):
            end = self.pattern.find("}", self.at)
            digits, self.at = (self.pattern[self.at : end], end + 1) if end >= 0 else ("", self.at)
        else:
            size = 2 if kind == "x" else 4
            digits, self.at = self.peek(size), self.at + size
            if len(digits) < size:
                digits = ""
        try:
            point = int(digits, 16)
        except ValueError:
            point = LAST + 1
        if point > LAST:
            raise self.error(f"\\{kind} needs hexadecimal digits of a character", at)
        return point

    def bracket(self, at: int) -> Ranges:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            if not self.peek():
                raise self.error("this [ is never closed", at)
            low = self.member()
            is_single = len(low) == 1 and low[0][0] == low[0][1]
            if self.peek() == "-" and self.peek(2) != "-]" and is_single and len(self.peek(2)) == 2:
                self.at += 1
                start = self.at
                high = self.member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise self.error("this range of characters runs backwards or has a class as its end", start)
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges += low
        if not ranges and not negated:
            raise self.error("this class is empty and can match nothing", at)
        return complement(merge(ranges)) if negated else merge(ranges)

    def member(self) -> Ranges:
        at, symbol = self.at, self.peek()
        self.at += 1
        if symbol == "\\":
            return self.escape(at, in_class=True)
        return ((ord(symbol), ord(symbol)),)
