"""A grammar ready to use, by this package or by xgrammar: it opens matchers, and reads whole texts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jsonschema

from playground.engine.grammar.automaton import build
from playground.engine.grammar.bitmask import Masks
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.json_schema import schema_rules
from playground.engine.grammar.matcher import Matcher, OwnMatcher
from playground.engine.grammar.regex import parse_regex
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.worker import CompileWorker
from playground.engine.grammar.xgrammar_matcher import XGrammarMatcher
from playground.engine.model import LanguageModel

if TYPE_CHECKING:
    import xgrammar

REGEX, SCHEMA, EBNF = "regex", "json_schema", "ebnf"


class Compiled(Protocol):
    """``compile_ms`` is the processor time of getting ready, masks included where they are made ahead of time."""

    compile_ms: float

    def matcher(self) -> Matcher: ...
    def reads(self, text: bytes) -> bool:
        """Whether ``text`` is whole and legal."""


@dataclass(frozen=True)
class Own:
    """This package's automaton, and its masks over a vocabulary."""

    masks: Masks
    compile_ms: float

    def matcher(self) -> OwnMatcher:
        return OwnMatcher(self.masks)

    def reads(self, text: bytes) -> bool:
        return self.masks.automaton.matches(text)


@dataclass(frozen=True)
class Production:
    """xgrammar's grammar, compiled in its process."""

    grammar: xgrammar.CompiledGrammar
    compile_ms: float

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self.grammar)

    def reads(self, text: bytes) -> bool:
        return self.matcher().reads(text)


@dataclass(frozen=True)
class Workshop:
    """Compiles grammars over one vocabulary with either engine."""

    trie: TokenTrie
    worker: CompileWorker

    def own(self, kind: str, grammar: Any, strict: bool = True, warm: bool = True) -> Own:
        """Raises ``GrammarError``; there is no EBNF here. ``warm`` makes the mask of every state ahead of time."""
        if kind == EBNF:
            raise GrammarError("EBNF is read by xgrammar only; choose that engine.")
        began = time.thread_time()
        automaton = (
            build({REGEX: parse_regex(grammar)}, REGEX) if kind == REGEX else build(*schema_rules(grammar, strict))
        )
        masks = Masks(automaton, self.trie)
        if warm:
            masks.warm()
        return Own(masks, 1e3 * (time.thread_time() - began))

    def production(self, kind: str, grammar: Any, strict: bool = True) -> Production:
        """Raises ``GrammarError``, also for what takes too long."""
        return Production(*self.worker.compile(kind, grammar, strict))


_SHOPS: dict[int, tuple[LanguageModel, Workshop]] = {}  # of the last few models
MAX_SHOPS = 2
_LOCK = threading.Lock()


def workshop(model: LanguageModel) -> Workshop:
    """The workshop of a model's vocabulary, kept for the next run: tree and process take longer to make than to use.

    Its process has not started yet; ``worker.start()`` begins that without waiting.
    """
    with _LOCK:
        known, shop = _SHOPS.pop(id(model), (None, None))
        if known is not model:
            trie = TokenTrie(model.token_bytes(), model.eos_ids)
            shop = Workshop(trie, CompileWorker(trie))
        _SHOPS[id(model)] = (model, shop)
        while len(_SHOPS) > MAX_SHOPS:
            _SHOPS.pop(next(iter(_SHOPS)))[1].worker.close()
        return shop


def read_schema(text: str) -> Mapping[str, Any] | bool:
    """A JSON schema typed by somebody; raises ``GrammarError`` that names the line of what is no JSON."""

    def refuse(name: str) -> None:
        raise GrammarError(f"The schema has {name}, which is not a JSON value.")

    try:
        schema = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise GrammarError(f"The schema is no JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise GrammarError("The schema is nested too deeply.") from None
    if not isinstance(schema, (dict, bool)):
        raise GrammarError("A schema is an object, true or false.")
    check_schema(schema)
    return schema


def check_schema(schema: Any) -> None:
    """Raises ``GrammarError`` that names the place where ``schema`` breaks the rules for schemas."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(["#", *map(str, error.absolute_path)])
        raise GrammarError(f"{where} is not valid in a JSON schema: {error.message[:120]}.") from None
    except RecursionError:
        raise GrammarError("The schema is nested too deeply.") from None
