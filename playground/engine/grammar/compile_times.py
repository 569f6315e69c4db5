"""What compiling a schema costs xgrammar: cold, again from its cache, and with one key renamed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from playground.engine.grammar.xgrammar_matcher import XGrammar
from playground.engine.trace import step

NUM_ROUNDS = 5
MAX_SECONDS = 1.2  # of all rounds; one is always made


@step
@dataclass(frozen=True)
class CompileTimes:
    """Medians over ``num_rounds``, in milliseconds of processor time (other work on the machine does not count): with
    an empty cache, of the same text again, and with a new key.

    Renaming misses the cache of whole grammars; what the engine keeps of parts may still help.
    """

    cold_ms: float
    cached_ms: float
    renamed_ms: float
    num_rounds: int


def time_compiles(engine: XGrammar, schema: Any, renamed: Any, strict: bool = True) -> CompileTimes:
    """Time ``schema``, again ``schema``, then ``renamed``, each round with a cache that starts empty."""
    caching = engine.with_cache()
    began, rounds = time.monotonic(), []
    while len(rounds) < NUM_ROUNDS and (not rounds or time.monotonic() - began < MAX_SECONDS):
        caching.compiler.clear_cache()
        rounds.append([_ms(caching, each, strict) for each in (schema, schema, renamed)])
    return CompileTimes(*np.median(rounds, axis=0).tolist(), num_rounds=len(rounds))


def _ms(engine: XGrammar, schema: Any, strict: bool) -> float:
    began = time.process_time()
    engine.json_schema(schema, strict)
    return 1e3 * (time.process_time() - began)


def rename_key(schema: Any) -> Any:
    """``schema`` with the last property of its first object that has any under a new name, in ``required`` too.

    >>> rename_key({"properties": {"a": {}, "b": {}}, "required": ["b"]})
    {'properties': {'a': {}, 'b_': {}}, 'required': ['b_']}
    """
    if isinstance(schema, list):
        for i, part in enumerate(schema):
            if (new := rename_key(part)) != part:
                return [*schema[:i], new, *schema[i + 1 :]]
    if not isinstance(schema, Mapping):
        return schema
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        old = list(properties)[-1]
        new = old + "_"
        named = {new if name == old else name: value for name, value in properties.items()}
        listed = [new if name == old else name for name in schema.get("required", [])]
        return {**schema, "properties": named, **({"required": listed} if "required" in schema else {})}
    for word, value in schema.items():
        if (changed := rename_key(value)) != value:
            return {**schema, word: changed}
    return schema


def num_leaves(schema: Any) -> int:
    """How many values a whole document of ``schema`` writes, one item to an array, alternatives counted each.

    >>> num_leaves({"properties": {"a": {"type": "string"}, "b": {"items": {"type": "integer"}}}})
    2
    """
    if not isinstance(schema, Mapping):
        return 1
    properties = schema.get("properties", {})
    below = [*(properties.values() if isinstance(properties, Mapping) else ())]
    below += [schema["items"]] if isinstance(schema.get("items"), Mapping) else []
    for word in ("prefixItems", "anyOf", "oneOf", "allOf"):
        below += schema[word] if isinstance(schema.get(word), list) else []
    return sum(map(num_leaves, below)) if below else 1
