import pytest

from playground.engine.grammar.audit import audit, places, without
from playground.engine.grammar.compiled import Production
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar
from tests.engine.grammar.schemas import INT, STR, compiled, obj

TRIE = TokenTrie([None, *(bytes([b]) for b in range(1, 256))], [0])
ENGINE = XGrammar(TRIE)


def ours(schema):
    return compiled(schema).matches


def xgrammar(schema):
    return Production(ENGINE.json_schema(schema), 0.0).reads


def verdicts(schema, engine):
    return {finding.keyword: finding.verdict for finding in audit(schema, engine)}


PERSON = obj({"name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {**INT, "minimum": 0, "maximum": 120}})
UNION = {**obj({"a": INT}, []), "additionalProperties": False, "anyOf": [{"required": ["a"]}]}
CONSTANTS = obj({"a": {"const": "foo"}, "b": {"const": "bar"}}, ["b"], additionalProperties=True)
KNOWN = [
    # schema, keyword, ours, xgrammar
    (PERSON, "maxLength", "enforced", "over_restricted"),
    (PERSON, "maximum", "enforced", "enforced"),
    (PERSON, "required", "enforced", "enforced"),
    ({"not": {"const": 3}}, "not", "refused", "ignored"),
    ({"type": "array", "items": INT, "uniqueItems": True}, "uniqueItems", "refused", "ignored"),
    ({"type": "array", "items": INT, "minItems": 1, "maxItems": 2}, "maxItems", "enforced", "enforced"),
    ({"type": "integer", "multipleOf": 5}, "multipleOf", "refused", "enforced"),
    ({"allOf": [obj({"x": INT}), obj({"y": INT})]}, "allOf", "refused", "ignored"),
    (UNION, "anyOf", "refused", "ignored"),
    (UNION, "additionalProperties", "enforced", "ignored"),
    (CONSTANTS, "const", "enforced", "ignored"),
    ({"type": "string", "pattern": "[a-z]+"}, "pattern", "enforced", "over_restricted"),
    ({"enum": ["a", "b", 3]}, "enum", "enforced", "enforced"),
    (obj({"a": INT}), "properties", "over_restricted", "over_restricted"),  # strict: nothing that is not listed
    (obj({"a": {"anyOf": [INT, STR]}}, additionalProperties=False), "anyOf", "enforced", "enforced"),
]


@pytest.mark.parametrize(("schema", "word", "own", "other"), KNOWN, ids=lambda case: str(case)[:40])
def test_verdicts_that_are_known(schema, word, own, other):
    assert verdicts(schema, ours)[word] == own
    assert verdicts(schema, xgrammar)[word] == other


def test_a_keyword_below_does_not_speak_for_the_one_that_holds_it():
    tags = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
    found = verdicts(obj({"code": STR, "tags": tags}), xgrammar)
    assert found["uniqueItems"] == "ignored"
    assert found["properties"] == "over_restricted"
    assert found["required"] == "enforced"


def test_a_counterexample_is_a_document_that_shows_it():
    found = {f.keyword: f for f in audit({"type": "array", "items": INT, "uniqueItems": True}, xgrammar)}["uniqueItems"]
    assert found.counterexample == "[0, 0]" or len(found.counterexample) <= 8
    refused = {f.keyword: f for f in audit({"not": {"const": 3}}, ours)}["not"]
    assert "#/not" in refused.reason


def test_every_keyword_has_a_finding_and_annotations_have_none():
    schema = {"title": "x", "$defs": {"n": {"type": "integer", "minimum": 1}}, **obj({"a": {"$ref": "#/$defs/n"}})}
    assert list(verdicts(schema, ours)) == ["type", "minimum", "properties", "$ref", "required"]


def test_an_audit_is_the_same_every_time():
    assert audit(PERSON, ours, seed=3) == audit(PERSON, ours, seed=3)


def test_an_invalid_schema_is_named():
    with pytest.raises(GrammarError, match="#/properties/a/type is not valid"):
        audit(obj({"a": {"type": "wrong"}}), ours)


def test_taking_keywords_out():
    schema = obj({"a": {"anyOf": [INT, {"minimum": 3}]}})
    assert ((("properties", "a", "anyOf", 1), "minimum")) in list(places(schema))
    found = [place for place in places(schema) if place[1] in ("minimum", "anyOf")]
    assert without(schema, found) == obj({"a": {}})
