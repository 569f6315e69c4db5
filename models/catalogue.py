"""The catalogue: shapes of models that people serve and hardware that they serve them on, as data with sources.

Model sizes are those of the public ``config.json``; hardware figures are the vendor's data sheet, dense bf16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from playground.engine.cost import Hardware
from playground.engine.shapes import Shape, from_config, from_fields

FILE = Path(__file__).with_name("catalogue.json")


@cache
def read() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """``models`` and ``hardware``: key -> entry, in the file's order."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def names(kind: str) -> tuple[str, ...]:
    """The keys under ``models`` or ``hardware``."""
    return tuple(read()[kind])


def entry(kind: str, key: str) -> Mapping[str, Any]:
    """One entry; raises ``ValueError`` that lists the keys when there is none."""
    found = read()[kind].get(key.strip().lower())
    if found is None:
        raise ValueError(f"The catalogue has no {kind} entry {key[:40]!r}; it has {', '.join(names(kind))}.")
    return found


def shape(key: str) -> Shape:
    """The shape of the model ``key``, for instance ``llama-3.3-70b``; or of a ``config.json`` given as text."""
    if key.lstrip().startswith("{"):
        return from_config(key)
    return from_fields(_without(entry("models", key), "hub", "source"))


def hardware(key: str) -> Hardware:
    """One device of the kind ``key``, for instance ``h100``."""
    return Hardware(**_without(entry("hardware", key), "source"))


def _without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}
