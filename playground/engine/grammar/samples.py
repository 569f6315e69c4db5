"""Documents near a schema: valid ones, and ones with a small fault; for finding out what an engine enforces."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.engine.grammar.automaton import build
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.regex import parse_pattern

NUM_SAMPLES = 160
MAX_DEPTH = 4
MAX_STEPS = 40  # characters of a text made from a pattern
POOL = (
    *(None, True, False, 0, 1, -1, 3, 7, 1.5, -0.5, 100_000),
    *("", "a", "ab", "abcabcabc", "é", "a\nb", 'q"q', "xay"),
    *([], [0], {}, {"z": 0}),
)
TYPE_OF = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "minItems", "maxItems", "uniqueItems", "prefixItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}


def samples(schemas: Sequence[Any], rng: random.Random, count: int = NUM_SAMPLES) -> Iterator[Any]:
    """Values made from ``schemas``; ones that miss a single keyword; and ones with a random change or two."""
    base = []
    for schema in schemas:
        base += [Maker(schema, rng).make(schema) for _ in range(8)]
        yield from (Maker(schema, rng, aim).make(schema) for aim in _aims(schema) for _ in range(2))
    literals = [*POOL, *(value for schema in schemas for value in _literals(schema))]
    yield from base
    yield from literals
    for _ in range(count):
        value = copy.deepcopy(rng.choice(base))
        for _ in range(rng.choice((1, 1, 1, 2))):
            value = change(value, literals, rng)
        yield value


def documents(value: Any) -> tuple[bytes, bytes]:
    """One value in the two plain layouts: with spaces behind ``,`` and ``:``, and without."""
    spaced = json.dumps(value, ensure_ascii=False)
    return spaced.encode(), json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def oddities(value: Any) -> Iterator[bytes]:
    """Unusual ways to write a value, in which engines are known to slip: an escaped key, a raw control character."""
    if isinstance(value, dict) and value:
        key = next(reversed(value))
        if key and key.isalnum():
            escaped = f"\\u{ord(key[0]):04x}{key[1:]}"
            yield json.dumps(value, ensure_ascii=False).replace(f'"{key}": ', f'"{escaped}": ').encode()
    if isinstance(value, str) and 0 < len(value) < 40 and value.isalnum():
        yield f'"{value[:-1]}\t"'.encode()


def _aims(schema: Any) -> Iterator[tuple[int, str]]:
    """Every keyword of every subschema as something to miss: the subschema's identity, and the keyword."""
    if isinstance(schema, Mapping):
        yield from ((id(schema), word) for word in schema if word in MISSES)
        for value in schema.values():
            yield from _aims(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _aims(value)


MISSES: dict[
    str, Callable[[Any, Any], Any]
] = {  # keyword -> a value that misses it, from its argument and a good value
    "minimum": lambda bound, good: bound - 1,
    "maximum": lambda bound, good: bound + 1,
    "exclusiveMinimum": lambda bound, good: bound,
    "exclusiveMaximum": lambda bound, good: bound,
    "multipleOf": lambda step, good: good + step / 2 if step % 2 else good + 1,
    "minLength": lambda length, good: "x" * max(0, length - 1),
    "maxLength": lambda length, good: "x" * min(length + 1, 4_000),
    "pattern": lambda pattern, good: "~ ~",
    "const": lambda constant, good: [constant, 0],
    "enum": lambda values, good: "none of them",
    "minItems": lambda size, good: list(good)[: max(0, size - 1)],
    "maxItems": lambda size, good: [*good, *([good[0] if good else 0] * (size + 1 - len(good)))][:200],
    "uniqueItems": lambda _, good: [good[0], good[0]] if good else [0, 0],
    "required": lambda names, good: {key: value for key, value in good.items() if key not in names[-1:]},
    "additionalProperties": lambda _, good: {**good, "zz": [None]},
    "type": lambda _, good: [good] if not isinstance(good, list) else "x",
}


@dataclass(frozen=True)
class Maker:
    """Makes values that a schema mostly allows. ``aim`` names one keyword of one subschema that is to be missed."""

    root: Any
    rng: random.Random
    aim: tuple[int, str] | None = None

    def make(self, schema: Any, depth: int = 0) -> Any:
        value = self._good(schema, depth)
        if self.aim and self.aim[0] == id(schema):
            word = self.aim[1]
            try:
                return MISSES[word](schema[word], value)
            except (TypeError, AttributeError, IndexError, KeyError, ValueError):
                return value
        return value

    def _good(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > 3 * MAX_DEPTH:
            return self.rng.choice(POOL)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self.rng.choice(schema["enum"])
        if isinstance(schema.get("$ref"), str):
            return self.make(resolve(schema["$ref"], self.root), depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                return self._combined(schema, word, depth)
        kinds = schema.get("type") or next((TYPE_OF[word] for word in schema if word in TYPE_OF), None)
        kind = self.rng.choice(kinds) if isinstance(kinds, list) and kinds else kinds
        made = {"object": self._object, "array": self._array, "string": self._string}
        made |= {"integer": self._number, "number": self._number}
        if kind in made:
            return made[kind](schema, depth)
        return {"boolean": self.rng.random() < 0.5, "null": None}.get(kind, self.rng.choice(POOL))

    def _combined(self, schema: Mapping, word: str, depth: int) -> Any:
        branches = schema[word] if depth < MAX_DEPTH else schema[word][-1:]
        chosen = branches if word == "allOf" else [self.rng.choice(branches)]
        rest = {key: value for key, value in schema.items() if key != word}
        values = [self.make(branch, depth + 1) for branch in ([*chosen, rest] if rest else chosen)]
        if all(isinstance(value, dict) for value in values):
            return {key: part for value in values for key, part in value.items()}
        return values[0]

    def _object(self, schema: Mapping, depth: int) -> Any:
        required, properties = schema.get("required", []), schema.get("properties", {})
        everything = self.rng.random() < 0.5 and depth < MAX_DEPTH
        value = {k: self.make(sub, depth + 1) for k, sub in properties.items() if everything or k in required}
        if isinstance(schema.get("additionalProperties"), Mapping) and depth < MAX_DEPTH:
            value["z"] = self.make(schema["additionalProperties"], depth + 1)
        return value

    def _array(self, schema: Mapping, depth: int) -> Any:
        prefix, items = schema.get("prefixItems", []), schema.get("items", {})
        low = max(int(schema.get("minItems", 0)), len(prefix))
        size = low + (self.rng.randrange(1, 3) if depth < MAX_DEPTH else 0)
        size = min(size, int(schema.get("maxItems", size)), 40)
        return [self.make(prefix[i] if i < len(prefix) else items, depth + 1) for i in range(size)]

    def _string(self, schema: Mapping, depth: int) -> Any:
        if isinstance(schema.get("pattern"), str):
            return matching(schema["pattern"], self.rng)
        low, high = int(schema.get("minLength", 0)), int(schema.get("maxLength", 6))
        size = min(self.rng.randint(low, max(low, min(high, low + 4))), 400)
        letters = 'abcé"\\\n x' if self.rng.random() < 0.2 else "abcx"
        return "".join(self.rng.choice(letters) for _ in range(size))

    def _number(self, schema: Mapping, depth: int) -> Any:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        low = (high - 10 if high is not None else 0) if low is None else low
        high = low + 10 if high is None else high
        value = self.rng.choice((low, high, (low + high) / 2, low + 1, low + (high - low) / 4))
        step = schema.get("multipleOf")
        value = round(value / step) * step if isinstance(step, (int, float)) and step > 0 else value
        return int(value) if schema.get("type") == "integer" or value == int(value) else value


def matching(pattern: str, rng: random.Random) -> str:
    """A random text that contains a match, read off the pattern's automaton."""
    try:
        automaton = build({"pattern": parse_pattern(pattern)}, "pattern")
    except GrammarError:
        return rng.choice("abc")
    config, text = automaton.start, b""
    for _ in range(MAX_STEPS):
        choices = sorted(automaton.next_bytes(config))
        if not choices or (() in config and rng.random() < 0.5):
            break
        byte = rng.choice([b for b in choices if 0x20 <= b < 0x7F] or choices)
        text, config = text + bytes([byte]), automaton.step(config, byte)
    return text.decode("utf-8", "replace")


def resolve(pointer: str, root: Any) -> Any:
    found = root
    for part in pointer.split("/")[1:]:
        try:
            found = found[int(part)] if isinstance(found, list) else found[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, IndexError, ValueError, TypeError):
            return {}
    return found


def _literals(schema: Any) -> Iterator[Any]:
    """Constants of a schema, and numbers at and around its bounds."""
    if isinstance(schema, Mapping):
        for word, value in schema.items():
            if word == "const":
                yield value
            elif word == "enum" and isinstance(value, list):
                yield from value
            elif word in ("minLength", "maxLength") and isinstance(value, int):
                yield from ("x" * n for n in (value - 1, value, value + 1) if 0 <= n <= 200)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield from (value - 1, value, value + 1, value + 0.5)
            else:
                yield from _literals(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _literals(value)


def change(value: Any, literals: Sequence[Any], rng: random.Random) -> Any:
    """``value`` with one random change somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        changed, key = dict(value), rng.choice(list(value))
        act = rng.random()
        if act < 0.25:
            del changed[key]
        elif act < 0.4:
            changed[rng.choice(("z", "a", "zz"))] = rng.choice(literals)
        else:
            changed[key] = change(changed[key], literals, rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        changed, i = list(value), rng.randrange(len(value))
        act = rng.random()
        if act < 0.2:
            del changed[i]
        elif act < 0.4:
            changed.append(copy.deepcopy(changed[i]))
        elif act < 0.5:
            changed.append(rng.choice(literals))
        else:
            changed[i] = change(changed[i], literals, rng)
        return changed
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice((value + "x", value[:-1], value * 3, value + "\n", value + '"', "x" + value + "y"))
    return copy.deepcopy(rng.choice(literals))
