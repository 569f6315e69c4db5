"""A lab: one exhibit as data and pure functions. The shell, the command line and the API are built from it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from playground.engine.cost import Hardware, Shape
from playground.engine.drafters import Drafter
from playground.engine.model import LanguageModel
from playground.engine.precision import Variant
from playground.engine.progress import Progress
from playground.engine.trace import Trace
from playground.ledger import ledger

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("verify", "draft", "constrain", "sample and search", "numerics", "serve", "yours")
MAX_TEXT = 8_000  # characters of one text parameter that does not say otherwise


class BadInput(ValueError):
    """What the user asked for cannot be done; the message is one sentence that says why and what to do."""


Update = Trace | Progress


class Models(Protocol):
    """What a lab may ask of the model loader. Loading is a generator of ``Progress`` that returns the result."""

    def load(self, target: str, dtype: str = "auto", device: str = "auto") -> Generator[Progress, None, LanguageModel]:
        """The language model ``target``: ``default``, ``table``, a name of the catalogue, a hub id, or a folder."""

    def variant(
        self, target: str, numerics: str, dtype: str = "auto", device: str = "auto"
    ) -> Generator[Progress, None, Variant]:
        """``target`` in the numerics of that name; a ``reason`` instead of a model where it does not run here."""

    def drafter(
        self, name: str, target: LanguageModel, tokens: Sequence[int], **options: Any
    ) -> Generator[Progress, None, Drafter]:
        """The drafter ``name`` (``none``, ``ngram``, ``layer_skip``, ...) for ``target``, on a sequence of tokens.

        Options are ``knobs``, ``draft_layers``, ``longest``, ``shortest``, and ``grower``, which makes it draft trees.
        """

    def held_out(self) -> Mapping[str, Sequence[str]]:
        """Prompts by class (chat, code, json, copy) that no trained drafter has seen."""

    def record(self, name: str) -> Mapping[str, Any] | None:
        """Where the weights of the trained drafter ``name`` come from, and their held-out acceptance."""

    def shape(self, name: str) -> Shape:
        """The sizes of the catalogue's model ``name``, to price it. ``ValueError`` lists the names."""

    def hardware(self, name: str) -> Hardware:
        """One device of the catalogue's kind ``name``; ``ValueError`` lists the names."""


# --- Parameters ---


def control(
    default: Any,
    label: str,
    info: str = "",
    *,
    min: float | None = None,
    max: float | None = None,
    step: float | None = None,
    choices: Sequence[str] | None = None,
    free: bool = False,
    lines: int = 1,
    max_chars: int = MAX_TEXT,
    from_file: Callable[[str], str] | None = None,
    cards: Mapping[str, str] | None = None,
    group: str = "",
) -> Any:
    """A field of ``Params``: its default, and how it is shown.

    Numbers with ``min`` and ``max`` become sliders; ``choices`` a dropdown (``free``: other values may be typed in), or
    boxes to tick for a tuple; a text of several ``lines`` a text box. With ``from_file`` it may also be filled from
    files, several of them with lines ``---`` between: the function keeps of a file's text what the lab reads. ``cards``
    names the letters of a text that is an order, which can then be dragged too. Controls with a ``group`` stand
    together under that heading.
    """
    meta = {"label": label, "info": info, "min": min, "max": max, "step": step, "group": group}
    more = {
        "choices": choices,
        "free": free,
        "lines": lines,
        "max_chars": max_chars,
        "from_file": from_file,
        "cards": cards,
    }
    return field(default=default, metadata={**meta, **more})


def read_params(cls: type, raw: Mapping[str, Any]) -> Any:
    """``cls`` from names and values (strings are parsed). ``BadInput`` names the parameter and its range."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in raw:
        if name not in fields:
            raise BadInput(f"There is no parameter {brief(name)}; there are {', '.join(fields)}.")
    values = {name: read_value(fields[name], hints[name], value) for name, value in raw.items()}
    try:
        return cls(**values)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from None


def read_value(field_: dataclasses.Field, hint: Any, value: Any) -> Any:
    """One parameter, parsed and checked against its type, range and choices."""
    name, meta = field_.name, field_.metadata
    kinds = [t for t in typing.get_args(hint) if t is not type(None)] if isinstance(hint, types.UnionType) else [hint]
    if value is None or (value in ("", []) and len(kinds) and type(None) in typing.get_args(hint)):
        if type(None) in typing.get_args(hint):
            return None
        raise BadInput(f"{name} is missing.")
    kind = kinds[0]
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
        else:
            parts = list(value) if isinstance(value, (list, tuple)) else [value]
        items = tuple(_scalar(name, item, part, MAX_TEXT) for part in parts if part != "")
        for part in items:
            _check(name, meta, part)
        return items
    value = _scalar(name, kind, value, meta.get("max_chars", MAX_TEXT))
    _check(name, meta, value)
    return value


def _scalar(name: str, kind: type, value: Any, max_chars: int) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "1", "yes", "on"):
            return True
        if str(value).lower() in ("false", "0", "no", "off"):
            return False
        raise BadInput(f"{name} must be true or false, not {brief(value)}.")
    if kind is str:
        text = str(value)
        if len(text) > max_chars:
            raise BadInput(f"{name} has {len(text):,} characters; at most {max_chars:,} are read.")
        return text
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        wanted = "a whole number" if kind is int else "a number"
        raise BadInput(f"{name} must be {wanted}, not {brief(value)}.") from None
    with contextlib.suppress(ValueError):
        return kind(str(value))  # a whole number of any size keeps its digits
    return kind(number)


def brief(value: Any) -> str:
    """A value that somebody typed, quoted in a message and never long.

    >>> brief("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    text = str(value)
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _check(name: str, meta: Mapping[str, Any], value: Any) -> None:
    low, high, choices = meta.get("min"), meta.get("max"), meta.get("choices")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and ((low is not None and value < low) or (high is not None and value > high)):
        raise BadInput(f"{name} must lie between {low} and {high}, not {value:.6g}.")
    if choices is not None and not meta.get("free") and value not in choices:
        raise BadInput(f"{name} must be one of {', '.join(map(str, choices))}, not {brief(value)}.")


def write_value(value: Any) -> str:
    """A parameter as text that ``read_value`` reads back: for URLs, command lines and text boxes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(write_value, value))
    return repr(value) if isinstance(value, float) else str(value)


# --- The exhibit ---


@dataclass(frozen=True)
class Figure:
    """One headline figure: a value ready to read, what it is, and where it comes from.

    ``source`` is ``measured`` (in this run), ``priced`` (computed from stated assumptions), ``exact`` (follows from the
    inputs alone) or ``recorded`` (read from a file).
    """

    value: str
    label: str
    source: str = ""


@dataclass(frozen=True)
class Frame:
    """One position of the player: a sentence for the status line, and the picture as HTML from ``views.html``."""

    status: str
    html: str


@dataclass(frozen=True)
class Chart:
    """A plotly figure of a trace, shown below the player; ``draw`` returns ``None`` when it has nothing to show."""

    title: str
    draw: Callable[[Trace], Any]
    note: str = ""


@dataclass(frozen=True)
class Question:
    """One interview question: what a good answer contains, follow-ups, mistakes, and the preset that shows it."""

    ask: str
    answer: tuple[str, ...]
    follow_ups: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    preset: str = ""


@dataclass(frozen=True)
class Preset:
    """Teaching example: parameters, what to look at, and the figures of ``summary`` that it must show.

    ``expect`` maps a (dotted) key of the summary to a value, or to ``{"approx": x, "abs": tolerance}``, ``{"min": x}``,
    ``{"max": x}``.
    """

    name: str
    title: str
    note: str
    params: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)


def frames_of_lead(trace: Trace) -> int:
    """As many frames as the first lane has steps."""
    return len(trace.lanes[0].steps) if trace.lanes else 0


@dataclass(frozen=True)
class Lab:
    """One exhibit. A module in ``labs/`` defines it as ``LAB``; its presets lie in ``presets/<slug>.json``."""

    slug: str
    title: str
    question: str  # what the lab answers, in one sentence
    group: str  # one of GROUPS
    order: int  # in teaching order over all labs
    params: type  # frozen dataclass of control() fields
    run: Callable[[Any, Models], Iterator[Update]]
    summary: Callable[[Trace], dict[str, Any]]
    figures: Callable[[Mapping[str, Any]], Sequence[Figure]]
    frame: Callable[[Trace, int], Frame]
    num_frames: Callable[[Trace], int] = frames_of_lead
    charts: tuple[Chart, ...] = ()
    how: str = ""  # Markdown: how it works
    code: Callable[[Any], Sequence[Callable[..., Any]]] = lambda params: ()  # the functions that ran, shown as source
    questions: tuple[Question, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()  # (title, address)
    presets: Mapping[str, Preset] = field(default_factory=dict)


def folders() -> tuple[Path, ...]:
    """Where labs come from: this package, and every folder named in ``PLAYGROUND_PATH`` (each with labs/, presets/)."""
    extra = os.environ.get("PLAYGROUND_PATH", "")
    return (ROOT, *(Path(part) for part in extra.split(os.pathsep) if part))


@cache
def discover(roots: tuple[Path, ...]) -> Mapping[str, Lab]:
    """Every lab below ``roots``, by slug, in teaching order. Raises ``ValueError`` for a slug that stands twice."""
    labs: dict[str, Lab] = {}
    for root in roots:
        home = root / "playground" / "labs" if root == ROOT else root / "labs"
        for file in sorted(home.glob("[!_]*.py")):
            lab = _load_module(file).LAB
            if lab.slug in labs:
                raise ValueError(f"{file} defines the lab {lab.slug!r} a second time.")
            labs[lab.slug] = dataclasses.replace(lab, presets=read_presets(root / "presets" / f"{lab.slug}.json"))
    return dict(sorted(labs.items(), key=lambda item: (GROUPS.index(item[1].group), item[1].order, item[0])))


def _load_module(file: Path) -> types.ModuleType:
    if file.is_relative_to(ROOT):
        return importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    spec = importlib.util.spec_from_file_location(f"playground_lab_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read_presets(file: Path) -> Mapping[str, Preset]:
    """The presets of one lab by name, in the file's order: a JSON list of objects with the fields of ``Preset``."""
    if not file.exists():
        return {}
    return {item["name"]: Preset(**item) for item in json.loads(file.read_text(encoding="utf-8"))}


def execute(lab: Lab, params: Any, models: Models) -> Iterator[Update]:
    """Run a lab, and count its passes; every trace carries the lab's name and parameters in its provenance."""
    counted = ledger.watch()
    about = {"lab": lab.slug, "params": {f.name: _plain(getattr(params, f.name)) for f in dataclasses.fields(params)}}
    for update in lab.run(params, models):
        if isinstance(update, Trace):
            counted.tell(update)
            update = dataclasses.replace(update, provenance={**about, **update.provenance})
        yield update


def _plain(value: Any) -> Any:
    """A parameter as JSON gives it back, so that a trace equals itself after a round trip."""
    return list(value) if isinstance(value, tuple) else value


def params_of(lab: Lab, trace: Trace) -> Any:
    """The parameters that a trace was made with."""
    return read_params(lab.params, trace.provenance.get("params", {}))
