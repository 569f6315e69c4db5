"""A request: which preset, which parameters. Page, URL, API and command line are checked the same way."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playground.lab import BadInput, Lab, read_params, read_value, write_value

RESERVED = ("preset", "hide", "run", "step")  # names in a URL that are not parameters


@dataclass(frozen=True)
class Request:
    """Checked parameters of one lab; ``preset`` is the name of the preset they started from, or empty."""

    lab: Lab
    params: Any
    preset: str = ""

    @property
    def changes(self) -> dict[str, str]:
        """The parameters that differ from the preset's, or from the defaults without one, as text."""
        base = read_request(self.lab, {}, self.preset).params
        names = [f.name for f in dataclasses.fields(self.lab.params)]
        return {n: write_value(getattr(self.params, n)) for n in names if getattr(self.params, n) != getattr(base, n)}


def read_request(lab: Lab, values: Mapping[str, Any], preset: str | None = "") -> Request:
    """``values`` laid over the preset's parameters, or over the defaults. Raises ``BadInput`` with one sentence."""
    preset = preset or ""
    if preset and (not isinstance(preset, str) or preset not in lab.presets):
        known = f"there are {', '.join(lab.presets)}" if lab.presets else "this lab has none"
        raise BadInput(f"There is no preset {str(preset)[:40]!r}; {known}.")
    base = lab.presets[preset].params if preset else {}
    return Request(lab, read_params(lab.params, {**base, **values}), preset)


@dataclass(frozen=True)
class Address:
    """What a URL asks for: the request, the controls it hides, and a sentence for each value that was not usable."""

    request: Request
    hidden: frozenset[str]
    problems: tuple[str, ...]


def read_address(lab: Lab, query: Mapping[str, str]) -> Address:
    """Never raises: a value that cannot be used is named in ``problems``, and its default stands."""
    fields = {f.name: f for f in dataclasses.fields(lab.params)}
    hints = typing.get_type_hints(lab.params)
    values: dict[str, Any] = {}
    problems: list[str] = []
    preset = query.get("preset", "")
    try:
        read_request(lab, {}, preset)
    except BadInput as error:
        problems.append(str(error))
        preset = ""
    for name, text in query.items():
        if name in RESERVED or name.startswith("__"):  # two underscores: Gradio's own
            continue
        try:
            if name not in fields:
                raise BadInput(f"There is no parameter {name[:40]!r}.")
            values[name] = read_value(fields[name], hints[name], text)
        except BadInput as error:
            problems.append(f"{error} Its default is used.")
    try:
        request = read_request(lab, values, preset)
    except BadInput as error:  # each value is fine, together they are not
        problems.append(f"{error} The defaults are used.")
        request = read_request(lab, {}, preset)
    if not request.preset:
        request = dataclasses.replace(request, preset=matching_preset(request))
    hidden = frozenset(part.strip() for part in query.get("hide", "").split(",")) & {*fields, "preset"}
    return Address(request, hidden, tuple(problems))


def matching_preset(request: Request) -> str:
    """The first preset with exactly these parameters, or empty."""
    for name in request.lab.presets:
        if read_request(request.lab, {}, name).params == request.params:
            return name
    return ""
