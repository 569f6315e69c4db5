"""Speculative sampling: the law of each rule, parameters that are refused, runs on the exact table model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.load import Models
from playground.engine.acceptance import context_logits, temperature_point
from playground.engine.drafters import NoDrafter, never_right
from playground.engine.rules import SCHEMES, rising_sizes, rule_law, shaped, simulate, total_variation
from playground.engine.sampling import chain, coins
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params
from playground.labs.speculative_sampling import LAB, decode

REFERENCE = {"p": "0.5,0.3,0.2", "q": "0.2,0.5,0.3"}


def run(raw, models=None) -> Trace:
    """The last trace of a run."""
    models = models or Models()
    last = None
    for update in execute(LAB, read_params(LAB.params, raw), models):
        last = update if isinstance(update, Trace) else last
    return last


# --- Prices ---


def test_the_priced_drafter_loses_before_a_free_one_does():
    raw = {"p": "0.6,0.4", "q": "0.8,0.2"}  # alpha .8
    result = LAB.summary(run(raw))
    price = result["priced"]
    assert price["draft_cost"] == pytest.approx(0.0294, abs=5e-5)
    assert price["speedup_by_batch"]["1"] == pytest.approx(3.01, abs=5e-3)
    (flip,) = price["flips"]
    assert (flip["from"], flip["to"], flip["k"], flip["context"]) == ("EAGLE head", "plain", 4, 0)
    assert flip["alpha"] == pytest.approx(0.8)
    assert flip["batch"] < result["priced_break_even_batch"] < 199
    long = LAB.summary(run({**raw, "priced_context": 16384}))["priced"]
    assert long["flips"] == []
    assert long["speedup_by_batch"]["128"] is None  # does not fit
    assert LAB.summary(Trace())["priced"] is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"priced_target": "x"}, "llama-3"), ({"hardware": "x"}, "h100"), ({"priced_drafter": "x"}, "eagle")],
)
def test_unknown_names_of_prices_are_refused_with_the_names_there_are(changes, says):
    with pytest.raises(BadInput, match=says):
        run({**REFERENCE, **changes})


# --- Typed-in laws ----------------------------------------------------------------------------------------------------


def test_reference_law():
    summary = LAB.summary(run(REFERENCE))
    assert summary["alpha"] == pytest.approx(0.7, abs=1e-12)
    assert summary["alpha_by_rule"]["match_keep"] == pytest.approx(0.31, abs=1e-12)
    assert summary["law_error"] < 1e-12
    assert summary["law"] == pytest.approx((0.5, 0.3, 0.2), abs=1e-12)
    errors = summary["law_error_by_rule"]
    assert errors["match_keep"] < 1e-12 < 0.05 < errors["match_redraw"]
    assert summary["simulated_error"] < 3 * summary["simulated_error_by_chance"]


@pytest.mark.parametrize(
    ("rule", "law", "alpha"),
    [
        ("rejection", (0.6, 0.4), 0.8),
        ("match_keep", (0.6, 0.4), 0.56),
        ("match_redraw", (0.744, 0.256), 0.56),
        ("argmax_soft_q", (0.75, 0.25), 0.75),
    ],
)
def test_law_of_each_rule(rule, law, alpha):
    exact = rule_law(rule, torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.8, 0.2], dtype=torch.float64))
    assert exact.law == pytest.approx(law, abs=1e-12)
    assert exact.alpha == pytest.approx(alpha, abs=1e-12)
    assert exact.error == pytest.approx(total_variation(law, (0.6, 0.4)), abs=1e-12)


weights = st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any)


@settings(max_examples=15)
@given(weights, weights)
def test_two_parts_of_the_proof_add_up_to_p(a, b):
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (a, b))
    exact = rule_law("rejection", p, q)
    assert exact.accepted == pytest.approx(torch.minimum(p, q).tolist(), abs=1e-12)
    assert exact.recovered == pytest.approx((p - q).clamp(min=0).tolist(), abs=1e-12)
    assert exact.error < 1e-12


def test_temperature_zero_is_the_argmax_test():
    same = LAB.summary(run({"p": "0.5,0.3,0.2", "q": "0.6,0.2,0.2", "temperature": "0"}))
    other = LAB.summary(run({**REFERENCE, "temperature": "0"}))
    assert same["alpha"] == 1.0
    assert other["alpha"] == 0.0
    assert same["law"] == other["law"] == (1.0, 0.0, 0.0)


def test_the_q_of_the_coin_is_the_one_the_draft_was_drawn_from():
    p, q = (shaped(law, chain(top_k=2)) for law in ((0.5, 0.5, 0, 0), (0.4, 0.3, 0.2, 0.1)))
    exact = rule_law("rejection", p, q)
    assert exact.alpha == pytest.approx(13 / 14, abs=1e-12)
    assert exact.law == pytest.approx((0.5, 0.5, 0, 0), abs=1e-12)


def test_simulation_repeats_with_its_seed_and_converges_to_the_rules_own_law():
    p, q = torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.8, 0.2], dtype=torch.float64)
    once, again, other = (list(simulate("argmax_soft_q", p, q, seed, rising_sizes(1000))) for seed in (1, 1, 2))
    assert once == again != other
    assert once[-1].frequencies == pytest.approx((0.75, 0.25), abs=0.04)
    assert [d.num_draws for d in once] == list(rising_sizes(1000))
    assert sum(once[-1].counts) == 1000


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"p": "0.5,0.5"}, "q is missing"),
        ({"q": "0.5,0.5"}, "p is missing"),
        ({"p": "0.5,0.4", "q": "0.5,0.5"}, "p sums to 0.9"),
        ({"p": "0.5,0.5", "q": "0.5,0.6"}, "q sums to 1.1"),
        ({"p": "1.5,-0.5", "q": "0.5,0.5"}, "-0.5"),
        ({"p": "0.5,0.5", "q": "0.5,0.25,0.25"}, "p has 2 tokens and q has 3"),
        ({"p": ",".join(["0.1"] * 10), "q": "0.5,0.5"}, "10 tokens"),
        ({"p": "1", "q": "1"}, "1 token"),
        ({"p": "nan,1", "q": "0.5,0.5"}, "p must be a number"),
        ({"p": "half,half", "q": "0.5,0.5"}, "p must be a number"),
        ({"rule": "hope"}, "rule must be one of"),
        ({"temperature": "nan"}, "temperature"),
        ({"k": "0"}, "k must lie"),
        ({"target": "table", "prompt": ""}, "prompt is empty"),
        ({"target": "table", "prompt": "the", "drafter": "ngram", "rule": "argmax_soft_q"}, "reports q"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(raw, says):
    with pytest.raises(BadInput) as caught:
        run(raw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_figures_that_a_kind_of_run_does_not_have_are_none():
    typed, pair = LAB.summary(run(REFERENCE)), LAB.summary(run(TABLE))
    assert typed.keys() == pair.keys()
    assert typed["acceptance_rate"] is typed["tokens_per_second"] is typed["acceptance_by_temperature"] is None
    assert pair["law"] is pair["law_error"] is pair["simulated_law"] is None
    for summary in (typed, pair, LAB.summary(Trace())):
        assert LAB.figures(summary)


# --- Pairs of models --------------------------------------------------------------------------------------------------

TABLE = {"target": "table", "prompt": "the cat", "max_new_tokens": "24", "seed": "2"}


@pytest.mark.parametrize("rule", SCHEMES)
def test_pair_on_the_table(rule):
    trace = run({**TABLE, "rule": rule})
    summary = LAB.summary(trace)
    assert summary["output_tokens"] == 24 or summary["finish_reason"] == "eos"
    assert 0 < summary["acceptance_rate"] <= 1
    assert summary["alpha"] == summary["alpha_by_rule"][rule]
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    for i in range(LAB.num_frames(trace)):
        frame = LAB.frame(trace, i)
        assert frame.status.endswith(".")
        assert "nan" not in frame.html.lower()
    assert all(chart.draw(trace) is not None for chart in LAB.charts)


def test_exact_match_puts_out_what_plain_sampling_draws():
    models = Models()
    params = read_params(LAB.params, {**TABLE, "rule": "match_keep"})
    trace = run({**TABLE, "rule": "match_keep"}, models)
    target = next(iter_result(models.load("table")))
    plain = [o.token for step in decode(params, target, target.chat("the cat"), NoDrafter()) for o in step.outputs]
    assert list(trace["speculative"].output_tokens) == plain


def iter_result(loading):
    """What a loading generator returns, as the one element of an iterator."""
    yield (yield from loading)


def test_drafter_that_knows_the_plain_run_always_stands_under_exact_match():
    summary = LAB.summary(run({**TABLE, "rule": "match_keep", "drafter": "oracle"}))
    assert summary["acceptance_rate"] == 1.0
    assert summary["alpha"] is summary["acceptance_by_temperature"] is None
    wrong = LAB.summary(run({**TABLE, "rule": "match_keep", "drafter": "always_wrong"}))
    assert wrong["accepted_tokens"] < wrong["drafted_tokens"]


def test_never_right():
    assert never_right((5, 6, 0), (5,)) == (0, 5, 5)
    assert never_right((0,), ()) == (1,)


def test_argmax_soft_q_drafts_the_likeliest_token():
    trace = run({**TABLE, "rule": "argmax_soft_q"})
    for step in trace["speculative"].steps:
        for node in step.nodes:
            row = step.rows[node.parent + 1]
            assert node.q == max(candidate.q for candidate in row.top)


def test_temperature_sweep_falls_and_rises_again_and_knows_its_limits():
    by = LAB.summary(run(TABLE))["acceptance_by_temperature"]
    assert by["0"] > by["2"] < by["50"]
    torch.manual_seed(0)
    target, drafter = torch.randn(5, 9, dtype=torch.float64), torch.randn(5, 9, dtype=torch.float64)
    greedy, flat = (temperature_point(t, target, drafter, chain(t)) for t in (0.0, 1e9))
    agree = float((target.argmax(-1) == drafter.argmax(-1)).double().mean())
    assert greedy.rejection == greedy.match == greedy.argmax == agree
    assert greedy.argmax_error == 0
    assert flat.rejection == pytest.approx(1)
    assert flat.match == pytest.approx(1 / 9)


def test_sweep_of_argmax_soft_q_agrees_with_the_exact_law():
    p, q = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    point = temperature_point(1.0, p.log(), q.log(), ())
    exact = rule_law("argmax_soft_q", p[0], q[0])
    assert (point.argmax, point.argmax_error) == pytest.approx((exact.alpha, exact.error))
    assert point.rejection == pytest.approx(0.7)
    assert point.match == pytest.approx(0.31)


def test_contexts_are_scored_as_the_run_saw_them():
    target = next(iter_result(Models().load("table")))
    prompt, output = target.chat("the cat"), target.chat("sees a bird")
    together = context_logits(target.session(prompt), prompt, output)
    for i in range(len(output)):
        alone = target.session([*prompt, *output[:i]]).score(NoDrafter().propose(None, 0, coins(0))).logits[0]
        assert torch.equal(together[i], alone)
