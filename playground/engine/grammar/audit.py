"""What an engine makes of a schema, keyword by keyword: established by trying, with ``jsonschema`` as the judge."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from playground.engine.grammar.compiled import check_schema
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.json_schema import ANNOTATIONS
from playground.engine.grammar.samples import documents, oddities, samples
from playground.engine.trace import step

Reads = Callable[[bytes], bool]
Compile = Callable[[Any], Reads]  # raises GrammarError for what the engine refuses
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
SCHEMA_ONES = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
CONTAINERS = ("type", "properties", "items", "prefixItems", "$ref", "required", "anyOf")
HOLDERS = ("properties", "items", "prefixItems", "$ref")  # what breaks a keyword below them is that keyword's
UNCONTROLLED = (*CONTAINERS, "additionalProperties")  # without them the engine may still say no, for good reasons
LENGTHS, BOUNDS = ("minLength", "maxLength"), ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
FAMILIES = {  # what is taken out together when asking whether a keyword costs valid documents
    **dict.fromkeys(LENGTHS, LENGTHS),
    **dict.fromkeys(BOUNDS, BOUNDS),
    "properties": ("properties", "required"),
}
TEXT_WORDS = ("minLength", "maxLength", "pattern")  # a document that is no JSON is held against these
VERDICTS = ("refused", "ignored", "over_restricted", "enforced")  # the worst first


@step
@dataclass(frozen=True)
class Finding:
    """``verdict`` on a keyword (one of ``VERDICTS``; ``None``: no document told), and the smallest document for it."""

    keyword: str
    verdict: str | None
    counterexample: str | None
    reason: str


def places(schema: Any, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    """Where each keyword of a schema stands: the path of its subschema, and the keyword; annotations are left out."""
    if not isinstance(schema, Mapping):
        return
    for word, value in schema.items():
        if word not in ANNOTATIONS:
            yield path, word
        if word in SCHEMA_MAPS and isinstance(value, Mapping):
            for name, sub in value.items():
                yield from places(sub, (*path, word, name))
        elif word in SCHEMA_LISTS and isinstance(value, list):
            for i, sub in enumerate(value):
                yield from places(sub, (*path, word, i))
        elif word in SCHEMA_ONES:
            yield from places(value, (*path, word))


def without(schema: Any, found: Sequence[tuple[tuple, str]]) -> Any:
    """``schema`` with the keyword taken out at each of these places; deeper places go first."""
    reduced = copy.deepcopy(schema)
    for path, word in sorted(found, key=lambda place: -len(place[0])):
        target = reduced
        for part in path:
            target = target[part]
        target.pop(word, None)
    return reduced


def audit(schema: Any, compile_: Compile, seed: int = 0) -> list[Finding]:
    """A finding for each keyword of ``schema``, in the order in which they stand there.

    A keyword is *ignored* when the engine reads a document that breaks the schema by this keyword alone,
    *over-restricted* when it turns down a valid one that it reads once the keyword is gone, *refused* when it compiles
    only without it, *enforced* when it turns down what breaks it and nothing else was found. Raises ``GrammarError``
    when the schema itself is invalid.
    """
    check_schema(schema)
    by_word: dict[str, list[tuple[tuple, str]]] = {}
    for path, word in places(schema):
        by_word.setdefault(word, []).append((path, word))
    refused: dict[str, str] = {}
    reduced, reads = schema, None
    while reads is None:
        try:
            reads = compile_(reduced)
        except GrammarError as error:
            word = _culprit(reduced, by_word, refused, compile_)
            if word is None:
                raise
            refused[word] = str(error)
            reduced = without(reduced, [place for place in places(reduced) if place[1] == word])
    trials = _trials(schema, reduced, reads, seed)
    findings, explained = {}, set()
    # What holds other keywords comes last and answers only for what those do not explain.
    for word in sorted(by_word, key=lambda word: (word in CONTAINERS) + (word in HOLDERS)):
        if word in refused:
            findings[word] = Finding(word, "refused", None, refused[word])
        else:
            findings[word] = _judge(
                word, reduced, compile_, trials, explained if word in CONTAINERS else set(), explained
            )
    return [findings[word] for word in by_word]


def _culprit(schema: Any, words: Mapping[str, Any], done: Mapping[str, str], compile_: Compile) -> str | None:
    """The keyword without which the engine takes the schema, or at least complains about something else.

    One that the complaint names comes first, the last named before the others.
    """
    complaint = _complaint(schema, compile_) or ""
    candidates = sorted((word for word in words if word not in done), key=lambda word: -complaint.rfind(word))
    second = None
    for word in candidates:
        trial = without(schema, [place for place in places(schema) if place[1] == word])
        if trial != schema:
            new = _complaint(trial, compile_)
            if new is None:
                return word
            if new != complaint and second is None:
                second = word
    return second


def _complaint(schema: Any, compile_: Compile) -> str | None:
    try:
        compile_(schema)
    except GrammarError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Trial:
    """One document: its value (``None`` where it is no JSON) and whether the engine reads it in any plain layout."""

    text: bytes
    value: Any
    is_json: bool
    is_plain: bool
    is_read: bool


def _trials(schema: Any, reduced: Any, reads: Reads, seed: int) -> list[Trial]:
    """Documents to try, the shortest first."""
    rng, found = random.Random(seed), {}
    for value in samples([schema, reduced] if reduced != schema else [schema], rng):
        spaced, compact = documents(value)
        if spaced not in found:
            found[spaced] = Trial(spaced, value, True, True, reads(spaced) or reads(compact))
            for text in oddities(value):
                try:
                    odd, is_json = json.loads(text), True
                except ValueError:
                    odd, is_json = None, False
                found.setdefault(text, Trial(text, odd, is_json, False, reads(text)))
    return sorted(found.values(), key=lambda trial: (len(trial.text), trial.text))


def _judge(
    word: str, schema: Any, compile_: Compile, trials: Sequence[Trial], skip: set[bytes], explained: set[bytes]
) -> Finding:
    """The finding on one keyword; documents in ``skip`` are explained already, and new explanations are added."""
    alone = without(schema, [place for place in places(schema) if place[1] == word])
    whole, rest = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(alone)
    broken, ignored, turned_down = [], [], []
    for trial in trials:
        valid = trial.is_json and _is_valid(whole, trial.value)
        if not valid and (_is_valid(rest, trial.value) if trial.is_json else word in TEXT_WORDS):
            if not trial.is_read:
                broken.append(trial)
            elif word not in HOLDERS or trial.text not in skip:
                ignored.append(trial)
        elif valid and trial.is_plain and not trial.is_read and trial.text not in skip:
            turned_down.append(trial.text)
    if ignored:
        explained |= {trial.text for trial in ignored}
        why = "it breaks the schema by this keyword alone" if ignored[0].is_json else "it is no JSON"
        return Finding(word, "ignored", ignored[0].text.decode(), f"The engine reads this document, though {why}.")
    family = FAMILIES.get(word, (word,))
    freed = without(schema, [place for place in places(schema) if place[1] in family])
    if turned_down and (blamed := _read_by(compile_, freed, turned_down)):
        explained |= set(blamed)
        return Finding(word, "over_restricted", blamed[0].decode(), "The engine turns down this valid document.")
    plain = [trial.text for trial in broken if trial.is_plain]
    caught = (
        plain if word in UNCONTROLLED else _read_by(compile_, alone, plain)
    )  # by this keyword, not by something else
    if caught:
        return Finding(word, "enforced", None, f"{len(caught)} documents that break it alone were turned down.")
    return Finding(word, None, None, "No document told whether this keyword is enforced.")


def _read_by(compile_: Compile, schema: Any, texts: Sequence[bytes]) -> list[bytes]:
    try:
        reads = compile_(schema)
    except GrammarError:
        return []
    return [text for text in texts if reads(text)]


def _is_valid(validator: jsonschema.Draft202012Validator, value: Any) -> bool:
    try:
        return validator.is_valid(value)
    except Exception:  # an endless or dangling reference judges nothing
        return False
