"""A JSON schema as rules of a grammar, for the part of the language that an automaton can enforce.

Properties come in the order in which the schema lists them, separated by ``, `` and ``: ``; there is no free
whitespace. What the schema says is enforced or refused by name, never ignored; annotations say nothing about validity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from playground.engine.grammar.automaton import find_cycle
from playground.engine.grammar.expression import (
    EMPTY,
    Alt,
    Call,
    Expression,
    GrammarError,
    Repeat,
    alt,
    optional,
    seq,
    text,
)
from playground.engine.grammar.json_text import QUOTE, STRING, in_json, key, literal, one_character, other_key
from playground.engine.grammar.numbers import INTEGER, NUMBER, decimals, integers
from playground.engine.grammar.regex import parse_pattern

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
    + ("$schema", "$id", "$comment", "$defs", "definitions", "$anchor")
)
KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "boolean": frozenset(),
    "null": frozenset(),
}
COMMA, COLON = text(", "), text(": ")
VALUE, STRING_RULE, NUMBER_RULE, INTEGER_RULE = "any value", "string", "number", "integer"
ANY = Call(VALUE)
MAX_DEPTH = 64


def common_rules() -> dict[str, Expression]:
    """Rules that every schema may call: any value, and the plain types."""
    pair = seq(Call(STRING_RULE), COLON, ANY)
    return {
        STRING_RULE: STRING,
        NUMBER_RULE: NUMBER,
        INTEGER_RULE: INTEGER,
        VALUE: alt(
            Call(STRING_RULE),
            Call(NUMBER_RULE),
            text("true"),
            text("false"),
            text("null"),
            seq(text("["), optional(_listed([ANY], ANY)), text("]")),
            seq(text("{"), optional(seq(pair, Repeat(seq(COMMA, pair)))), text("}")),
        ),
    }


def _listed(first: Sequence[Expression], rest: Expression) -> Expression:
    return seq(*first, Repeat(seq(COMMA, rest)))


def schema_rules(schema: Mapping[str, Any] | bool, strict: bool = True) -> tuple[dict[str, Expression], str]:
    """The rules of ``schema``, named by their JSON pointers, and the name of the first.

    ``strict``: properties and items that the schema does not mention are refused, as if it said
    ``additionalProperties: false`` wherever it says nothing (xgrammar's default); otherwise they may be anything.
    Raises ``GrammarError`` that names the pointer for what is invalid, contradictory or not supported.
    """
    reader = _Reader(schema, strict)
    try:
        reader.rule("#")
    except RecursionError:
        raise GrammarError("The schema is nested too deeply.") from None
    cycle = find_cycle(reader.refers)
    if cycle:
        raise GrammarError(f"{' -> '.join(cycle)} refers to itself without any content between.")
    return {**common_rules(), **reader.rules}, "#"


class _Reader:
    def __init__(self, schema: Any, strict: bool) -> None:
        self.schema, self.strict = schema, strict
        self.rules: dict[str, Expression] = {}
        self.refers: dict[str, list[str]] = {}  # rule -> rules that stand in its place, without content between

    def rule(self, at: str) -> Call:
        """The rule of the subschema at the pointer ``at``; read when it is first asked for."""
        if at not in self.rules:
            if at.count("/") > 2 * MAX_DEPTH:
                raise GrammarError(f"{at[:60]}... is nested more than {MAX_DEPTH} levels deep.")
            self.rules[at] = Alt(())  # asked for again while it is read: the name is enough
            self.refers[at] = []
            self.rules[at] = self.read(self.resolve(at), at)
        return Call(at)

    def resolve(self, pointer: str) -> Any:
        found = self.schema
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise GrammarError(f"The reference {pointer} leads nowhere.") from None
        return found

    def read(self, schema: Any, at: str) -> Expression:
        if schema is True or schema == {}:
            return ANY
        if schema is False:
            raise GrammarError(f"{at} is false: nothing can match it.")
        if not isinstance(schema, Mapping):
            raise GrammarError(f"{at} must be a schema (an object, true or false), not {json.dumps(schema)[:40]}.")
        said = {word for word in schema if word not in ANNOTATIONS}
        if not said:
            return ANY
        for word in ("$ref", "anyOf", "allOf", "oneOf"):
            if word in said:
                return self.combined(schema, word, said, at)
        if "const" in said or "enum" in said:
            return self.constants(schema, said, at)
        return self.typed(schema, said, at)

    # --- Combinations ---------------------------------------------------------------------------

    def combined(self, schema: Mapping[str, Any], word: str, said: set[str], at: str) -> Expression:
        if word == "oneOf":
            raise GrammarError(
                f"{at}/oneOf is not supported: an automaton cannot say 'exactly one'; anyOf is supported."
            )
        others = sorted(said - {word})
        if others:
            raise GrammarError(f"{at}: {word} beside {', '.join(others)} is not supported; both would have to hold.")
        if word == "$ref":
            target = schema["$ref"]
            if not isinstance(target, str) or not target.startswith("#"):
                raise GrammarError(f"{at}/$ref must point into this schema (#/...), not {json.dumps(target)[:60]}.")
            return self.stand_in(at, target.rstrip("/") if target != "#" else "#")
        branches = schema[word]
        if not isinstance(branches, Sequence) or isinstance(branches, str) or not branches:
            raise GrammarError(f"{at}/{word} must be a list of schemas with at least one entry.")
        if word == "allOf" and len(branches) > 1:
            raise GrammarError(
                f"{at}/allOf with {len(branches)} branches is not supported; all of them would have to hold."
            )
        return alt(*(self.stand_in(at, f"{at}/{word}/{i}") for i in range(len(branches))))

    def stand_in(self, at: str, target: str) -> Call:
        self.refers.setdefault(at, []).append(target)
        return self.rule(target)

    def constants(self, schema: Mapping[str, Any], said: set[str], at: str) -> Expression:
        others = sorted(said - {"const", "enum", "type"})
        if others or {"const", "enum"} <= said:
            raise GrammarError(
                f"{at}: {', '.join(others) or 'enum'} beside {'const' if 'const' in said else 'enum'} is not supported."
            )
        values = [schema["const"]] if "const" in said else schema["enum"]
        if not isinstance(values, list) or not values:
            raise GrammarError(f"{at}/enum must be a list with at least one value.")
        types = self.types(schema, at) if "type" in said else None
        fitting = [value for value in values if types is None or any(_is(value, name) for name in types)]
        if not fitting:
            raise GrammarError(
                f"{at}: no value of the {'const' if 'const' in said else 'enum'} has the type {schema['type']}."
            )
        return alt(*(literal(value) for value in fitting))

    # --- Types ----------------------------------------------------------------------------------

    def types(self, schema: Mapping[str, Any], at: str) -> list[str]:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in names:
            if name not in KEYWORDS:
                raise GrammarError(f"{at}/type: {json.dumps(name)[:40]} is not a JSON type.")
        if not names:
            raise GrammarError(f"{at}/type: the list of types is empty.")
        return names

    def typed(self, schema: Mapping[str, Any], said: set[str], at: str) -> Expression:
        known = set().union(*KEYWORDS.values()) | {"type"}
        unknown = sorted(said - known)
        if unknown:
            raise GrammarError(f"{at}/{unknown[0]} is not supported.")
        if "type" in said:
            names = self.types(schema, at)
        else:  # a schema without a type speaks of one type only: of that one
            names = [name for name, words in KEYWORDS.items() if said <= words]
            names = ["number"] if "number" in names else names
            if not names:
                raise GrammarError(f"{at}: {', '.join(sorted(said))} belong to several types; say which with type.")
        stray = sorted(said - {"type"} - set().union(*(KEYWORDS[name] for name in names)))
        if stray:
            raise GrammarError(f"{at}/{stray[0]} says nothing about the type {' or '.join(names)}.")
        if "number" in names and "integer" in names:
            names = [name for name in names if name != "integer"]
        read = {
            "object": self.object,
            "array": self.array,
            "string": self.string,
            "integer": self.integer,
            "number": self.number,
        }
        simple = {"boolean": alt(text("true"), text("false")), "null": text("null")}
        return alt(*(simple[name] if name in simple else read[name](schema, at) for name in names))

    def object(self, schema: Mapping[str, Any], at: str) -> Expression:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, Mapping):
            raise GrammarError(f"{at}/properties must be an object.")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise GrammarError(f"{at}/required must be a list of names.")
        missing = [name for name in required if name not in properties]
        if missing:
            raise GrammarError(f"{at}/required names {missing[0]!r}, which is not among the properties.")
        free = "properties" not in schema and "required" not in schema
        extra = schema.get("additionalProperties", free or not self.strict)
        pair = None
        if extra is not False:
            value = ANY if extra is True or extra == {} else self.rule(f"{at}/additionalProperties")
            pair = seq(other_key(list(properties)) if properties else Call(STRING_RULE), COLON, value)
        tail = Repeat(seq(COMMA, pair)) if pair else EMPTY  # once something stands before it
        first = optional(seq(pair, tail)) if pair else EMPTY  # while nothing does
        for name, sub in reversed(properties.items()):
            pointer = f"{at}/properties/{name.replace('~', '~0').replace('/', '~1')}"
            if sub is False:
                if name in required:
                    raise GrammarError(f"{pointer} is false but required: nothing can match.")
                continue
            entry = seq(key(name), COLON, self.rule(pointer))
            after, before = seq(COMMA, entry, tail), seq(entry, tail)
            tail, first = (after, before) if name in required else (alt(after, tail), alt(before, first))
        return seq(text("{"), first, text("}"))

    def array(self, schema: Mapping[str, Any], at: str) -> Expression:
        prefix = schema.get("prefixItems", [])
        low = self.count(schema, "minItems", at) or 0
        high = self.count(schema, "maxItems", at)
        if not isinstance(prefix, list):
            raise GrammarError(f"{at}/prefixItems must be a list of schemas.")
        if high is not None and low > high:
            raise GrammarError(f"{at}: minItems {low} is more than maxItems {high}.")
        items = schema.get("items", not (prefix and self.strict))
        if items is False:
            high = len(prefix) if high is None else min(high, len(prefix))
        if high is not None and low > high:
            raise GrammarError(f"{at}: minItems {low} is more than the {high} items that are allowed.")
        item = None if items is False else ANY if items is True or items == {} else self.rule(f"{at}/items")
        heads = [
            self.rule(f"{at}/prefixItems/{i}") for i in range(len(prefix) if high is None else min(len(prefix), high))
        ]
        free = 0 if item is None else None if high is None else high - len(heads)
        tail = Repeat(seq(COMMA, item), max(0, low - max(1, len(heads))), free) if item and free != 0 else EMPTY
        if not heads:
            if high == 0:
                return text("[]")
            rest = Repeat(seq(COMMA, item), max(0, low - 1), None if high is None else high - 1)
            body = seq(item, rest)
            return seq(text("["), body if low else optional(body), text("]"))
        body = seq(heads[-1], tail) if len(heads) == 1 else seq(COMMA, heads[-1], tail)
        for i in range(len(heads) - 2, -1, -1):
            body = body if i + 1 < low else optional(body)
            body = seq(*([COMMA] if i else []), heads[i], body)
        return seq(text("["), body if low else optional(body), text("]"))

    def count(self, schema: Mapping[str, Any], word: str, at: str) -> int | None:
        value = schema.get(word)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value)
        ):
            raise GrammarError(f"{at}/{word} must be a whole number from 0, not {json.dumps(value)[:40]}.")
        return None if value is None else int(value)

    def string(self, schema: Mapping[str, Any], at: str) -> Expression:
        low, high = self.count(schema, "minLength", at), self.count(schema, "maxLength", at)
        if "pattern" in schema:
            if low is not None or high is not None:
                raise GrammarError(f"{at}: pattern beside a length is not supported; put the length into the pattern.")
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

    def bounds(self, schema: Mapping[str, Any], at: str) -> tuple[Fraction | None, bool, Fraction | None, bool]:
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

    def integer(self, schema: Mapping[str, Any], at: str) -> Expression:
        low, above, high, below = self.bounds(schema, at)
        if low is None and high is None:
            return Call(INTEGER_RULE)
        least = None if low is None else low.__floor__() + 1 if above else low.__ceil__()
        most = None if high is None else high.__ceil__() - 1 if below else high.__floor__()
        if least is not None and most is not None and least > most:
            raise GrammarError(f"{at}: no integer lies between the bounds {float(low):g} and {float(high):g}.")
        return integers(least, most)

    def number(self, schema: Mapping[str, Any], at: str) -> Expression:
        low, above, high, below = self.bounds(schema, at)
        return Call(NUMBER_RULE) if low is None and high is None else decimals(low, high, above, below)


def _is(value: Any, name: str) -> bool:
    """Whether a JSON value has the JSON type ``name``."""
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return name == "number" or (name == "integer" and value == int(value))
    return name == {str: "string", list: "array", dict: "object"}[type(value)]
