"""The lab of EAGLE's head: names of its figures, live tensors, prices from shapes, weights that are not there."""

from __future__ import annotations

from typing import Any

import pytest

from models import trained
from models.load import Models
from playground.engine.face_to_face import DraftedChain, SideBySide
from playground.engine.head_report import CHANGES, effects, judged, most_telling
from playground.engine.trace import Trace
from playground.lab import BadInput, Progress, execute, read_params
from playground.labs.eagle import LAB, NAMES
from playground.views import heads
from tests.drafting import save_weights
from tests.models.conftest import CONFIGS, load, save_model

RECORD = {
    "token_visits": 1000, "parameters": 5_000_000, "steps": 10, "training_cpu_seconds": 1,
    "learning_curve": [{"step": n, "tokens": 9 * n, "validation": [0.2 + n / 90, 0.1]} for n in (0, 9)],
}  # fmt: skip


def record(name: str, first: float) -> dict[str, Any]:
    found = {
        "mean_acceptance_length": 1 + first, "acceptance_per_position": [first, first / 4],
        "conditional_per_position": [first, 0.25], "passes": 10,
    }  # fmt: skip
    return {**RECORD, "heldout": {name: found}}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A loader with a small random target, random weights for every variant, and records of our own."""
    folder, models = tmp_path_factory.mktemp("small"), Models()
    target = str(save_model(folder / "target", CONFIGS["llama"]))
    save_weights(load(target, models), folder / "weights")
    models.record = lambda name: record(name, 0.1 if name == "eagle3_blind" else 0.4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FOLDER", folder / "weights")
        yield (
            models,
            {"target": target, "prompt": "hello hello", "dtype": "fp32", "device": "cpu", "max_new_tokens": 12},
        )


def last(small, **values: Any) -> Trace:
    models, common = small
    params = read_params(LAB.params, {**common, **values})
    return [update for update in execute(LAB, params, models) if not isinstance(update, Progress)][-1]


@pytest.fixture(scope="module")
def full(small) -> Trace:
    return last(small)


def test_every_variant_has_its_figures(full) -> None:
    found = LAB.summary(full)
    assert tuple(found["variants"]) == NAMES
    for figures in found["variants"].values():
        assert figures["token_visits"] == 1000
        assert figures["parameters"] == 5_000_000
        assert len(figures["acceptance_per_position"]) == len(figures["conditional_per_position"]) == 2
        assert figures["here"]["num_drafts"] > 0
    assert found["first_position_with_feature"] == 0.4
    assert found["first_position_without_feature"] == 0.1
    assert found["feature_effect"] == pytest.approx(0.3)
    assert found["missing"] == {}
    assert len({v["here"]["num_drafts"] for v in found["variants"].values()}) == 1  # after the same texts


def test_prices_follow_from_the_shapes(full) -> None:
    price = LAB.summary(full)["priced"]
    assert price["parameters"] == pytest.approx(0.990e9, abs=5e5)
    assert price["parts"]["fusion"] == pytest.approx(134.2e6, abs=5e4)
    assert price["parameters_with_head"] == pytest.approx(2.041e9, abs=5e5)
    assert price["draft_cost"] == pytest.approx(0.0294, abs=5e-5)
    assert price["draft_cost_32k"] == pytest.approx(0.0173, abs=5e-5)
    assert price["equal_acceptance_32k"] < price["equal_acceptance"] < price["draft_model_acceptance"]


def test_live_tensors_are_those_of_the_head(small, full) -> None:
    """The strips of the first level begin with the tapped states; the second reads what the first put out."""
    seen = next(step for step in full["wiring"].steps if len(step.levels) > 1)
    names = [[wire.name for wire in level.wires] for level in seen.levels]
    assert names[0] == ["layer 1", "layer 2", "layer 4", *names[1]]
    assert names[1] == ["state", "embedding", "embedding, normed", "state, normed", "projection", "block"]
    one, two = ({wire.name: wire for wire in level.wires} for level in seen.levels[:2])
    assert one["block"].strip == two["state"].strip
    for level in seen.levels:
        assert level.top[0][1] >= level.top[1][1]


def test_frames_and_charts(full) -> None:
    assert LAB.num_frames(full) == len(full["drafts"].steps) + 3
    frames = [LAB.frame(full, i) for i in range(LAB.num_frames(full))]
    assert all(frame.status and "<section" in frame.html for frame in frames)
    assert "40 % of the held-out passes, without them in 10 %" in frames[-3].html
    assert all(chart.draw(full) is not None for chart in LAB.charts)
    assert Trace.from_json(full.to_json()) == full
    assert LAB.figures(LAB.summary(full))[0].value == "40 % / 10 %"


def test_without_weights_a_sentence_and_the_price(small, monkeypatch, tmp_path) -> None:
    models, _ = small
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    monkeypatch.setattr(trained, "_LOADED", {})
    monkeypatch.setattr(models, "record", lambda name: None)
    trace = last(small)
    found = LAB.summary(trace)
    assert set(found["missing"]) == set(NAMES)
    assert found["missing"]["eagle3"].startswith("There are no weights at eagle3.safetensors")
    assert found["first_position_with_feature"] is None
    assert found["priced"]["parameters"] > 0
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert "Not drafting here" in frames[0].html
    assert all(chart.draw(trace) is None or True for chart in LAB.charts)
    assert LAB.figures(found)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"variants": ""}, "variants is empty"),
        ({"variants": "eagle,eagle"}, "names eagle twice"),
        ({"variants": "medusa"}, "must be one of"),
        ({"priced_target": "none"}, "none"),
        ({"draft_model": "none"}, "none"),
        ({"k": 9}, "between 1 and 6"),
    ],
)
def test_what_cannot_be_done_is_refused_before_work_starts(small, values, says) -> None:
    with pytest.raises(BadInput, match=says):
        last(small, **values)


def moment(start: int, **stood: int) -> SideBySide:
    chains = tuple(DraftedChain(name, (1, 2, 3)[: max(n, 1)], (0.5,) * max(n, 1), n) for name, n in stood.items())
    return SideBySide(start, (1,), chains)


def test_counters_take_only_the_places_where_all_drafted() -> None:
    empty = SideBySide(1, (1,), (DraftedChain("a", (), (), 0), DraftedChain("b", (1,), (0.5,), 1)))
    moments = [empty, moment(2, a=2, b=0), moment(3, a=1, b=3)]
    assert judged(moments, "a").accepted_per_position == (2, 1)
    assert judged(moments, "b").accepted_per_position == (1, 1, 1)
    assert judged(moments, "b").num_drafts == 2
    assert most_telling(moments, "a", "b").start == 2
    assert most_telling([empty], "a", "b") is None


def test_effects_of_changes() -> None:
    sides = {"conditional_per_position": [0.3, 0.2], "mean_acceptance_length": 1.3}
    after = {"conditional_per_position": [0.4, 0.1], "mean_acceptance_length": 1.5}
    for side in (sides, after):
        side |= {"passes": 1000, "acceptance_per_position": [side["conditional_per_position"][0], 0.05]}
    found = effects({"eagle": sides, "mtp": after, "eagle3_noroll": sides, "eagle3_short": after})
    assert [each["shows"] for each in found] == [True, False, None]
    assert found[0]["gain"] == pytest.approx(0.1)
    assert found[1]["gain"] == pytest.approx(-0.1)
    assert found[0]["noise"] == pytest.approx(2 * (0.3 * 0.7 / 1000 + 0.4 * 0.6 / 1000) ** 0.5)
    assert found[1]["noise"] == pytest.approx(2 * (0.2 * 0.8 / 300 + 0.1 * 0.9 / 400) ** 0.5)
    assert len(found) == len(CHANGES)


def test_a_small_effect_of_the_feature_is_explained_by_the_curves(small, monkeypatch) -> None:
    models, _ = small
    monkeypatch.setattr(models, "record", lambda name: record(name, 0.36 if name == "eagle3_blind" else 0.4))
    trace = last(small, variants="eagle3_short,eagle3_blind", max_new_tokens=6)
    said = heads.feature_says(LAB.summary(trace))
    assert "40 % of the held-out passes, without them in 36 %" in said
    assert "went from 20 to 30 %" in said
