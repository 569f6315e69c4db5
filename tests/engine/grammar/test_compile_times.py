from __future__ import annotations

from playground.engine.grammar.compile_times import num_leaves, rename_key, time_compiles
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar

TRIE = TokenTrie([None, *(bytes([b]) for b in range(1, 256))], [0])
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "y"]}}},
    "required": ["a", "b"],
}


def test_a_renamed_key_is_renamed_wherever_it_is_named():
    renamed = rename_key(SCHEMA)
    assert list(renamed["properties"]) == ["a", "b_"]
    assert renamed["required"] == ["a", "b_"]
    assert rename_key({"anyOf": [{"type": "null"}, SCHEMA]})["anyOf"][1] == renamed
    assert rename_key({"type": "integer"}) == {"type": "integer"}


def test_leaves_are_counted_through_objects_and_arrays():
    assert num_leaves(SCHEMA) == 2
    assert num_leaves({"type": "integer"}) == 1


def test_a_cached_grammar_costs_less_than_a_cold_one():
    times = time_compiles(XGrammar(TRIE), SCHEMA, rename_key(SCHEMA))
    assert 0 < times.cached_ms < times.cold_ms
    assert times.renamed_ms > times.cached_ms
    assert 1 <= times.num_rounds <= 5
