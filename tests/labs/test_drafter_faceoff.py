"""The lab of drafters face to face: names of its figures, missing weights, blind drafts, failures in mid-run."""

from __future__ import annotations

from typing import Any

import pytest

from models import trained
from models.load import Models
from playground.engine.trace import Trace
from playground.lab import Progress, execute, read_params
from playground.labs import drafter_faceoff as lab_module
from playground.labs.drafter_faceoff import LAB, USUAL
from tests.drafting import save_weights
from tests.models.conftest import CONFIGS, load, save_model

TABLE = {"target": "table", "prompt": "the cat", "max_new_tokens": 12}
KEYS = {
    "mean_acceptance_length", "acceptance_per_position", "conditional_per_position", "draft_ms", "verify_ms",
    "tokens_per_second", "measured_speedup", "identical_to_plain", "parameters", "by_class",
}  # fmt: skip


def traces(models: Models | None = None, **values: Any) -> list[Trace]:
    params = read_params(LAB.params, {**TABLE, **values})
    return [t for t in execute(LAB, params, models or Models()) if not isinstance(t, Progress)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A loader with a small random target in a folder, random weights, two held-out prompts a class."""
    folder, models = tmp_path_factory.mktemp("small"), Models()
    target = str(save_model(folder / "target", CONFIGS["llama"]))
    save_weights(load(target, models), folder / "weights")
    models.held_out = lambda: {kind: ["hello", "hell"] for kind in ("chat", "code", "json", "copy")}
    models.record = lambda name: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FOLDER", folder / "weights")
        yield models, {"target": target, "prompt": "hello hello", "dtype": "fp32", "device": "cpu", "draft_layers": 2}


@pytest.fixture(scope="module")
def full(small):
    models, values = small
    return traces(models, **values)


def test_every_drafter_has_every_figure(full) -> None:
    found = LAB.summary(full[-1])
    assert tuple(found["drafters"]) == USUAL
    assert found["missing"] == {}
    assert found["all_identical"] is True
    for name, figures in found["drafters"].items():
        assert set(figures) >= KEYS
        assert figures["identical_to_plain"] is True
        assert figures["parameters"] > 0 or name == "ngram"
        assert set(figures["by_class"]) == {"chat", "code", "json", "copy"}
        for part in figures["by_class"].values():
            assert set(part) >= {"mean_acceptance_length", "acceptance_per_position", "conditional_per_position"}


def test_frames_of_a_race_then_figures_prices_drafts_classes(full) -> None:
    trace = full[-1]
    lead = 1 + len(trace.lanes[0].steps)
    assert LAB.num_frames(full[0]) == 1  # who takes part, before the first pass
    assert LAB.num_frames(trace) == lead + 4
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert all(frame.status and "<section" in frame.html for frame in frames)
    assert frames[lead + 1].status.startswith("On Llama 3.3 70B ")
    assert "drafts blindly" in frames[lead + 2].status
    assert all(chart.draw(trace) is not None for chart in LAB.charts)


def test_prices_are_those_of_the_race(full) -> None:
    found = LAB.summary(full[-1])
    price = found["priced"]
    assert set(price["draft_cost"]) == {"medusa", "eagle3", "tiny", "ngram", "combination"}
    assert price["draft_cost"]["ngram"] == 0
    for name, tokens in price["tokens_per_pass"].items():
        race = found["drafters"][name]
        drafted = race["num_drafts"] / race["target_passes"]
        assert tokens == pytest.approx(1 + drafted * (race["mean_acceptance_length"] - 1))
        assert price["speedup_by_batch"][name]["1"] <= tokens
    assert LAB.summary(full[0])["priced"] is None  # before the race is over


def test_frames_stay_as_they_are_while_the_run_goes_on(full) -> None:
    early = next(t for t in full if len(t.lanes[0].steps) == 2)
    assert [LAB.frame(early, i) for i in range(3)] == [LAB.frame(full[-1], i) for i in range(3)]
    shown = [LAB.num_frames(trace) for trace in full]
    assert shown == sorted(shown)


def test_blind_and_conditional_drafts_are_judged_after_the_same_texts(full) -> None:
    fit = LAB.summary(full[-1])["later_tokens_fit"]
    assert set(fit) == {"medusa", "eagle3"}
    for moment in full[-1]["side by side"].steps:
        assert [chain.name for chain in moment.chains] == ["medusa", "eagle3"]


@pytest.mark.parametrize("shape", ["ten", "dynamic"])
def test_trees_are_lossless(small, shape: str) -> None:
    models, values = small
    found = LAB.summary(traces(models, **values, shape=shape, prompts_per_class=0)[-1])
    assert found["all_identical"] is True


def test_missing_weights_are_told_and_the_others_go_on(tmp_path, monkeypatch, small) -> None:
    models, values = small
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    monkeypatch.setattr(trained, "_LOADED", {})
    trace = traces(models, **values)[-1]
    found = LAB.summary(trace)
    assert set(found["missing"]) == {"medusa", "eagle3", "tiny", "combination"}
    assert "There are no weights" in found["missing"]["tiny"]
    assert found["drafters"]["eagle3"]["mean_acceptance_length"] is None
    assert found["drafters"]["ngram"]["identical_to_plain"] is True
    assert "There are no weights" in LAB.frame(trace, 0).html


def test_damaged_weights_are_told(tmp_path, monkeypatch, small) -> None:
    models, values = small
    (tmp_path / "tiny.safetensors").write_bytes(b"short")
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    monkeypatch.setattr(trained, "_LOADED", {})
    found = LAB.summary(traces(models, **values, drafters="tiny,ngram")[-1])
    assert "tiny.safetensors is damaged" in found["missing"]["tiny"]
    assert found["drafters"]["ngram"]["finish_reason"]


def test_a_drafter_that_fails_in_mid_run_ends_with_plain_decoding(monkeypatch, small) -> None:
    models, values = small
    whole = lab_module.make_drafters

    def faulty(*args: Any, **options: Any):
        ready, missing = yield from whole(*args, **options)
        real = ready["ngram"].propose

        def propose(context, k, coin, hidden=None):
            if len(context.tokens) > 7:
                raise RuntimeError("the index is gone")
            return real(context, k, coin, hidden)

        ready["ngram"].propose = propose
        return ready, missing

    monkeypatch.setattr(lab_module, "make_drafters", faulty)
    trace = traces(models, **values, drafters="ngram", prompts_per_class=0)[-1]
    assert LAB.summary(trace)["drafters"]["ngram"]["identical_to_plain"] is True
    assert "the index is gone" in LAB.frame(trace, LAB.num_frames(trace) - 1).html


def test_without_any_drafter_plain_decoding_is_left() -> None:
    trace = traces(drafters="medusa,tiny")[-1]
    assert LAB.summary(trace)["fastest"] is None
    assert LAB.summary(trace)["plain_tokens_per_second"] > 0
    assert LAB.frame(trace, LAB.num_frames(trace) - 1).status == "No drafter ran."


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"drafters": ""}, "drafters is empty"),
        ({"drafters": "ngram,ngram"}, "names ngram twice"),
        ({"drafters": "oracle"}, "drafters must be one of"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompts_per_class": "20"}, "prompts_per_class must lie"),
        ({"medusa_hits": "0.3,0.4"}, "medusa_hits takes one to eight shares that never rise"),
        ({"priced_target": "gpt-9"}, "no models entry 'gpt-9'"),
        ({"hardware": "abacus"}, "no hardware entry 'abacus'"),
        ({"draft_model": "gpt-9"}, "no models entry 'gpt-9'"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        traces(**values)


def test_the_summary_of_nothing_has_its_keys() -> None:
    found = LAB.summary(Trace())
    assert found["drafters"] == {}
    assert LAB.figures(found)
