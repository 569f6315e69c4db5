"""Every preset of every lab runs, and shows the figures that it claims."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from models import catalogue
from models.load import Models, ModelUnavailable
from playground.engine.trace import Trace
from playground.lab import Lab, Preset, discover, execute, folders, read_params

MAX_CHARS = 1_000_000  # of all frames of one run


class Asks:
    """Stands in for the loader to see which model a run wants first."""

    def __init__(self) -> None:
        self.target: str | None = None

    def load(self, target: str, *args: Any) -> Any:
        self.target = target
        raise LookupError(target)

    def shape(self, name: str) -> Any:
        return catalogue.shape(name)

    def hardware(self, name: str) -> Any:
        return catalogue.hardware(name)


def first_model(lab: Lab, preset: Preset) -> str | None:
    """The model that a preset needs, or ``None``."""
    asks = Asks()
    with contextlib.suppress(LookupError):
        next(iter(execute(lab, read_params(lab.params, preset.params), asks)))
    return asks.target


def cases() -> Iterator[Any]:
    for slug, lab in discover(folders()).items():
        for name, preset in lab.presets.items():
            needs_default = first_model(lab, preset) == "default"
            marks = [pytest.mark.default_model] if needs_default else []
            yield pytest.param(lab, preset, id=f"{slug}-{name.replace(' ', '_')}", marks=marks)


@cache
def loader() -> Models:
    return Models()


def load(target: str, *args: str) -> None:
    """Load a model, or skip with the reason; where the default model is required, fail."""
    try:
        for _ in loader().load(target, *args):
            pass
    except ModelUnavailable as error:
        if os.environ.get("CI_REQUIRE_DEFAULT_MODEL"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(("lab", "preset"), cases())
def test_preset_shows_what_it_claims(lab: Lab, preset: Preset) -> None:
    params = read_params(lab.params, preset.params)
    target = first_model(lab, preset)
    if target:
        load(target, getattr(params, "dtype", "auto"), getattr(params, "device", "auto"))
    trace = Trace()
    for update in execute(lab, params, loader()):
        trace = update if isinstance(update, Trace) else trace
    summary = json.loads(json.dumps(lab.summary(trace), allow_nan=False))
    assert preset.expect, f"{preset.name} claims nothing that a test could recompute"
    found = {key: value_at(summary, key) for key in preset.expect}
    wrong = {key: (found[key], want) for key, want in preset.expect.items() if not meets(found[key], want)}
    assert not wrong, f"(found, expected): {wrong}"
    frames = [lab.frame(trace, i) for i in range(lab.num_frames(trace))]
    assert frames
    assert all(frame.status for frame in frames)
    assert sum(len(frame.html) for frame in frames) < MAX_CHARS
    assert lab.figures(lab.summary(trace))
    assert Trace.from_json(trace.to_json()) == trace
    for chart in lab.charts:
        chart.draw(trace)


def meets(found: Any, want: Any) -> bool:
    """Whether a figure is what a preset expects."""
    if not isinstance(want, dict):
        return found == want
    if found is None:
        return False
    low, high = want.get("min", float("-inf")), want.get("max", float("inf"))
    if "approx" in want:
        low, high = want["approx"] - want["abs"], want["approx"] + want["abs"]
    return low <= found <= high


def value_at(summary: Mapping[str, Any], key: str) -> Any:
    """The figure at a dotted key."""
    found: Any = summary
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


@pytest.mark.parametrize("slug", list(discover(folders())))
def test_questions_open_presets_that_exist(slug: str) -> None:
    lab = discover(folders())[slug]
    assert all(question.preset in ("", *lab.presets) for question in lab.questions)
    assert lab.questions
    assert lab.sources
    assert lab.how
