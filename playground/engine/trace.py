"""What a run reported: lanes of steps. Immutable, JSON in and out; every picture is drawn from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

FORMAT = "decoding-playground-trace/1"
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

    ``margin`` is the gap between the two largest logits after the knobs (nats); ``None`` with fewer than two tokens left.
    """

    argmax: int
    margin: float | None
    top: tuple[Candidate, ...]
    tail_p: float
    tail_q: float | None


@dataclass(frozen=True)
class Node:
    """One drafted token and what became of it: ``accepted``, ``rejected``, ``unjudged`` or ``blocked`` (by a grammar).

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
    """One output token: ``accepted``, ``recovered``, ``bonus`` or ``plain``; ``logprob`` is the raw model's (nats)."""

    token: int
    kind: str
    p: float
    logprob: float


@step
@dataclass(frozen=True)
class Pass:
    """One target pass: the draft it judged, the laws it saw, the tokens it put out, the KV rows and the milliseconds.

    ``rows[0]`` follows the last committed token and ``rows[i + 1]`` follows ``nodes[i]``. ``num_verified`` counts
    accepted drafts before any stop rule cut them (vLLM's counter); ``discarded`` the tokens that were cut.
    ``started_ms`` is measured from the start of the lane, on the lane's own clock.
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

    @property
    def num_accepted(self) -> int:
        return sum(o.kind == "accepted" for o in self.outputs)

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
        """One JSON object; raises ``ValueError`` for NaN or infinity."""
        lanes = [
            {"name": lane.name, "prompt": lane.prompt, "steps": [{"step": type(s).__name__, **asdict(s)} for s in lane.steps]}
            for lane in self.lanes
        ]
        data = {"format": FORMAT, "lanes": lanes, "texts": {str(k): v for k, v in self.texts.items()}}
        return json.dumps({**data, "provenance": dict(self.provenance)}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that ``to_json`` wrote; raises ``ValueError`` with one sentence for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"This file is not JSON: {error}.") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"This file is not a trace of this app: it must carry the format {FORMAT!r}.")
        try:
            lanes = tuple(
                Lane(str(lane["name"]), tuple(int(t) for t in lane["prompt"]), tuple(_read_step(s) for s in lane["steps"]))
                for lane in data["lanes"]
            )
            texts = {int(k): str(v) for k, v in data["texts"].items()}
            return Trace(lanes, texts, dict(data["provenance"]))
        except (KeyError, TypeError, AttributeError, ValueError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"This trace is damaged: {reason}.") from None


def _read_step(data: dict[str, Any]) -> Any:
    name = data["step"]
    if name not in _STEP_TYPES:
        raise ValueError(f"unknown kind of step {name!r}")
    return TypeAdapter(_STEP_TYPES[name]).validate_python({k: v for k, v in data.items() if k != "step"})
