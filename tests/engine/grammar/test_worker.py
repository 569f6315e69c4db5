import contextlib
import time

import pytest

from playground.engine.grammar.bitmask import allocate
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.worker import CompileWorker, can_fork
from playground.engine.grammar.xgrammar_matcher import XGrammar, XGrammarMatcher

TRIE = TokenTrie([None, *(bytes([b]) for b in range(1, 256))], [0])
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MANY = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(80)}, "minProperties": 40}


@pytest.fixture(scope="module")
def worker():
    worker = CompileWorker(TRIE, seconds=1.5)
    yield worker
    worker.close()


def mask(compiled):
    bits = allocate(1, TRIE.vocab_size)
    XGrammarMatcher(compiled).fill(bits)
    return bits


def test_a_grammar_from_the_worker_is_the_same(worker):
    for kind, grammar in (("json_schema", SCHEMA), ("regex", "a+b"), ("ebnf", 'root ::= "x" [a-c]*')):
        compiled, ms = worker.compile(kind, grammar)
        assert ms > 0
        assert (mask(compiled) == mask(getattr(XGrammar(TRIE), kind)(grammar))).all()


def test_an_explosion_is_stopped_and_the_next_request_is_served_at_once(worker):
    worker.compile("regex", "a")
    process = worker._process.pid
    began = time.monotonic()
    with pytest.raises(GrammarError, match=r"within 1\.5 s"):
        worker.compile("json_schema", MANY)
    assert time.monotonic() - began < 5
    assert mask(worker.compile("regex", "ab")[0]).any()
    if can_fork():
        assert worker._process.pid == process  # nothing had to be started anew


def nested(depth):
    return {"anyOf": [nested(depth - 1), {"type": "array", "items": nested(depth - 1)}]} if depth else {"type": "null"}


@pytest.mark.parametrize("depth", [2, 4, 6, 8, 10, 12])
def test_nested_choices_compile_or_are_refused_in_time(worker, depth):
    began = time.monotonic()
    with contextlib.suppress(GrammarError):
        worker.compile("json_schema", nested(depth))
    assert time.monotonic() - began < 5
    assert mask(worker.compile("regex", "ab")[0]).any()


def test_starting_waits_for_nobody():
    other = CompileWorker(TRIE)
    began = time.monotonic()
    other.start()
    assert time.monotonic() - began < 1
    other.close()


@pytest.mark.parametrize(
    ("kind", "grammar", "reason"),
    [
        ("regex", "a(", "parenthesis"),
        ("ebnf", "root ::= undefined_rule", "undefined_rule"),
        ("json_schema", {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}, "refuses this schema"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 4}, "minimum"),
    ],
)
def test_what_xgrammar_refuses_is_one_sentence(worker, kind, grammar, reason):
    with pytest.raises(GrammarError, match=reason) as caught:
        worker.compile(kind, grammar)
    assert "\n" not in str(caught.value)
    assert "/project" not in str(caught.value)
