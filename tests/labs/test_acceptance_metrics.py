"""The lab on counters: bad input is an answer or one sentence; this app's own counters are read while a run goes on."""

from __future__ import annotations

import json

import pytest

from models.load import Models
from playground.engine.decode import speculate
from playground.engine.drafters import NGram
from playground.engine.length import Fixed
from playground.engine.sampling import coins
from playground.engine.stop import Stop
from playground.engine.trace import Trace
from playground.engine.verify import verify_greedy
from playground.lab import discover, execute, folders, read_params
from playground.labs.acceptance_metrics import LAB, MAX_CHARS
from playground.ledger import Ledger
from playground.shell import share
from playground.shell.request import Request

GOOD = 'vllm:spec_decode_num_drafts_total{engine="0"} '


def traces(**raw) -> list[Trace]:
    updates = execute(LAB, read_params(LAB.params, raw), Models())
    return [update for update in updates if isinstance(update, Trace)]


def result(**raw) -> dict:
    trace = traces(**raw)[-1]
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert frames
    assert all(each.status and each.html for each in frames)
    assert Trace.from_json(trace.to_json()) == trace
    found = LAB.summary(trace)
    assert LAB.figures(found)
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.parametrize(
    ("snapshots", "reason"),
    [
        (GOOD + "9\n---\n" + GOOD + "3", "fell from 9 to 3"),
        (GOOD + "1\n---\n" + GOOD + "NaN", "is nan"),
        (GOOD + "-1\n---\n" + GOOD + "5", "is -1"),
        (GOOD + "1\n---\n" + GOOD.replace('"0"', '"1"') + "5", "engine 0 is in snapshot 1"),
        (GOOD + "1\n---\nprocess_start_time_seconds 3", "not in snapshot 2"),
        (GOOD + "1\n---\n" + GOOD[:40], "not in snapshot 2"),
    ],
)
def test_bad_scrapes_are_answered_with_the_reason(snapshots, reason):
    found = result(snapshots=snapshots)
    assert [each["index"] for each in found["rejected_windows"]] == [0]
    assert reason in found["rejected_windows"][0]["reason"]
    assert found["acceptance_rate"] is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"snapshots": "hello"}, "No counter"),
        ({"snapshots": GOOD + "1\n" + GOOD + "2"}, "stands twice"),
        ({"snapshots": "x" * 20_000_000}, "20,000,000 characters"),
        ({"snapshots": "---\n".join([GOOD + "1\n"] * 300)}, "300 scrapes"),
        ({"baseline_with": "{}"}, "Only baseline_with"),
        ({"baseline_with": "{", "baseline_without": "{}"}, "not JSON"),
        ({"baseline_with": "{}", "baseline_without": "{}" + " " * 9000}, "9,002 characters"),
        ({"passes": "4/9"}, "cannot be"),
        ({"passes": "{"}, "not JSON"),
        ({"passes": Trace().to_json()}, "no pass with a draft"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(raw, says):
    with pytest.raises(ValueError, match=says):
        traces(**raw)


def test_as_much_text_as_is_read_is_read_soon():
    line = 'vllm:request_prompt_tokens_bucket{engine="0",le="1.0"} 3\n'
    half = line * ((MAX_CHARS - 200) // 2 // len(line))
    found = result(snapshots=f"{GOOD}0\n{half}---\n{GOOD}4\n{half}")
    assert found["counters"]["drafts"] == 4


def test_names_from_a_scrape_are_escaped():
    text = 'vllm:generation_tokens_total{{model_name="<img src=x onerror=alert(1)>"}} {}'
    trace = traces(snapshots=text.format(1) + "\n---\n" + text.format(0))[-1]
    assert all("<img" not in LAB.frame(trace, i).html for i in range(LAB.num_frames(trace)))


def test_long_scrapes_stay_out_of_the_link():
    params = read_params(LAB.params, {"snapshots": GOOD + "1\n" + "# more\n" * 5000})
    asked = Request(LAB, params)
    assert share.query(asked) == ""
    assert "snapshots=@snapshots.txt" in share.command(asked)
    assert "open('snapshots.txt').read()" in share.api_call(asked, "http://x/")


# --- This app's own counters ------------------------------------------------------------------------------------------


def run_of_table(prompt: str = "the cat sees the"):
    lab = discover(folders())["greedy_verification"]
    raw = {"target": "table", "drafter": "ngram", "prompt": prompt}
    return execute(lab, read_params(lab.params, raw), Models())


def test_own_counters_are_read_while_a_run_streams():
    before = result(scrapes=1)["counters"]
    other = run_of_table()
    reads = LAB.run(read_params(LAB.params, {"scrapes": 2, "every_s": 0.1}), None)
    trace = next(reads)
    for _ in range(12):
        next(other)
    for update in reads:
        trace = update if isinstance(update, Trace) else trace
    window = LAB.summary(trace)["windows"][1]
    assert window["reason"] is None
    assert 0 < window["steps_low"] == window["steps_high"]
    for _ in other:
        pass
    after = result(scrapes=1)["counters"]
    assert after["generation"] - (before["generation"] or 0) == 2 * 32
    assert after["finished"] - (before["finished"] or 0) == 2


def test_the_ledger_counts_accepted_drafts_before_the_stop_and_output_after():
    model = table_model()
    prompt = model.encode("the cat sees the")
    eos = token_inside_a_draft(list(passes_of(model, prompt)))
    ledger, trace = Ledger(), Trace(provenance={"target": "t"}).open("run", prompt)
    run = ledger.watch()
    for step in passes_of(model, prompt, [eos]):
        trace = trace.add("run", step)
        run.tell(trace)
    steps = trace["run"].steps
    text = ledger.exposition()
    assert sum(step.discarded for step in steps) > 0
    assert value(text, "vllm:spec_decode_num_accepted_tokens_total") == sum(step.num_verified for step in steps)
    assert value(text, "vllm:generation_tokens_total") == len(trace["run"].output_tokens)
    assert value(text, "playground:discarded_tokens_total") == sum(step.discarded for step in steps)
    found = result(snapshots=text)
    assert found["discarded_tokens"] == found["discarded_high"] == sum(step.discarded for step in steps)
    assert found["steps_low"] == found["steps_high"] == len(steps)
    assert sum(found["acceptance_per_position"]) == pytest.approx(found["mean_acceptance_length"] - 1)


def table_model():
    loading = Models().load("table")
    while True:
        try:
            next(loading)
        except StopIteration as done:
            return done.value


def passes_of(model, prompt, eos_ids=()):
    greedy = {"rule": verify_greedy, "length": Fixed(4), "coin": coins(0), "max_new_tokens": 32}
    return speculate(model.session(prompt), NGram(2), stop=Stop(eos_ids=frozenset(eos_ids)), **greedy)


def token_inside_a_draft(steps) -> int:
    """A token that comes for the first time among the accepted tokens of a draft."""
    before: set[int] = set()
    for step in steps:
        tokens = [out.token for out in step.outputs]
        if fresh := [token for token in tokens[: step.num_verified] if token not in before]:
            return fresh[0]
        before |= set(tokens)
    raise AssertionError("no token is new in an accepted draft")


def value(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def test_a_saved_run_gives_the_definitions():
    *_, trace = (update for update in run_of_table() if isinstance(update, Trace))
    found = result(passes=trace.to_json())["definitions"]
    steps = trace["speculative"].steps
    drafted = sum(len(step.nodes) for step in steps)
    assert found["rate"]["trace"] == sum(step.num_verified for step in steps) / drafted
