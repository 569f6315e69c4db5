"""Schemas that the tests share: what they are, and documents that they allow and refuse."""

from __future__ import annotations

import json
from typing import Any

from playground.engine.grammar.automaton import Automaton, build
from playground.engine.grammar.json_schema import schema_rules


def compiled(schema: Any, strict: bool = True) -> Automaton:
    return build(*schema_rules(schema, strict))


def spaced(value: Any) -> bytes:
    """A document in the one layout of the grammars: ``, `` and ``: ``, characters raw."""
    return json.dumps(value, ensure_ascii=False).encode()


def obj(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        **more,
    }


INT, STR, BOOL, NULL, NUM = ({"type": t} for t in ("integer", "string", "boolean", "null", "number"))
LINKED = {
    "$defs": {"n": obj({"v": INT, "next": {"anyOf": [{"$ref": "#/$defs/n"}, NULL]}})},
    "$ref": "#/$defs/n",
}
