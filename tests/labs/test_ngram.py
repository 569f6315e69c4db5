"""The n-gram lab on the table model: what is copied, what a dictated reply fixes and leaves real, and the price."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models import teaching
from models.load import Models
from playground.engine.decode import speculate
from playground.engine.drafters import NoDrafter, find_match
from playground.engine.length import Fixed
from playground.engine.sampling import Context, coins
from playground.engine.trace import Trace
from playground.engine.verify import verify_greedy
from playground.lab import ROOT, BadInput, execute, read_params, read_presets
from playground.labs.ngram import LAB, Dictate, LookUpPass, Params, lanes_of

TABLE = read_presets(ROOT / "presets" / "ngram.json")["table"].params
FREE = {"target": "table", "prompt": "the cat sees the dog . a bird sings . the cat", "reply": "", "max_new_tokens": 24}


def traces(**changes) -> list[Trace]:
    params = read_params(Params, {**TABLE, **changes})
    return [update for update in execute(LAB, params, Models()) if isinstance(update, Trace)]


def last(**changes) -> Trace:
    return traces(**changes)[-1]


def test_a_dictated_reply_comes_out_in_every_lane():
    trace = last()
    result = LAB.summary(trace)
    texts = {"".join(trace.texts[t] for t in lane.output_tokens) for lane in lanes_of(trace).values()}
    said = " the small cat sees a bird and hears the dog. the dog follows the small cat and hears a bird.<end>"
    assert texts == {said}
    assert result["identical_output"]
    assert result["is_dictated"]


def test_longer_matches_draft_less_and_a_larger_share_stands():
    result = LAB.summary(last())
    drafted, rates = result["drafted_by_length"], result["acceptance_rate_by_length"]
    assert list(drafted) == ["1", "2", "4"]
    assert drafted["1"] > drafted["2"] > drafted["4"]
    assert rates["1"] < rates["2"] < rates["4"]
    assert result["most_accepted_length"] == "2"


def test_a_free_run_gives_the_plain_text_in_every_lane():
    trace = last(**FREE)
    model = teaching.target()
    session = model.session(model.chat(FREE["prompt"]))
    limit = FREE["max_new_tokens"]
    steps = speculate(session, NoDrafter(), rule=verify_greedy, length=Fixed(0), coin=coins(0), max_new_tokens=limit)
    plain = tuple(out.token for made in steps for out in made.outputs)
    assert not LAB.summary(trace)["is_dictated"]
    assert {lane.output_tokens for lane in lanes_of(trace).values()} == {plain}


def test_a_lane_that_never_drafts_has_no_acceptance_rate():
    result = LAB.summary(last(**FREE | {"max_new_tokens": 4}, match_lengths="16"))
    assert result["drafted_by_length"] == {"16": 0}
    assert result["acceptance_rate_by_length"] == {"16": None}
    assert result["most_accepted_length"] is None
    assert result["priced"]["turn_off_at_batch_by_length"] == {"16": None}
    assert LAB.figures(result)


def test_every_step_tells_where_its_draft_was_copied_from():
    for n, lane in lanes_of(last()).items():
        context = list(lane.prompt)
        for made in lane.steps:
            assert isinstance(made, LookUpPass)
            if made.nodes:
                assert made.match == find_match(context, n, n)
                behind = made.match.start + n
                assert [node.token for node in made.nodes] == context[behind : behind + len(made.nodes)]
            else:
                assert made.match is None
            context += [out.token for out in made.outputs]


def test_dictating_fixes_only_rows_on_the_reply_and_leaves_the_models_own_figures():
    dictate = Dictate((3, 1))
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 3, dtype=torch.double)
    rows = [Context((0, 0), 2), Context((0, 0, 3), 2), Context((0, 0, 2), 2)]
    shaped = dictate(logits, rows)
    assert [row.isfinite().nonzero().flatten().tolist() for row in shaped] == [[3], [1], [0, 1, 2, 3]]
    assert logits.isfinite().all()  # the raw row stays
    assert dictate(logits, [Context((0, 3, 1), 1)] * 3).equal(logits)  # past the end of the reply
    own = LAB.summary(last())["own_probability"]
    assert 0 < own < 1


def test_frames_are_whole_rounds_and_never_change_while_the_run_grows():
    seen: list[str] = []
    for trace in traces():
        frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
        assert [frame.html for frame in frames[: len(seen)]] == seen
        seen = [frame.html for frame in frames]
    assert len(seen) == max(len(lane.steps) for lane in lanes_of(last()).values())


def test_a_saved_run_gives_the_same_page():
    trace = last()
    again = Trace.from_json(trace.to_json())
    assert again.lanes == trace.lanes
    assert LAB.summary(again) == LAB.summary(trace)
    assert all(LAB.frame(again, i) == LAB.frame(trace, i) for i in range(LAB.num_frames(trace)))
    assert all(chart.draw(again) is not None for chart in LAB.charts)
    assert "dictated" in LAB.frame(trace, 0).html
    assert "dictated" not in LAB.frame(last(**FREE), 0).html


def test_the_price_is_the_roofline_and_its_crossing():
    result = LAB.summary(last())["priced"]
    ratios = result["cost_ratio_by_batch"]
    assert [ratios[b] for b in ("1", "32")] == pytest.approx([1, 1], abs=5e-3)
    assert [ratios[b] for b in ("64", "128")] == pytest.approx([1.72, 3.04], abs=5e-3)
    tokens, off = LAB.summary(last())["tokens_per_step_by_length"], result["turn_off_at_batch_by_length"]
    assert 64 < off["4"] < off["1"] < off["2"] < 128
    assert sorted(off, key=off.get) == sorted(tokens, key=tokens.get)
    free = result["turn_off_at_batch_as_drafted_by_length"]
    assert all(free[n] >= off[n] for n in off)


def test_the_winner_changes_to_plain_decoding_where_the_last_lane_loses():
    result = LAB.summary(last())["priced"]
    off = result["turn_off_at_batch_by_length"]
    final = result["flips"][-1]
    assert (final["to"], final["batch"]) == ("plain", max(off.values()))
    assert final["k"] == Params().k
    assert final["context"] == 1024
    assert result["draft_cost"] == 0
    assert result["speedup_by_batch"]["n = 1"]["1"] == pytest.approx(
        LAB.summary(last())["tokens_per_step_by_length"]["1"]
    )
    assert LAB.summary(last(**FREE | {"max_new_tokens": 4}, match_lengths="16"))["priced"]["flips"] == []


def test_figures_exist_before_the_first_step():
    first = traces()[0]
    empty = dataclasses.replace(first, lanes=())
    for trace in (empty, first):
        assert len(LAB.figures(LAB.summary(trace))) == 5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"match_lengths": "2,2"}, "different lengths"),
        ({"match_lengths": ""}, "one to 4"),
        ({"match_lengths": "0"}, "between 1 and 16"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "the zebra"}, "zebra"),
        ({"reply": "the zebra"}, "zebra"),
        ({"priced_target": "llama-9"}, "llama-3.3-70b"),
        ({"hardware": "abacus"}, "h100"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(changes, says):
    with pytest.raises(BadInput, match=says):
        traces(**changes)
