import itertools
import re

import pytest

from playground.engine.grammar.automaton import build
from playground.engine.grammar.expression import LAST, GrammarError, complement, merge, utf8
from playground.engine.grammar.regex import parse_pattern, parse_regex


def automaton(expression):
    return build({"regex": expression}, "regex")


SAME_AS_RE = [
    "",
    "a",
    "ab|c",
    "a*b+",
    "(ab)*",
    "(a|b){2,3}",
    "a{2}",
    "a{1,}",
    "(a?b){0,2}c",
    "[^a]b?",
    "[ab]+c",
    "(a*)*",
    "(a|ab)(c|bc)",
    "a*?b",
    "(?:a|bc)+",
    "(?P<x>a)b".replace("P", ""),
    "^abc$",
    "^a|b$",
    "a||b",
    "a{0}b",
    "[a-c]{2}",
    r"\x61\u0062",
    "(a|b|c)(a|b)?",
]


@pytest.mark.parametrize("pattern", SAME_AS_RE)
def test_a_regex_matches_what_the_standard_library_matches(pattern):
    ours = automaton(parse_regex(pattern))
    theirs = re.compile(pattern.replace("(?<", "(?P<"))
    for size in range(5):
        for letters in itertools.product("abc", repeat=size):
            word = "".join(letters)
            assert ours.matches(word.encode()) == bool(theirs.fullmatch(word)), word


@pytest.mark.parametrize("pattern", ["b", "^b", "b$", "^b$", "a|^b", "^(?:a|b)$", "", "ab+c", "^a|b$"])
def test_a_pattern_is_searched_for_as_json_schema_says(pattern):
    ours = automaton(parse_pattern(pattern))
    for size in range(5):
        for letters in itertools.product("abc", repeat=size):
            word = "".join(letters)
            assert ours.matches(word.encode()) == bool(re.search(pattern, word)), word


@pytest.mark.parametrize("symbol", "dwsDWS")
def test_classes_are_those_of_ecma(symbol):
    ours = automaton(parse_regex("\\" + symbol))
    flag = re.ASCII if symbol in "dwDW" else 0
    for point in [*range(0x300), 0x1680, 0x2009, 0x2028, 0x3000, 0xFEFF, 0x1F600, 0x0660]:
        if point in (0xFEFF, 0x1C, 0x1D, 0x1E, 0x1F, 0x85):  # where Python's space and ECMA's differ
            continue
        assert ours.matches(chr(point).encode()) == bool(re.fullmatch("\\" + symbol, chr(point), flag)), hex(point)


def test_a_dot_is_any_character_but_a_line_end():
    ours = automaton(parse_regex("."))
    assert all(ours.matches(c.encode()) for c in ("a", "é", "漢", "😀", "\0"))
    assert not any(ours.matches(c.encode()) for c in ("\n", "\r", "\u2028", "\u2029", "", "ab"))


def test_a_class_of_emoji_reads_its_bytes_one_by_one():
    ours = automaton(parse_regex("[😀-🙏]"))
    for point in range(0x1F5F0, 0x1F660):
        assert ours.matches(chr(point).encode()) == (0x1F600 <= point <= 0x1F64F)
    assert not ours.matches(b"\xf0\x9f\x98")


def test_utf8_covers_exactly_the_code_points():
    ranges = merge([(0x41, 0x43), (0x7E, 0x90), (0x7FF, 0x801), (0xD7FF, 0xE001), (0xFFFE, 0x10010), (0x10FFF0, LAST)])
    wanted = {chr(p).encode() for low, high in ranges for p in range(low, high + 1) if not 0xD800 <= p <= 0xDFFF}
    found = set()
    for sequence in utf8(ranges):
        found |= {bytes(b) for b in itertools.product(*(range(low, high + 1) for low, high in sequence))}
    assert found == wanted
    assert complement(complement(ranges)) == ranges


@pytest.mark.parametrize(
    ("pattern", "position", "word"),
    [
        ("a(b", 2, "never closed"),
        ("a)b", 2, "closes nothing"),
        ("a[bc", 2, "never closed"),
        ("*a", 1, "nothing to repeat"),
        ("a{4,2}", 2, "backwards"),
        ("a{x}", 2, "count"),
        ("a(?=b)", 2, "lookaround"),
        ("(?<!a)b", 1, "lookaround"),
        (r"(a)\1", 4, "back references"),
        (r"\bfoo", 1, "word boundaries"),
        (r"\p{L}", 1, "Unicode classes"),
        ("(?i)a", 1, "flags"),
        ("a^b", 2, "end of the whole"),
        ("a$b", 2, "end of the whole"),
        ("(^a)", 2, "end of the whole"),
        ("[]", 1, "empty"),
        ("[b-a]", 4, "backwards"),
        (r"\u12", 1, "hexadecimal"),
        ("a++", 3, "possessive"),
        ("a\\", 2, "escape"),
    ],
)
def test_an_error_names_the_position(pattern, position, word):
    with pytest.raises(GrammarError, match=rf"character {position}: .*{word}"):
        parse_regex(pattern)


@pytest.mark.parametrize(
    "pattern", ["(" * 5000 + ")" * 5000, "(((a{99}){99}){99}){99}", "(a|b)*a(a|b){40}", "a{9999999}"]
)
def test_an_explosion_is_an_error_in_time(pattern):
    with pytest.raises(GrammarError, match=r"(nested|large|complex)"):
        automaton(parse_regex(pattern))
