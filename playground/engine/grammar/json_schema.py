"""A JSON schema as rules of a grammar, for the part of the language that an automaton can enforce.

Properties come in the order in which the schema lists them, separated by ``, `` and ``: ``; there is no free
whitespace. What the schema says is enforced or refused by name, never ignored; annotations say nothing about validity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from playground.engine.grammar.automaton import find_cycle
from playground.engine.grammar.expression import (
    EMPTY,
    Call,
    Expression,
    GrammarError,
    Repeat,
    Unsupported,
    alt,
    optional,
    seq,
    text,
)
from playground.engine.grammar.json_scalars import (
    INTEGER_RULE,
    KEYWORDS,
    NUMBER_RULE,
    STRING_RULE,
    read_constants,
    read_count,
    read_integer,
    read_number,
    read_string,
    read_types,
)
from playground.engine.grammar.json_text import STRING, key, other_key
from playground.engine.grammar.numbers import INTEGER, NUMBER

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "$anchor"),
    )
)
COMMA, COLON = text(", "), text(": ")
VALUE = "any value"
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
        self.names: dict[str, str] = {}  # pointer -> rule
        self.contents: dict[str, str] = {}  # subschema -> rule
        self.refers: dict[str, list[str]] = {}  # rule -> rules that stand in its place, without content between

    def rule(self, at: str) -> Call:
        """The rule of the subschema at ``at``, read when it is first asked for; equal subschemas share one."""
        if at not in self.names:
            if at.count("/") > 2 * MAX_DEPTH:
                raise GrammarError(f"{at[:60]}... is nested more than {MAX_DEPTH} levels deep.")
            schema = self.resolve(at)
            name = self.names[at] = self.contents.setdefault(json.dumps(schema), at)
            if name == at:
                self.refers[at] = []
                self.rules[at] = self.read(schema, at)
                if isinstance(self.rules[at], Call):  # nothing but another rule: that one's name says more
                    self.names[at] = self.rules[at].rule
        name = self.names[at]
        return Call(self.names.get(name, name))

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
            return read_constants(schema, said, at)
        return self.typed(schema, said, at)

    # --- Combinations ---------------------------------------------------------------------------

    def combined(self, schema: Mapping[str, Any], word: str, said: set[str], at: str) -> Expression:
        if word == "oneOf":
            raise Unsupported(
                f"{at}/oneOf is not supported: an automaton cannot say 'exactly one'; anyOf is supported."
            )
        others = sorted(said - {word})
        if others:
            raise Unsupported(f"{at}: {word} beside {', '.join(others)} is not supported; both would have to hold.")
        if word == "$ref":
            target = schema["$ref"]
            if not isinstance(target, str) or not target.startswith("#"):
                raise Unsupported(f"{at}/$ref must point into this schema (#/...), not {json.dumps(target)[:60]}.")
            return self.stand_in(at, target.rstrip("/") if target != "#" else "#")
        branches = schema[word]
        if not isinstance(branches, Sequence) or isinstance(branches, str) or not branches:
            raise GrammarError(f"{at}/{word} must be a list of schemas with at least one entry.")
        if word == "allOf" and len(branches) > 1:
            raise Unsupported(
                f"{at}/allOf with {len(branches)} branches is not supported; all of them would have to hold."
            )
        return alt(*(self.stand_in(at, f"{at}/{word}/{i}") for i in range(len(branches))))

    def stand_in(self, at: str, target: str) -> Call:
        call = self.rule(target)
        self.refers[at].append(call.rule)
        return call

    # --- Types ----------------------------------------------------------------------------------

    def typed(self, schema: Mapping[str, Any], said: set[str], at: str) -> Expression:
        known = set().union(*KEYWORDS.values()) | {"type"}
        unknown = sorted(said - known)
        if unknown:
            raise Unsupported(f"{at}/{unknown[0]} is not supported.")
        if "type" in said:
            names = read_types(schema, at)
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
            "string": read_string,
            "integer": read_integer,
            "number": read_number,
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
        for name, sub in reversed(properties.items()):  # from the end: what follows is part of each entry
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
        low = read_count(schema, "minItems", at) or 0
        high = read_count(schema, "maxItems", at)
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
