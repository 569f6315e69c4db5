"""What a run reported: lanes of steps. Immutable, JSON in and out; every picture is drawn from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

FORMAT = "decoding-playground-trace/1"
MAX_STEPS = 2_000  # of all lanes of a trace that is read: pictures are drawn step by step
STATES = ("accepted", "rejected", "unjudged", "blocked")  # of a drafted token
KINDS = ("accepted", "recovered", "bonus", "plain")  # of an output token
_STEP_TYPES: dict[str, type] = {}
T = TypeVar("T")


def step(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass that may stand in a lane and travel as JSON under its class name."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} must be a dataclass")
    _STEP_TYPES[cls.__name__] = cls
    return cls


@dataclass(frozen=True)
class KVRows:
    """Rows of one KV cache in one step: ``before`` the step, then ``written``, of which ``kept`` or ``rolled_back``.

    ``missing`` counts committed tokens, other than the newest, that have no row yet (a drafter after full acceptance).
    """

    before: int
    written: int
    kept: int
    rolled_back: int
    missing: int = 0


@dataclass(frozen=True)
class Candidate:
    """One token in a row's law: target probability, draft probability, and what is left of it after a rejection."""

    token: int
    p: float
    q: float | None = None
    residual: float | None = None


@dataclass(frozen=True)
class Row:
    """The target's law after one position: the likeliest tokens, the mass of all others, and the top-2 margin.

    ``margin`` is the gap between the two largest logits after the knobs (nats); ``None`` with fewer than two left.
    """

    argmax: int
    margin: float | None
    top: tuple[Candidate, ...]
    tail_p: float
    tail_q: float | None


@dataclass(frozen=True)
class Node:
    """One drafted token and what became of it, one of ``STATES``; ``blocked`` is a grammar's doing.

    ``q`` is ``None`` for a token chosen without chance; ``coin`` is ``None`` where none was needed.
    """

    token: int
    parent: int
    depth: int
    state: str
    p: float
    q: float | None
    coin: float | None


@dataclass(frozen=True)
class Output:
    """One output token, of one of ``KINDS``; ``logprob`` is the raw model's, before the knobs (nats)."""

    token: int
    kind: str
    p: float
    logprob: float


@dataclass(frozen=True)
class RowMask:
    """What a grammar's bitmask did to one row: legal tokens, and the mass that the model itself had given to them.

    ``top`` are the likeliest tokens of the law before the mask. ``bits`` is the mask: int32 words, zlib, base64.
    """

    num_legal: int
    feasible_mass: float
    place: str
    top: tuple[Candidate, ...]
    bits: str


@step
@dataclass(frozen=True)
class Pass:
    """One target pass: the draft it judged, the laws it saw, the tokens it put out, the KV rows and the milliseconds.

    ``rows[0]`` follows the last committed token and ``rows[i + 1]`` follows ``nodes[i]``. ``num_verified`` counts
    accepted drafts before any stop rule cut them (vLLM's counter); ``discarded`` the tokens that were cut.
    ``started_ms`` is measured from the start of the lane, on the lane's own clock. Under a grammar, ``masks[i]`` tells
    what was done to ``rows[i]`` (``None``: nothing, it lies behind an illegal token or the end), and ``mask_ms`` is the
    time for walking the draft and filling the masks, part of ``other_ms``.
    """

    start: int
    nodes: tuple[Node, ...]
    rows: tuple[Row, ...]
    outputs: tuple[Output, ...]
    emit_coin: float | None
    num_verified: int
    discarded: int
    target_kv: KVRows
    drafter_kv: KVRows | None
    started_ms: float
    draft_ms: float
    verify_ms: float
    other_ms: float
    finish: str | None = None
    note: str | None = None
    masks: tuple[RowMask | None, ...] = ()
    mask_ms: float | None = None

    def check(self) -> None:
        """Raises ``ValueError`` where nodes, rows and outputs do not fit together: every picture relies on that."""
        if self.masks and len(self.masks) != len(self.rows):
            raise ValueError(f"a pass has {len(self.rows)} rows but {len(self.masks)} masks")
        if len(self.rows) != len(self.nodes) + 1 or not 1 <= len(self.outputs) <= len(self.rows):
            counts = f"{len(self.nodes)} drafted tokens, {len(self.rows)} rows, {len(self.outputs)} output tokens"
            raise ValueError(f"a pass has {counts}")
        for i, node in enumerate(self.nodes):
            if not -1 <= node.parent < i or node.depth != (1 if node.parent < 0 else self.nodes[node.parent].depth + 1):
                raise ValueError(f"node {i} has parent {node.parent} and depth {node.depth}")
            if node.state not in STATES:
                raise ValueError(f"node {i} is in the unknown state {node.state[:40]!r}")
        for output in self.outputs:
            if output.kind not in KINDS:
                raise ValueError(f"an output token is of the unknown kind {output.kind[:40]!r}")

    @property
    def num_accepted(self) -> int:
        return sum(o.kind == "accepted" for o in self.outputs)

    @property
    def tokens(self) -> list[int]:
        """Every token that a picture of this step may show."""
        shown = {candidate.token for row in self.rows for candidate in row.top} | {row.argmax for row in self.rows}
        shown |= {candidate.token for mask in self.masks if mask for candidate in mask.top}
        return sorted(shown | {node.token for node in self.nodes} | {out.token for out in self.outputs})

    @property
    def ended_ms(self) -> float:
        return self.started_ms + self.draft_ms + self.verify_ms + self.other_ms


@dataclass(frozen=True)
class Lane:
    """A named run of steps after a prompt of token ids."""

    name: str
    prompt: tuple[int, ...] = ()
    steps: tuple[Any, ...] = ()

    @property
    def output_tokens(self) -> tuple[int, ...]:
        return tuple(o.token for s in self.steps for o in s.outputs)

    @property
    def finish(self) -> str | None:
        return self.steps[-1].finish if self.steps else None


@dataclass(frozen=True)
class Trace:
    """Lanes, the text of every token that appears in them, and where the figures come from."""

    lanes: tuple[Lane, ...] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Lane:
        for lane in self.lanes:
            if lane.name == name:
                return lane
        raise KeyError(f"no lane named {name!r}; there are {[lane.name for lane in self.lanes]}")

    def open(self, name: str, prompt: Iterable[int] = ()) -> Trace:
        """This trace with one more, empty lane."""
        return replace(self, lanes=(*self.lanes, Lane(name, tuple(prompt))))

    def add(self, name: str, new: Any, texts: Mapping[int, str] | None = None) -> Trace:
        """This trace with one more step at the end of lane ``name``."""
        lanes = tuple(replace(lane, steps=(*lane.steps, new)) if lane is self[name] else lane for lane in self.lanes)
        return replace(self, lanes=lanes, texts={**self.texts, **(texts or {})})

    def to_json(self) -> str:
        """One JSON object in plain ASCII; raises ``ValueError`` for NaN or infinity."""
        data = {
            "format": FORMAT,
            "lanes": [_write_lane(lane) for lane in self.lanes],
            "texts": {str(k): v for k, v in self.texts.items()},
            "provenance": dict(self.provenance),
        }
        return json.dumps(data, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that ``to_json`` wrote; raises ``ValueError`` with one sentence for anything else."""
        try:
            data = json.loads(text, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"This file is not JSON: {error}.") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"This file is not a trace of this app: it must carry the format {FORMAT!r}.")
        try:
            num_steps = sum(len(lane["steps"]) for lane in data["lanes"])
            if num_steps > MAX_STEPS:
                raise ValueError(f"it has {num_steps:,} steps; no run makes more than {MAX_STEPS:,}")
            lanes = tuple(_read_lane(lane) for lane in data["lanes"])
            texts = {int(k): str(v) for k, v in data["texts"].items()}
            return Trace(lanes, texts, dict(data["provenance"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"This trace is damaged: {_reason(error)}.") from None


_adapter = cache(TypeAdapter)


def _write_lane(lane: Lane) -> dict[str, Any]:
    steps = [{"step": type(s).__name__, **_adapter(type(s)).dump_python(s, warnings=False)} for s in lane.steps]
    return {"name": lane.name, "prompt": lane.prompt, "steps": steps}


def _read_lane(data: dict[str, Any]) -> Lane:
    prompt = _adapter(tuple[int, ...]).validate_python(data["prompt"])
    return Lane(str(data["name"]), prompt, tuple(_read_step(item) for item in data["steps"]))


def _read_step(data: dict[str, Any]) -> Any:
    name = data["step"]
    if name not in _STEP_TYPES:
        raise ValueError(f"unknown kind of step {str(name)[:40]!r}")
    read = _adapter(_STEP_TYPES[name]).validate_python({k: v for k, v in data.items() if k != "step"})
    if isinstance(read, Pass):
        read.check()
    return read


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _reason(error: Exception) -> str:
    """One clause that says what is wrong and where."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
