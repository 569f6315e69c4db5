"""The numerics lab on a small random model: names, both breaks with their controls, the two cases, refusals, frames."""

from __future__ import annotations

import json

import pytest

from models.load import Models
from playground.engine.precision import NUMERICS
from playground.engine.trace import Trace
from playground.lab import BadInput, Progress, execute, read_params
from playground.labs import precision_drift
from playground.labs.precision_drift import LAB
from tests.models.conftest import CONFIGS, save_model

KEYS = {
    "mean_tv", "max_tv", "mean_kl", "top1_agreement", "first_divergence", "divergence_margin", "is_causal",
    "later_draft_tv", "shape_noise_tv", "trace_after_rejection_tv", "weight_bytes", "kv_bytes", "acceptance_as_draft",
}  # fmt: skip
SMALL = {"prompt": "hello the hell", "later": "#!~", "max_new_tokens": 8, "places": 2, "dtype": "fp32", "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(save_model(tmp_path_factory.mktemp("precision") / "target", CONFIGS["llama"]))


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


@pytest.fixture(scope="module")
def traces(folder, models) -> list[Trace]:
    """Everything on all numerics, once."""
    return run(folder, models)


def run(folder: str, models: Models, **raw) -> list[Trace]:
    params = read_params(LAB.params, {**SMALL, "target": folder, **raw})
    return [update for update in execute(LAB, params, models) if isinstance(update, Trace)]


@pytest.fixture(scope="module")
def found(traces) -> dict:
    return LAB.summary(traces[-1])["numerics"]


def test_every_numerics_has_every_figure(found):
    assert list(found) == ["fp32", *(name for name in NUMERICS if name != "fp32")]
    for each in found.values():
        assert set(each) >= KEYS
        assert each["runs"] is (each["reason"] is None)
    json.dumps(found, allow_nan=False)


def test_the_reference_is_at_no_distance_from_itself(found):
    reference = found["fp32"]
    assert (reference["mean_tv"], reference["mean_kl"], reference["top1_agreement"]) == (0, 0, 1)
    assert (reference["first_divergence"], reference["acceptance_as_draft"]) == (None, 1)
    assert (reference["is_causal"], reference["is_repeatable"], reference["is_traceless"]) == (True, True, True)
    assert 0 <= reference["shape_noise_tv"] < 1e-4


def test_later_drafts_move_an_earlier_law_only_where_a_pass_shares_a_scale(found):
    assert found["fp8_per_tensor"]["later_draft_tv"] > 1e-3
    assert found["fp8_per_tensor"]["is_causal"] is False
    for name in ("fp8_per_token", "fp8_weight", "fp8_kv_static", "fp8_kv_running", "fp8_kv_window", "nf4"):
        if found[name]["runs"]:
            assert found[name]["later_draft_tv"] == 0.0
            assert found[name]["is_causal"] is True


def test_only_a_maximum_that_grows_remembers_a_rejected_draft(found):
    assert found["fp8_kv_running"]["trace_after_rejection_tv"] > 1e-4
    assert found["fp8_kv_running"]["is_traceless"] is False
    for name in ("fp8_kv_static", "fp8_kv_window", "fp8_per_token"):
        assert found[name]["trace_after_rejection_tv"] == 0.0


def test_a_window_read_unquantised_shows_between_pass_shapes(found):
    assert found["fp8_kv_window"]["shape_noise_tv"] > 10 * found["fp8_kv_static"]["shape_noise_tv"]
    assert found["fp8_kv_static"]["is_repeatable"] is True


def test_a_drafter_in_other_numerics_changes_nothing_but_acceptance(found):
    for each in found.values():
        if each["runs"]:
            assert each["same_output_as_drafter"] is True
            assert each["accepted_as_drafter"] <= 1
            assert each["acceptance_as_draft"] == pytest.approx(1 - each["mean_tv"])


def test_a_target_in_other_numerics_is_followed_exactly(found):
    for name in ("fp32", "fp8_weight", "fp8_per_token", "fp8_kv_static"):
        assert found[name]["target_follows_itself"] is True
    parted = [each for each in found.values() if each["first_divergence"] is not None and each["is_repeatable"]]
    assert parted
    assert all(each["target_follows_reference"] is False for each in parted)
    assert all(each["divergence_shift"] >= each["divergence_margin"] >= 0 for each in parted)


def test_frames_grow_and_fit(traces):
    counts = [LAB.num_frames(trace) for trace in traces]
    assert counts == sorted(counts)
    assert counts[0] == 1
    last = traces[-1]
    frames = [LAB.frame(last, i) for i in range(counts[-1])]
    assert sum(len(frame.html) for frame in frames) < 1_000_000
    assert frames[0].status.endswith("the reference is FP32.")
    assert frames[-1].status == "What each numerics came to."
    for trace in traces[:: max(1, len(traces) // 12)]:
        shown = LAB.num_frames(trace)
        assert [LAB.frame(trace, i) for i in range(shown)] == frames[:shown]  # what was drawn stays
    assert LAB.figures(LAB.summary(last))
    assert all(chart.draw(last) is not None for chart in LAB.charts)
    assert Trace.from_json(last.to_json()) == last


def test_what_does_not_run_is_grey_with_its_reason(folder, models, monkeypatch):
    monkeypatch.setattr("models.variants.probe", lambda name, device: "NF4 does not run here: no." * (name == "nf4"))
    last = run(folder, models, numerics="nf4", measure="shapes")[-1]
    found = LAB.summary(last)["numerics"]["nf4"]
    assert (found["runs"], found["reason"], found["mean_tv"]) == (False, "NF4 does not run here: no.", None)
    assert '<span class="greyed">NF4 does not run here: no.</span>' in LAB.frame(last, 0).html
    assert LAB.figures(LAB.summary(last))[0].value == "1 of 2"


def test_it_reports_progress_and_stops_between_passes(folder, models):
    updates = execute(LAB, read_params(LAB.params, {**SMALL, "target": folder, "numerics": "fp8_kv_static"}), models)
    for update in updates:
        if isinstance(update, Progress) and update.text.startswith("Other pass shape"):
            break
    updates.close()
    assert next(updates, None) is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"numerics": "fp4"}, "numerics must be one of"),
        ({"measure": "speed"}, "measure must be one of"),
        ({"k": 1}, "k must lie"),
        ({"later": ""}, "later is empty"),
        ({"target": "table", "prompt": "the cat", "later": "the"}, "no weights to round"),
        ({"prompt": "hello " * 60}, "shorten it"),
    ],
)
def test_refusals_are_one_sentence(folder, models, raw, says):
    with pytest.raises(BadInput) as caught:
        run(folder, models, **raw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hostile_token_text_is_escaped(traces):
    last = traces[-1]
    spoilt = Trace(last.lanes, dict.fromkeys(last.texts, "<img src=x onerror=1>"), last.provenance)
    for i in range(LAB.num_frames(spoilt)):
        assert "<img" not in LAB.frame(spoilt, i).html


def test_code_shown_exists():
    assert precision_drift.code(LAB.params())
