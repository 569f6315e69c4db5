"""Grammars on which this package's masks and xgrammar's are compared bit by bit, with documents to walk along."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.engine.grammar.schemas import BOOL, INT, LINKED, NULL, NUM, STR, obj


class Case(NamedTuple):
    """``grammar``: a schema, or a regex as text. ``documents``: JSON values, or for a regex texts."""

    name: str
    grammar: Any
    documents: tuple[Any, ...]
    strict: bool = True

    @property
    def is_regex(self) -> bool:
        return isinstance(self.grammar, str)


class Exception_(NamedTuple):
    """A case where the two differ: why, and a document text with which ``jsonschema`` or ``re`` shows who is right."""

    case: Case
    reason: str
    witness: str
    is_valid: bool  # by the judge; ours says the same
    xgrammar: bool  # what xgrammar says


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


PERSON = obj({"name": STR, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "email": STR}, ["name", "age"])
INVOICE = obj(
    {
        "number": {"type": "string", "pattern": "^INV-[0-9]{4}$"},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "paid": BOOL,
        "lines": array(obj({"item": STR, "quantity": INT, "price": NUM}), minItems=1),
        "total": NUM,
    }
)
TREE = {"$defs": {"t": obj({"v": INT, "kids": array({"$ref": "#/$defs/t"})})}, "$ref": "#/$defs/t"}
EXPRESSION = {
    "$defs": {
        "e": {
            "anyOf": [
                NUM,
                obj({"op": {"enum": ["+", "*"]}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}),
            ]
        }
    },
    "$ref": "#/$defs/e",
}
ROBOT = obj(
    {"action": {"const": "move"}, "to": {"type": "array", "prefixItems": [NUM, NUM], "items": False, "minItems": 2}},
)
ANSWER = {"anyOf": [obj({"kind": {"const": "ok"}, "value": INT}), obj({"kind": {"const": "error"}, "message": STR})]}

EQUAL = [
    # Plain types and constants
    Case("any value", {}, (None, [1, {"a": "b"}], "x", -1.5e7, {"k": [True, False]})),
    Case("true", True, ([[], {}],)),
    Case("string", STR, ("", "hello world", 'quote " and \\ and \n', "naïve 漢字 😀")),
    Case("integer", INT, (0, -17, 123456789)),
    Case("number", NUM, (0, -0.25, 1.5e-9, 6.02e23)),
    Case("boolean", BOOL, (True, False)),
    Case("null", NULL, (None,)),
    Case("integer or null", {"type": ["integer", "null"]}, (3, None)),
    Case("string or boolean", {"type": ["string", "boolean"]}, ("yes", True)),
    Case("object of anything", {"type": "object"}, ({}, {"a": 1, "b": {"c": []}})),
    Case("array of anything", {"type": "array"}, ([], [1, "a", [None]])),
    Case("constant text", {"const": "forty-two"}, ("forty-two",)),
    Case("constant number", {"const": 42}, (42,)),
    Case("constant null", {"const": None}, (None,)),
    Case("constant with escapes", {"const": 'a "b" \\ \n c'}, ('a "b" \\ \n c',)),
    Case("enum of texts", {"enum": ["red", "green", "greenish", "blue"]}, ("green", "greenish")),
    Case("enum of kinds", {"enum": [1, "1", None, True, 1.5]}, (1, "1", True, 1.5)),
    Case("enum with a type", {"type": "string", "enum": ["low", "high"]}, ("low",)),
    # Bounds of numbers
    Case("age", {"type": "integer", "minimum": 0, "maximum": 120}, (0, 7, 42, 120)),
    Case("at least -5", {"type": "integer", "minimum": -5}, (-5, -1, 0, 99999)),
    Case("at most 1000", {"type": "integer", "maximum": 1000}, (-123, 1000, 999)),
    Case("above 10", {"type": "integer", "exclusiveMinimum": 10}, (11, 100)),
    Case("below 0", {"type": "integer", "exclusiveMaximum": 0}, (-1, -90)),
    Case("between -20 and -3", {"type": "integer", "minimum": -20, "maximum": -3}, (-20, -3)),
    Case("year", {"type": "integer", "minimum": 1900, "maximum": 2099}, (1900, 1984, 2024)),
    Case("one value", {"type": "integer", "minimum": 7, "maximum": 7}, (7,)),
    Case("probability", {"type": "number", "minimum": 0, "maximum": 1}, (0, 0.5, 0.125, 1)),
    Case("correlation", {"type": "number", "minimum": -1, "maximum": 1}, (-1, -0.5, 0.25)),
    Case("positive number", {"type": "number", "exclusiveMinimum": 0}, (0.001, 12.5)),
    Case("negative number", {"type": "number", "exclusiveMaximum": 0}, (-0.001, -12.5)),
    Case("percent", {"type": "number", "minimum": 0, "maximum": 99.5}, (99.5, 99, 3.25)),
    # Patterns of strings
    Case("lower case", {"type": "string", "pattern": "^[a-z]+$"}, ("hello",)),
    Case("phone", {"type": "string", "pattern": "^\\d{3}-\\d{4}$"}, ("555-0123",)),
    Case("colour code", {"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"}, ("#00ffAA",)),
    Case("word pair", {"type": "string", "pattern": "^\\w+ \\w+$"}, ("Ada Lovelace",)),
    Case("accents", {"type": "string", "pattern": "^[a-zàâçéèêëîïôûùü]+$"}, ("garçon",)),
    Case("choice", {"type": "string", "pattern": "^(cat|dog)s?$"}, ("cats", "dog")),
    # Objects
    Case("empty object", {"type": "object", "properties": {}, "additionalProperties": False}, ({},)),
    Case("one property", obj({"a": INT}), ({"a": 1},)),
    Case("two required", obj({"a": INT, "b": STR}), ({"a": 1, "b": "x"},)),
    Case("last optional", obj({"a": INT, "b": STR}, ["a"]), ({"a": 1}, {"a": 1, "b": "x"})),
    Case("first optional", obj({"a": INT, "b": STR}, ["b"]), ({"b": "x"}, {"a": 1, "b": "x"})),
    Case("all optional", obj({"a": INT, "b": BOOL, "c": NULL}, []), ({}, {"b": True}, {"a": 1, "c": None})),
    Case(
        "alike names",
        obj({"name": STR, "names": array(STR), "na": INT}, []),
        ({"name": "x", "names": ["y"]}, {"na": 1}),
    ),
    Case("odd names", obj({'a"b': INT, "ç": INT, "": INT}), ({'a"b': 1, "ç": 2, "": 3},)),
    Case("map of integers", {"type": "object", "additionalProperties": INT}, ({}, {"x": 1, "y y": 2})),
    Case("nested", obj({"a": obj({"b": obj({"c": BOOL})})}), ({"a": {"b": {"c": True}}},)),
    Case("person", PERSON, ({"name": "Ann", "age": 42}, {"name": "Zoë", "age": 7, "email": "z@x.org"})),
    # Arrays
    Case("array of integers", array(INT), ([], [1, -2, 30])),
    Case("at least two", array(INT, minItems=2), ([1, 2], [1, 2, 3])),
    Case("one to three", array(STR, minItems=1, maxItems=3), (["a"], ["a", "b", "c"])),
    Case("at most two", array(BOOL, maxItems=2), ([], [True, False])),
    Case("exactly four", array(NUM, minItems=4, maxItems=4), ([1, 2.5, 3, 4],)),
    Case("matrix", array(array(INT)), ([[1, 2], [], [3]],)),
    Case("tuple", {"type": "array", "prefixItems": [INT, STR, BOOL], "items": False, "minItems": 3}, ([1, "a", True],)),
    Case("list of objects", array(obj({"id": INT, "tag": STR}, ["id"])), ([{"id": 1}, {"id": 2, "tag": "x"}],)),
    # Choices and recursion
    Case("integer or text", {"anyOf": [INT, STR]}, (5, "five")),
    Case("tagged union", ANSWER, ({"kind": "ok", "value": 3}, {"kind": "error", "message": "no"})),
    Case("linked list", LINKED, ({"v": 1, "next": {"v": 2, "next": None}},)),
    Case("tree", TREE, ({"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": []}]},)),
    Case("arithmetic", EXPRESSION, ({"op": "+", "left": 1, "right": {"op": "*", "left": 2, "right": 3.5}},)),
    Case("robot", ROBOT, ({"action": "move", "to": [1.5, -2]},)),
    Case(
        "invoice",
        INVOICE,
        (
            {
                "number": "INV-0042",
                "currency": "EUR",
                "paid": False,
                "lines": [{"item": "bolt", "quantity": 3, "price": 0.25}],
                "total": 0.75,
            },
        ),
    ),
    Case("not strict", obj({"a": INT}, ["a"]), ({"a": 1, "other": [2]}, {"a": 5}), strict=False),
    Case("additional texts", obj({"id": INT}, additionalProperties=STR), ({"id": 1, "note": "x"},)),
    # Regular expressions
    Case("words", "[a-z]+( [a-z]+)*", ("the quick brown fox",)),
    Case("date", "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])", ("2024-02-29",)),
    Case("mail address", "[\\w.+-]+@[\\w-]+\\.[a-z]{2,}", ("ada.l@example.org",)),
    Case("yes or no", "(yes|no)[.!]?", ("yes!", "no")),
    Case("emoji", "[😀-🙏]{1,3}", ("😀🙃",)),
    Case("greek", "[α-ω ]+", ("αβγ δε",)),
    Case("IPv4", "((25[0-5]|2[0-4]\\d|1?\\d?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1?\\d?\\d)", ("192.168.0.1",)),
    Case("anything but a digit", "[^0-9]*", ("no digits\nhere",)),
    Case("csv", "([a-z]+,)*[a-z]+\\n", ("a,bc,d\n",)),
    Case("numbered list", "(\\d+\\. [A-Z][a-z ]+\\n){2,3}", ("1. First one\n2. Second\n",)),
    Case("lazy", "a+?b", ("aab",)),
    Case("optional empty", "(ab)?", ("", "ab")),
]

EXCEPTIONS = [
    Exception_(
        Case("at most eight characters", {"type": "string", "maxLength": 8}, ("abc",)),
        "Escapes vanish from xgrammar's strings once they have a length.",
        r'"a\nb"',
        is_valid=True,
        xgrammar=False,
    ),
    Exception_(
        Case("at least two characters", {"type": "string", "minLength": 2}, ("abc",)),
        "xgrammar lets a raw control character into strings with a length: that is no JSON.",
        '"a\tb"',
        is_valid=False,
        xgrammar=True,
    ),
    Exception_(
        Case("one character", {"type": "string", "minLength": 1, "maxLength": 1}, ("é",)),
        "An escape is one character for the schema.",
        r'"\u00e9"',
        is_valid=True,
        xgrammar=False,
    ),
    Exception_(
        Case("contains an a", {"type": "string", "pattern": "a"}, ("a",)),
        "A pattern is searched for; xgrammar anchors it at both ends.",
        '"xay"',
        is_valid=True,
        xgrammar=False,
    ),
    Exception_(
        Case("starts with x", {"type": "string", "pattern": "^x"}, ("x",)),
        "A pattern is searched for; xgrammar anchors it at both ends.",
        '"xyz"',
        is_valid=True,
        xgrammar=False,
    ),
    Exception_(
        Case("pattern without a", {"type": "string", "pattern": "^[^a]*$"}, ("bcd",)),
        "xgrammar leaves out the characters that JSON escapes, even where the pattern has them.",
        r'"b\"b"',
        is_valid=True,
        xgrammar=False,
    ),
    Exception_(
        Case("pattern of a line end", {"type": "string", "pattern": "^\\n$"}, ()),
        "xgrammar writes a line end into a string as it is: that is no JSON.",
        '"\n"',
        is_valid=False,
        xgrammar=True,
    ),
    Exception_(
        Case("other keys", obj({"a": {"const": "foo"}}, [], additionalProperties=True), ({"c": 1},)),
        "An escaped key is the key that it spells; xgrammar takes it for another one.",
        '{"\\u0061": "BAD"}',
        is_valid=False,
        xgrammar=True,
    ),
    Exception_(
        Case("a dot", "a.b", ("axb",)),
        "A dot does not match a line end; in xgrammar it does.",
        "a\nb",
        is_valid=False,
        xgrammar=True,
    ),
]
