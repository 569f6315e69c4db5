"""The parts of a JSON schema that hold no further schema: types, constants, strings and numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from playground.engine.grammar.expression import Call, Expression, GrammarError, Repeat, Unsupported, alt, seq
from playground.engine.grammar.json_text import QUOTE, in_json, literal, one_character
from playground.engine.grammar.numbers import decimals, integers
from playground.engine.grammar.regex import parse_pattern

STRING_RULE, NUMBER_RULE, INTEGER_RULE = "string", "number", "integer"  # rules without bounds, shared by all schemas
KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "boolean": frozenset(),
    "null": frozenset(),
}


def read_types(schema: Mapping[str, Any], at: str) -> list[str]:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in names:
        if name not in KEYWORDS:
            raise GrammarError(f"{at}/type: {json.dumps(name)[:40]} is not a JSON type.")
    if not names:
        raise GrammarError(f"{at}/type: the list of types is empty.")
    return names


def read_constants(schema: Mapping[str, Any], said: set[str], at: str) -> Expression:
    others = sorted(said - {"const", "enum", "type"})
    if others or {"const", "enum"} <= said:
        raise Unsupported(
            f"{at}: {', '.join(others) or 'enum'} beside {'const' if 'const' in said else 'enum'} is not supported."
        )
    values = [schema["const"]] if "const" in said else schema["enum"]
    if not isinstance(values, list) or not values:
        raise GrammarError(f"{at}/enum must be a list with at least one value.")
    types = read_types(schema, at) if "type" in said else None
    fitting = [value for value in values if types is None or any(is_a(value, name) for name in types)]
    if not fitting:
        raise GrammarError(
            f"{at}: no value of the {'const' if 'const' in said else 'enum'} has the type {schema['type']}."
        )
    return alt(*(literal(value) for value in fitting))


def read_count(schema: Mapping[str, Any], word: str, at: str) -> int | None:
    value = schema.get(word)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value)
    ):
        raise GrammarError(f"{at}/{word} must be a whole number from 0, not {json.dumps(value)[:40]}.")
    return None if value is None else int(value)


def read_string(schema: Mapping[str, Any], at: str) -> Expression:
    low, high = read_count(schema, "minLength", at), read_count(schema, "maxLength", at)
    if "pattern" in schema:
        if low is not None or high is not None:
            raise Unsupported(f"{at}: pattern beside a length is not supported; put the length into the pattern.")
        if not isinstance(schema["pattern"], str):
            raise GrammarError(f"{at}/pattern must be a string.")
        try:
            return seq(QUOTE, in_json(parse_pattern(schema["pattern"])), QUOTE)
        except GrammarError as error:
            raise GrammarError(f"{at}/pattern: {error}") from None
    if low is None and high is None:
        return Call(STRING_RULE)
    if high is not None and (low or 0) > high:
        raise GrammarError(f"{at}: minLength {low} is more than maxLength {high}.")
    return seq(QUOTE, Repeat(one_character(), low or 0, high), QUOTE)


def read_bounds(schema: Mapping[str, Any], at: str) -> tuple[Fraction | None, bool, Fraction | None, bool]:
    """Lowest value, whether it is excluded, highest value, whether it is excluded."""
    values: dict[str, Fraction] = {}
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        value = schema.get(word)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
                raise GrammarError(f"{at}/{word} must be a number, not {json.dumps(value)[:40]}.")
            values[word] = Fraction(str(value))
    lows = [(values[w], w == "exclusiveMinimum") for w in ("minimum", "exclusiveMinimum") if w in values]
    highs = [(-values[w], w == "exclusiveMaximum") for w in ("maximum", "exclusiveMaximum") if w in values]
    low, above = max(lows, default=(None, False))
    high, below = max(highs, default=(None, False))
    high = None if high is None else -high
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        raise GrammarError(f"{at}: no number lies between the bounds {float(low):g} and {float(high):g}.")
    return low, above, high, below


def read_integer(schema: Mapping[str, Any], at: str) -> Expression:
    low, above, high, below = read_bounds(schema, at)
    if low is None and high is None:
        return Call(INTEGER_RULE)
    least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
    most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
    if least is not None and most is not None and least > most:
        raise GrammarError(f"{at}: no integer lies between the bounds {float(low):g} and {float(high):g}.")
    return integers(least, most)


def read_number(schema: Mapping[str, Any], at: str) -> Expression:
    low, above, high, below = read_bounds(schema, at)
    return Call(NUMBER_RULE) if low is None and high is None else decimals(low, high, above, below)


def is_a(value: Any, name: str) -> bool:
    """Whether a JSON value has the JSON type ``name``."""
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return name == "number" or (name == "integer" and value == int(value))
    return name == {str: "string", list: "array", dict: "object"}[type(value)]
