"""Over the real tokenizer: masks of this package and of xgrammar, bit by bit, along valid documents."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from playground.engine.grammar.automaton import Automaton, build
from playground.engine.grammar.bitmask import Masks, allocate, naive_mask, unpack
from playground.engine.grammar.matcher import OwnMatcher
from playground.engine.grammar.regex import parse_regex
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar, XGrammarMatcher
from tests.engine.grammar.agreement import EQUAL, EXCEPTIONS, Case
from tests.engine.grammar.schemas import compiled, spaced

pytestmark = pytest.mark.default_model


@pytest.fixture(scope="module")
def model(default_model):
    return default_model


@pytest.fixture(scope="module")
def trie(model):
    return TokenTrie(model.token_bytes(), model.eos_ids)


@pytest.fixture(scope="module")
def engine(trie):
    return XGrammar(trie)


def automaton_of(case: Case) -> Automaton:
    return (
        build({"regex": parse_regex(case.grammar)}, "regex") if case.is_regex else compiled(case.grammar, case.strict)
    )


def theirs(engine: XGrammar, case: Case) -> XGrammarMatcher:
    grammar = engine.regex(case.grammar) if case.is_regex else engine.json_schema(case.grammar, case.strict)
    return XGrammarMatcher(grammar)


def text_of(case: Case, document) -> str:
    return document if case.is_regex else spaced(document).decode()


def differing(case: Case, texts: list[str], model, trie, engine) -> list[str]:
    """Where along ``texts`` the two masks differ, and by which tokens; a text is left where one engine refuses it."""
    masks, found = Masks(automaton_of(case), trie), []
    for text in texts:
        ours, other = OwnMatcher(masks), theirs(engine, case)
        for token in [*model.encode(text), min(trie.eos_ids)]:
            a, b = allocate(1, trie.vocab_size), allocate(1, trie.vocab_size)
            ours.fill(a)
            other.fill(b)
            if not (a == b).all():
                bits = (unpack(a[0], trie.vocab_size) != unpack(b[0], trie.vocab_size)).nonzero()[0]
                found.append(f"{text!r} before {trie.token_bytes[token]!r}: {[trie.token_bytes[t] for t in bits[:5]]}")
            accepted = ours.accept(token), other.accept(token)
            if not all(accepted):
                refuser = "xgrammar" if accepted[0] else "ours"
                found.append(f"{text!r}: {trie.token_bytes[token]!r} is refused by {refuser}")
                break
    return found


def test_the_list_is_long_enough():
    assert len(EQUAL) + len(EXCEPTIONS) >= 60
    assert len(EQUAL) >= 50
    names = [case.name for case in EQUAL] + [item.case.name for item in EXCEPTIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: case.name)
def test_masks_are_equal_bit_by_bit(case, model, trie, engine):
    texts = [text_of(case, document) for document in case.documents]
    assert differing(case, texts, model, trie, engine) == []


@pytest.mark.parametrize("item", EXCEPTIONS, ids=lambda item: item.case.name)
def test_where_the_two_differ_the_judge_is_with_us(item, model, trie, engine):
    case = item.case
    if case.is_regex:
        valid = re.fullmatch(case.grammar, item.witness) is not None
    else:
        try:
            valid = jsonschema.Draft202012Validator(case.grammar).is_valid(json.loads(item.witness))
        except json.JSONDecodeError:
            valid = False
    other = theirs(engine, case)
    accepted = all(other.accept(t) for t in model.encode(item.witness)) and other.can_end
    assert valid == item.is_valid
    assert automaton_of(case).matches(item.witness.encode()) == valid
    assert accepted == item.xgrammar != valid
    texts = [text_of(case, document) for document in case.documents]
    refused = [note for note in differing(case, texts, model, trie, engine) if "refused by" in note]
    assert not refused  # both allow the plain documents
    assert differing(case, [item.witness], model, trie, engine)


@pytest.mark.parametrize("name", ["invoice", "tree", "emoji", "string", "not strict"])
def test_naive_and_precompiled_masks_are_equal(name, model, trie):
    case = next(case for case in EQUAL if case.name == name)
    automaton = automaton_of(case)
    masks, config = Masks(automaton, trie), automaton.start
    for token in model.encode(text_of(case, case.documents[0]))[::3]:
        assert (unpack(masks.words(config), trie.vocab_size) == naive_mask(automaton, trie, config)).all()
        config = automaton.walk(config, trie.token_bytes[token])
        if not config:
            break
