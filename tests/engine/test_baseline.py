"""Two runs compared, and the definitions of acceptance."""

from __future__ import annotations

import json
import math

import pytest

from playground.engine.baseline import compare, conditions, read_run, student_quantile, welch
from playground.engine.counters import Counts
from playground.engine.definitions import Passed, define, read_passes, write_passes

SAME = {"load": {"concurrency": 8}, "batch": 64, "kv_budget": "40 GiB", "stop": "eos", "prompts": "a"}
FULL = {**SAME, "warmup_requests": 4, "requests": 80, "prompt_tokens": 900, "generation_tokens": 16000}


def run(**more):
    return read_run("baseline_with", json.dumps({**FULL, **more}))


def test_every_condition_holds_and_the_interval_comes_from_repeats():
    a, b = run(wall_s=[10, 10.2, 9.9]), run(wall_s=[20, 20.3, 19.8])
    assert {c.state for c in conditions(a, b)} == {"holds"}
    found = compare(a, b)
    assert found.speedup == pytest.approx(2, rel=0.01)
    assert found.low < found.speedup < found.high < 2.2
    assert found.interval == "from 3 and 3 repeats"


def test_one_run_each_gives_a_wide_interval_that_says_so():
    found = compare(run(wall_s=10), run(wall_s=20))
    half = 1.959964 * math.sqrt(2 / 80)
    assert (found.low, found.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-5)
    assert found.interval.startswith("assumed")


def test_what_differs_and_what_is_missing():
    a, b = run(wall_s=1, stop="256 tokens", generation_tokens=20480), read_run("b", '{"load": 1, "wall_time": 2}')
    states = {c.name: c.state for c in conditions(run(stop="x"), run())}
    assert states["stop rules"] == "differs"
    assert {c.name: c.state for c in conditions(a, run())}["output lengths"] == "differs"
    assert {c.name for c in conditions(a, b) if c.state == "missing"} >= {"batch", "prompts", "output lengths"}
    assert compare(a, b).speedup is None


def test_keys_of_one_s_own_are_compared_too():
    assert conditions(run(model="a"), run(model="b"))[-1].state == "differs"


def test_a_pass_with_a_draft_costs_its_length_over_the_speedup():
    counters = {"vllm:spec_decode_num_drafts_total": 6400, "num_accepted_tokens": 9600, "other": "x"}
    found = compare(run(wall_s=10, counters=counters), run(wall_s=20))
    assert found.mean_emitted_length == (16000 - 80) / 6400
    assert found.step_cost == pytest.approx(found.mean_emitted_length / 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ('{"wall_s": -1}', "0 or more"),
        ('{"wall_s": NaN}', "0 or more"),
        ('{"wall_s": 0}', "no run takes no time"),
        ('{"requests": "many"}', "must be a number"),
        ('{"wall_s": [1, 2], "generation_tokens": [1, 2, 3]}', "give one for each"),
        ('{"counters": 3}', "object of names"),
        ('{"counters": {"num_drafts": -1}}', "0 or more"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_runs_are_refused_in_a_sentence(text, says):
    with pytest.raises(ValueError, match=says):
        read_run("baseline_with", text)


def test_quantiles_of_student_s_law():
    table = {1: 12.706, 2: 4.303, 4: 2.776, 10: 2.228, 100: 1.984}
    assert {n: round(student_quantile(0.975, n), 3) for n in table} == table
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0


def test_a_step_without_a_draft_is_no_draft():
    found = {d.key: d.from_trace for d in define(read_passes("4/4 2/1 0/0 3/0"), [])}
    assert found["rate"] == 5 / 9
    assert found["judged"] == 5 / 7
    assert found["mean_length"] == 1 + 5 / 3


def test_trace_and_counters_agree_where_both_can_speak():
    requests = [[Passed(4, 4, 5, 4), Passed(4, 1, 2, 4)], [Passed(4, 3, 2, 4)]]
    counts = Counts(drafts=3, draft_tokens=12, accepted=8, generation=9, plain_passes=0, per_position=(3, 2, 2, 1))
    for d in define(requests, [counts]):
        assert d.from_counters is None or d.from_counters == pytest.approx(d.from_trace), d.key


@pytest.mark.parametrize("text", ["4", "4/5", "x/y", "4/4/9", "4/4/0", "-1/0", "99999999/1"])
def test_passes_that_cannot_be_are_refused(text):
    with pytest.raises(ValueError, match=r"pass|cannot be"):
        read_passes(text)


def test_passes_come_back_from_their_text():
    requests = [[Passed(7, 3, 4, 3), Passed(0, 0, 1, 0)], [Passed(4, 4, 2, 4)]]
    assert read_passes(write_passes(requests)) == requests
