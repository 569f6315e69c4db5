"""The player's value: it only grows, every frame is rendered once, the shelf is bounded."""

from __future__ import annotations

import json

import pytest

from playground.engine.trace import Trace
from playground.lab import Frame, Lab, Progress, execute
from playground.shell import reel as reels
from playground.shell.endpoint import the_models
from playground.shell.reel import Reel, Shelf


def lines(reel: Reel) -> list[dict]:
    head, *rest = reel.text.splitlines()
    assert head == f"#{reel.id}"
    return [json.loads(line) for line in rest]


def traces(lab: Lab) -> list[Trace]:
    return [u for u in execute(lab, lab.params(), the_models()) if isinstance(u, Trace)]


def test_each_text_is_a_prefix_of_the_next(sample: Lab) -> None:
    reel, seen = Reel(sample), ""
    for trace in traces(sample):
        reel.show(trace)
        assert reel.text.startswith(seen)
        assert reel.text.endswith("\n")
        seen = reel.text


def test_a_frame_per_step_and_the_last_one_again_at_the_end(sample: Lab) -> None:
    reel = Reel(sample)
    trace = traces(sample)[-1]
    reel.show(trace)
    reel.end("done")
    reel.end("stopped")  # a second end says nothing
    num_steps = len(trace["run"].steps)
    assert [line["i"] for line in lines(reel) if "i" in line] == [*range(num_steps), num_steps - 1]
    assert lines(reel)[-1] == {"end": "done"}


def test_progress_is_told_at_most_five_times_a_second(sample: Lab) -> None:
    reel = Reel(sample)
    assert [reel.tell(Progress("Loading", i / 10)) for i in range(10)].count(True) == 1


def test_half_a_surrogate_pair_travels(sample: Lab) -> None:
    reel = Reel(sample)
    reel.write(status="\ud83d")
    reel.text.encode("utf-8")


def test_frames_stop_at_the_limit(sample: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    monkeypatch.setattr(reels, "MAX_CHARS", 5_000)
    long = dataclasses.replace(sample, frame=lambda trace, i: Frame("Step.", "x" * 2_000))
    reel = Reel(long)
    reel.show(traces(sample)[-1])
    assert len(reel.text) < 8_000
    assert "too long to draw" in reel.text


def test_the_shelf_forgets_the_oldest(sample: Lab) -> None:
    shelf = Shelf(max_reels=2)
    first, second, third = Reel(sample), Reel(sample), Reel(sample)
    for reel in (first, second, third):
        shelf.put(reel)
    assert [shelf.get(r.id) for r in (first, second, third)] == [None, second, third]


def test_the_shelf_is_bounded_in_size_but_keeps_the_newest(sample: Lab) -> None:
    shelf = Shelf(max_chars=100)
    for _ in range(3):
        reel = Reel(sample)
        reel.write(html="x" * 500)
        shelf.put(reel)
    assert shelf.get(reel.id) is reel
    assert len(shelf._reels) == 1
