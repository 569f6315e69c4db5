import itertools
import json
from fractions import Fraction

import pytest

from playground.engine.grammar.automaton import build
from playground.engine.grammar.numbers import INTEGER, NUMBER, decimals, integers


def automaton(expression):
    return build({"n": expression}, "n")


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 9),
        (3, 120),
        (-5, None),
        (None, -7),
        (None, 1000),
        (11, None),
        (-120, 99),
        (7, 7),
        (0, None),
        (-1, 0),
        (99, 101),
    ],
)
def test_integers_between_bounds(low, high):
    ours = automaton(integers(low, high))
    for n in range(-1300, 1300):
        assert ours.matches(str(n).encode()) == ((low is None or n >= low) and (high is None or n <= high)), n
    for text in ("-0", "00", "01", "+1", "1.0", "", "-"):
        assert not ours.matches(text.encode())


BOUNDS = [
    (0, 1, False, False),
    (-1, 1, False, False),
    (0, None, True, False),
    (None, 0, False, True),
    (0.5, None, False, False),
    (None, 0.5, False, False),
    (-1.5, -0.25, False, False),
    (0, 99.5, True, False),
    (-1, 1, True, True),
    (2, 2, False, False),
    (0.25, 0.75, True, True),
]


@pytest.mark.parametrize(("low", "high", "above", "below"), BOUNDS)
def test_decimals_between_bounds(low, high, above, below):
    ours = automaton(decimals(*(None if b is None else Fraction(str(b)) for b in (low, high)), above, below))
    for sign, whole, digits in itertools.product(("", "-"), (0, 1, 2, 9, 10, 98, 99, 100), range(-1, 1000)):
        text = f"{sign}{whole}" + ("" if digits < 0 else "." + (f"{digits:03}".rstrip("0") or "0"))
        value = Fraction(text)
        inside = (low is None or value > Fraction(str(low)) or (not above and value == Fraction(str(low)))) and (
            high is None or value < Fraction(str(high)) or (not below and value == Fraction(str(high)))
        )
        if text == "-0" or (text == "-0.0" and low == 0):
            inside = False  # zero is written without a sign where a bound says 0
        assert ours.matches(text.encode()) == inside, text


def test_bounded_numbers_have_at_most_six_decimals():
    ours = automaton(decimals(Fraction(0), Fraction(1)))
    assert ours.matches(b"0.123456")
    assert not ours.matches(b"0.1234567")
    fine = automaton(decimals(Fraction("0.12345678"), Fraction(1)))
    assert not fine.matches(b"0.123456")
    assert fine.matches(b"0.123457")


@pytest.mark.parametrize(
    "text", ["0", "-0", "1.5", "-0.0", "1e9", "1E+05", "0.1e-7", "01", "1.", ".5", "+1", "1e", "--1", "NaN", ""]
)
def test_plain_numbers_are_those_of_json(text):
    def fail(name):
        raise ValueError(name)

    try:
        value = json.loads(text, parse_constant=fail)
    except ValueError:
        value = None
    assert automaton(NUMBER).matches(text.encode()) == (value is not None)
    is_plain = isinstance(value, int) and text != "-0"
    assert automaton(INTEGER).matches(text.encode()) == is_plain
