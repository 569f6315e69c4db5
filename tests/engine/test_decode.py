"""The loop: nothing lost, nothing added, whatever drafts; where a run ends; what a step records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.table import TableModel, cyclic_law
from playground.engine.decode import NAN_NOTE, race, speculate
from playground.engine.drafters import Drafter, DraftModel, NGram, NoDrafter, Replay
from playground.engine.exact import exact_law
from playground.engine.length import Fixed, Heuristic
from playground.engine.sampling import Coin, Context, Knob, Temperature, apply, chain, coins, softmax
from playground.engine.stop import Stop
from playground.engine.tree import ROOT, Draft
from playground.engine.verify import verify_greedy, verify_match_keep, verify_sampling
from tests.engine.tables import RandomTrees, Tokens, drafters, outputs, run, table

PROMPT = [0, 1]
KINDS = ["trees", "ngram", "draft_model", "same_model"]


# --- Nothing lost ---------------------------------------------------------------------------------------------------


def check_greedy_equality(
    seed: int, kind: str, k: int, prompt: Sequence[int] = PROMPT, knobs: Sequence[Knob] = ()
) -> None:
    """Greedy output is that of plain decoding, no drafter failed, and the KV rows are the committed tokens."""
    model = table(4, seed, 2.0)
    plain = outputs(run(model, prompt, knobs=knobs, max_new_tokens=14))
    session = model.session(prompt)
    drafter = drafters(model, prompt, plain, seed)[kind]
    found: list[int] = []
    for step in speculate(
        session, drafter, rule=verify_greedy, length=Fixed(k), coin=coins(seed), knobs=knobs, max_new_tokens=14
    ):
        assert step.note is None
        before, found = [*prompt, *found], [*found, *outputs([step])]
        assert session.tokens == [*prompt, *found]
        assert session.rows == [(i, token) for i, token in enumerate(session.tokens[:-1])]
        kv = step.target_kv
        assert kv.written == kv.kept + kv.rolled_back
        assert kv.before + kv.kept == session.num_kv_rows == len(session.tokens) - 1
        assert step.start == len(before)
    assert tuple(found) == plain


@settings(max_examples=40)
@given(
    seed=st.integers(0, 9999),
    kind=st.sampled_from(KINDS),
    k=st.integers(1, 5),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    knobs=st.sampled_from([(), chain(repetition_penalty=1.4), chain(frequency_penalty=0.8, top_k=2)]),
)
def test_greedy_output_is_that_of_plain_decoding(seed, kind, k, prompt, knobs):
    check_greedy_equality(seed, kind, k, prompt, knobs)


def run_law(
    model: TableModel, make: Callable[[], Drafter], num_tokens: int, k: int, knobs: Sequence[Knob]
) -> dict[Tokens, float]:
    """The law of the first ``num_tokens`` tokens of whole runs, by integrating over every coin they ask for."""

    def sample(coin: Coin) -> tuple[tuple[int, ...], Tokens]:
        steps = list(
            speculate(
                model.session(PROMPT), make(), rule=verify_sampling, length=Fixed(k), coin=coin, knobs=knobs,
                max_new_tokens=num_tokens,
            )
        )  # fmt: skip
        assert all(step.note is None for step in steps)
        return tuple(node.token for step in steps for node in step.nodes), outputs(steps)

    law: dict[Tokens, float] = {}
    for (_, output), probability in exact_law(sample).items():
        law[output] = law.get(output, 0.0) + probability
    return law


def plain_law(model: TableModel, num_tokens: int, knobs: Sequence[Knob]) -> dict[Tokens, float]:
    """The same law by multiplying out the model's own."""
    law: dict[Tokens, float] = {}
    for output in itertools.product(range(model.vocab_size), repeat=num_tokens):
        probability = 1.0
        for i, token in enumerate(output):
            seen = [*PROMPT, *output[:i]]
            logits = apply(knobs, model.session(seen).score(Draft()).logits, [Context(seen, len(PROMPT))])
            probability *= float(softmax(logits)[0, token])
        law[output] = probability
    return law


def check_run_law(vocab: int, num_tokens: int, k: int, knobs: Sequence[Knob], seed: int = 5) -> None:
    model, other = table(vocab, seed), table(vocab, seed + 1)
    found = run_law(model, lambda: DraftModel(other.session(PROMPT), knobs), num_tokens, k, knobs)
    for output, probability in plain_law(model, num_tokens, knobs).items():
        assert found.get(output, 0.0) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize(
    ("vocab", "num_tokens", "k", "knobs"),
    [
        (3, 2, 1, ()),
        (3, 2, 1, chain(temperature=0.7, top_k=2, repetition_penalty=1.3)),
        (2, 3, 2, chain(temperature=0.7)),
    ],
)
def test_whole_runs_have_the_law_of_plain_sampling(vocab, num_tokens, k, knobs):
    check_run_law(vocab, num_tokens, k, knobs)


def test_a_run_that_looks_up_its_drafts_has_the_law_of_plain_sampling():
    model = table(3, 8)
    found = run_law(model, lambda: NGram(1), 3, 2, ())
    for output, probability in plain_law(model, 3, ()).items():
        assert found.get(output, 0.0) == pytest.approx(probability, abs=1e-12)


# --- Seeds ----------------------------------------------------------------------------------------------------------


def sampled(seed: int, model_seed: int = 1, k: int = 3, n: int = 12) -> Tokens:
    other = table(4, model_seed + 1)
    drafter = DraftModel(other.session(PROMPT), ())
    return outputs(run(table(4, model_seed), PROMPT, drafter, rule=verify_sampling, k=k, seed=seed, max_new_tokens=n))


def test_a_seed_fixes_the_run_and_another_one_changes_it():
    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in range(6)}) > 3


def test_matching_with_shared_coins_is_plain_sampling_token_by_token():
    """With the same coins the target draws the same tokens, so discarded drafts have shifted nothing."""
    model = table(4, 3)
    for seed in range(5):
        plain = outputs(run(model, PROMPT, rule=verify_match_keep, seed=seed, max_new_tokens=12))
        for kind, drafter in drafters(model, PROMPT, plain, seed).items():
            fast = run(model, PROMPT, drafter, rule=verify_match_keep, seed=seed, max_new_tokens=12)
            assert outputs(fast) == plain, kind


# --- Where a run ends -----------------------------------------------------------------------------------------------

RING = TableModel((" ha", " ho", " hi", " he"), cyclic_law(4))
CYCLES = [0, 1, 2, 3] * 3


def test_nothing_is_committed_past_an_end_of_sequence_inside_the_draft():
    eos = 2
    session = RING.session([0])
    (step,) = speculate(
        session, Replay((1, 2, 3, 0)), rule=verify_greedy, length=Fixed(4), coin=coins(0), stop=Stop(frozenset({eos}))
    )
    assert outputs([step]) == (1, eos)
    assert (step.finish, step.num_verified, step.num_accepted, step.discarded) == ("eos", 4, 2, 3)
    assert session.tokens == [0, 1, eos]
    assert session.num_kv_rows == 2
    assert (step.target_kv.kept, step.target_kv.rolled_back) == (2, 3)


@given(k=st.integers(1, 8), eos=st.integers(0, 3), start=st.integers(0, 3))
def test_an_end_of_sequence_anywhere_in_a_draft_ends_the_run_there(k, eos, start):
    model = TableModel(RING.words, cyclic_law(4))
    stop = Stop(frozenset({eos}))
    plain = outputs(run(model, [start], stop=stop))
    steps = list(run(model, [start], Replay(tuple((start + 1 + i) % 4 for i in range(9))), k=k, stop=stop))
    assert outputs(steps) == plain
    assert steps[-1].finish == "eos"


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize(
    ("stop", "text"), [(" hi", " ha ho hi"), (" ho hi", " ha ho hi"), ("o h", " ha ho hi"), ("a", " ha")]
)
def test_a_stop_string_completed_inside_a_draft_ends_the_run_there(k, stop, text):
    session = RING.session(CYCLES)
    steps = list(
        speculate(
            session, NGram(2), rule=verify_greedy, length=Fixed(k), coin=coins(0), max_new_tokens=12,
            stop=Stop(strings=(stop,), decode=RING.decode),
        )
    )  # fmt: skip
    assert RING.decode(outputs(steps)) == text
    assert steps[-1].finish == "stop_string"
    assert session.num_kv_rows == len(session.tokens) - 1 == len(CYCLES) + len(outputs(steps)) - 1


def test_a_stop_string_in_the_prompt_does_not_count():
    assert len(outputs(run(RING, [2], stop=Stop(strings=(" hi",), decode=RING.decode)))) == 4


def test_stop_strings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="empty"):
        Stop(strings=("",), decode=RING.decode)
    with pytest.raises(ValueError, match="decoder"):
        Stop(strings=("x",))


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_the_end_of_the_context_ends_the_run(k):
    model = TableModel(RING.words, cyclic_law(4), max_tokens=7)
    steps = list(run(model, [0, 1], Replay((2, 3, 0, 1, 2, 3, 0, 1)), k=k))
    assert outputs(steps) == (2, 3, 0, 1, 2)
    assert steps[-1].finish == "context"
    with pytest.raises(ValueError, match="at most 7"):
        next(run(model, [0] * 7))


def test_no_tokens_asked_for_no_pass():
    assert list(run(RING, [0], max_new_tokens=0)) == []


# --- Knobs act on every row -----------------------------------------------------------------------------------------


def test_penalties_see_the_draft_before_each_row():
    logits = torch.tensor([1.0, 1.2, 0.9], dtype=torch.float64)
    model = TableModel(tuple("abc"), lambda context: torch.softmax(logits, -1))
    shift = float(torch.softmax(logits, -1).log()[0] - 1.0)

    @dataclass(frozen=True)
    class Unshift:  # a table's logits are log-probabilities; the penalty needs the ones above
        reads_context = False

        def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
            return logits - shift

    knobs = (Unshift(), *chain(repetition_penalty=2))
    (step, *_) = run(model, [0], Replay((1, 1)), knobs=knobs, k=2, max_new_tokens=3)
    assert outputs([step]) == (1, 2)
    assert [node.state for node in step.nodes] == ["accepted", "rejected"]


def test_a_bias_moves_the_argmax_of_every_row():
    @dataclass(frozen=True)
    class Bias:
        reads_context = False

        def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
            return logits + torch.tensor([0.0, 5.0], dtype=logits.dtype)

    model = TableModel(tuple("ab"), lambda context: torch.softmax(torch.tensor([2.0, 1.0]), -1))
    (step,) = run(model, [0], Replay((1, 1, 1)), knobs=[Bias()], k=3, max_new_tokens=4)
    assert outputs([step]) == (1, 1, 1, 1)


def test_min_p_acts_on_draft_rows():
    law = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    model = TableModel(tuple("abcd"), lambda context: law)
    for seed in range(20):
        (step, *_) = run(model, [0], Replay((0, 2)), rule=verify_sampling, knobs=chain(min_p=0.3), k=2, seed=seed)
        assert step.nodes[1].p == 0
        assert step.nodes[1].state != "accepted"
        assert step.nodes[0].p == pytest.approx(0.7059, abs=1e-4)


# --- What a step records --------------------------------------------------------------------------------------------


def test_log_probabilities_are_the_raw_targets():
    law = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    model = TableModel(tuple("abcd"), lambda context: law)
    kinds = set()
    for knobs, seed in itertools.product([(), chain(temperature=0.5, top_k=3)], range(15)):
        q = DraftModel(table(4, 4).session(PROMPT), knobs)
        for step in run(model, PROMPT, q, rule=verify_sampling, knobs=knobs, k=2, seed=seed, max_new_tokens=9):
            for output in step.outputs:
                kinds.add(output.kind)
                assert output.logprob == pytest.approx(math.log(float(law[output.token])), abs=1e-12)
    assert kinds == {"accepted", "recovered", "bonus", "plain"}
    assert math.log(0.6) == pytest.approx(-0.5108, abs=1e-4)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), rule=st.sampled_from([verify_greedy, verify_sampling, verify_match_keep]))
def test_a_step_is_whole(seed, rule):
    model = table(5, seed)
    knobs = chain(temperature=0.9, top_p=0.9)
    for drafter in (RandomTrees(seed, 5), DraftModel(table(5, seed + 1).session(PROMPT), knobs)):
        for step in run(model, PROMPT, drafter, rule=rule, knobs=knobs, seed=seed, max_new_tokens=8):
            step.check()
            for row in step.rows:
                assert sum(c.p for c in row.top) + row.tail_p == pytest.approx(1)
                assert row.argmax == max(row.top, key=lambda c: (c.p, -c.token)).token
                assert row.margin is None or row.margin >= 0
                if row.tail_q is not None:
                    assert sum(c.q for c in row.top) + row.tail_q == pytest.approx(1)
            for i, node in enumerate(step.nodes):
                shown = {c.token: c.p for c in step.rows[node.parent + 1].top}
                assert shown[node.token] == node.p
                assert (node.state == "unjudged") == (i not in _judged(step))
            assert step.num_verified == sum(node.state == "accepted" for node in step.nodes)


def _judged(step) -> set[int]:
    """Children of the path that was walked, up to the one that stands."""
    judged, parent = set(), ROOT
    while True:
        children = [i for i, node in enumerate(step.nodes) if node.parent == parent and node.state != "unjudged"]
        judged.update(children)
        accepted = [i for i in children if step.nodes[i].state == "accepted"]
        if not accepted:
            return judged
        parent = accepted[0]


def test_the_clock_runs_on_and_the_parts_add_up():
    steps = list(run(table(3, 1), PROMPT, NGram(2), max_new_tokens=6))
    assert steps[0].started_ms == 0
    for before, step in itertools.pairwise(steps):
        assert step.started_ms == before.ended_ms
    assert all(min(s.draft_ms, s.verify_ms, s.other_ms) >= 0 for s in steps)


# --- Faults ---------------------------------------------------------------------------------------------------------


class Failing(Replay):
    def propose(self, context, k, coin, hidden=None):
        if len(context.tokens) > 4:
            raise RuntimeError("out of cards")
        return super().propose(context, k, coin, hidden)


class TooDeep(Replay):
    def propose(self, context, k, coin, hidden=None):
        return Draft.chain([0] * (k + 1))


@pytest.mark.parametrize(
    ("drafter", "says"), [(Failing((0, 0, 0)), "out of cards"), (TooDeep(()), "4 levels where 3 fit")]
)
def test_a_drafter_that_fails_is_dropped_with_a_note(drafter, says):
    model = table(3, 2)
    steps = list(run(model, PROMPT, drafter, max_new_tokens=8))
    assert outputs(steps) == outputs(run(model, PROMPT, max_new_tokens=8))
    notes = [step.note for step in steps if step.note]
    assert len(notes) == 1
    assert says in notes[0]


def test_nan_logits_are_noted_and_never_put_out():
    model = TableModel(tuple("abc"), lambda context: torch.tensor([0.2, math.nan, 0.8], dtype=torch.float64))
    steps = list(run(model, [0], Replay((1, 2)), rule=verify_sampling, max_new_tokens=6))
    assert all(step.note == NAN_NOTE for step in steps)
    assert 1 not in outputs(steps)
    assert all(math.isfinite(output.logprob) for step in steps for output in step.outputs)


def test_differences_too_small_for_a_probability_still_decide_greedily():
    logits = torch.tensor([1.0, 1.0 + 2**-52, 1.0, -800.0], dtype=torch.float64)

    class Raw(TableModel):
        def session(self, tokens, taps=()):
            session = super().session(tokens)
            score = session.score
            session.score = lambda draft: score(draft)._replace(logits=logits.expand(len(draft) + 1, -1))
            return session

    model = Raw(tuple("abcd"), cyclic_law(4))
    for knobs in ((), [Temperature(0)]):
        (step,) = run(model, [0], Replay((1, 1)), knobs=knobs, k=2, max_new_tokens=3)
        assert outputs([step]) == (1, 1, 1)
        assert [row.argmax for row in step.rows] == [1, 1, 1]


# --- Two lanes ------------------------------------------------------------------------------------------------------


def test_a_race_keeps_the_lanes_in_step_and_loses_nothing():
    model = table(4, 1)
    lanes = {
        "speculative": run(model, PROMPT, NGram(2), max_new_tokens=9),
        "plain": run(model, PROMPT, max_new_tokens=9),
    }
    clocks = {"speculative": 0.0, "plain": 0.0}
    found: dict[str, list] = {"speculative": [], "plain": []}
    for name, step in race(lanes):
        if name == "speculative":
            assert clocks["plain"] >= step.ended_ms or found["plain"][-1].finish
        found[name].append(step)
        clocks[name] = step.ended_ms
    assert outputs(found["speculative"]) == outputs(found["plain"])
    assert found["plain"][-1].finish == found["speculative"][-1].finish == "length"


def test_a_growing_length_never_overruns():
    model = table(3, 1)
    plain = outputs(run(model, PROMPT, NoDrafter(), max_new_tokens=20))
    steps = list(run(model, PROMPT, Replay(plain), length=Heuristic(1), max_new_tokens=20))
    assert outputs(steps) == plain
    assert [len(step.nodes) for step in steps] == [1, 3, 5, 7]
