"""The picture of one target pass says what the pass reported."""

from __future__ import annotations

from dataclasses import replace

from models.teaching import draft_model, target
from playground.engine.decode import speculate
from playground.engine.drafters import DraftModel, Replay
from playground.engine.length import Fixed
from playground.engine.sampling import Temperature, coins
from playground.engine.stop import Stop
from playground.engine.trace import Pass
from playground.engine.verify import verify_greedy
from playground.views import verification

MODEL = target()
TEXTS = MODEL.texts(range(MODEL.vocab_size))


def first_pass(reply: str, k: int = 4, limit: int = 16, eos: frozenset[int] = frozenset()) -> Pass:
    drafter = Replay(tuple(MODEL.encode(reply)))
    steps = speculate(
        MODEL.session(MODEL.encode("the cat")),
        drafter,
        rule=verify_greedy,
        length=Fixed(k),
        coin=coins(0),
        stop=Stop(eos),
        max_new_tokens=limit,
    )
    return next(steps)


def states(html: str) -> dict[str, int]:
    return {
        s: html.count(f'class="tok {s}"')
        for s in ("accepted", "rejected", "recovered", "bonus", "unjudged", "discarded")
    }


def test_a_mismatch_is_replaced_and_the_rest_is_not_judged() -> None:
    step = first_pass("sees the dog hears")  # the target says: sees the cat sees
    html = verification.table(step, TEXTS)
    assert states(html) == {"accepted": 4, "rejected": 1, "recovered": 2, "bonus": 0, "unjudged": 2, "discarded": 0}
    assert verification.says(step).startswith("2 of 4 draft tokens accepted; the target's own token")


def test_a_full_draft_is_followed_by_a_bonus() -> None:
    step = first_pass("sees the cat sees")
    html = verification.table(step, TEXTS)
    assert states(html) == {"accepted": 8, "rejected": 0, "recovered": 0, "bonus": 2, "unjudged": 0, "discarded": 0}
    assert html.count('scope="col"') == 5


def test_tokens_behind_the_end_are_shown_as_cut_off() -> None:
    cat = MODEL.encode("cat")[0]
    step = first_pass("sees the cat sees", eos=frozenset({cat}))
    assert step.discarded == 2
    html = verification.table(step, TEXTS)
    assert (
        states(html)["discarded"] == 3
    )  # in the output a draft token and the one that follows; that one in the target's row
    assert states(html)["bonus"] == 0


def test_a_pass_without_draft_shows_the_targets_choice() -> None:
    step = first_pass("sees", k=1, limit=1)
    assert not step.nodes
    html = verification.table(step, TEXTS)
    assert "draft" not in html.replace("Draft and target", "")
    assert 'class="tok plain"' in html


def test_figures_of_a_cell_are_its_detail() -> None:
    html = verification.table(first_pass("sees the dog hears"), TEXTS)
    assert "draft “·dog”, rejected: target p = " in html
    assert "in log-probability" in html


def test_hostile_texts_are_escaped() -> None:
    evil = dict.fromkeys(TEXTS, "<img src=x onerror=alert(1)>")
    html = verification.table(first_pass("sees the dog hears"), evil)
    assert "<img" not in html


def test_every_pass_of_a_draft_model_can_be_drawn() -> None:
    prompt = MODEL.encode("the bird sings .")
    drafter = DraftModel(draft_model().session(prompt), (Temperature(0.0),))
    for step in speculate(
        MODEL.session(prompt), drafter, rule=verify_greedy, length=Fixed(3), coin=coins(0), max_new_tokens=20
    ):
        assert verification.table(step, TEXTS)
        assert len(verification.new_tokens(step, TEXTS)) == len(step.outputs)
        assert verification.says(replace(step, note="x"))
