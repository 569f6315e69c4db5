"""The lab of multi-token prediction: names of its figures, its loss against a computation by hand, missing weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models import trained
from models.load import Models
from playground.engine.trace import Trace
from playground.lab import BadInput, Progress, execute, read_params
from playground.labs.mtp import LAB
from tests.drafting import save_weights
from tests.models.conftest import CONFIGS, load, save_model

RECORD = {
    "token_visits": 1000, "parameters": 3_000_000, "steps": 10, "training_cpu_seconds": 1, "learning_curve": [],
    "heldout": {"mtp": {"mean_acceptance_length": 1.3, "acceptance_per_position": [0.3],
                        "conditional_per_position": [0.3], "passes": 10}},
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder, models = tmp_path_factory.mktemp("small"), Models()
    target = str(save_model(folder / "target", CONFIGS["llama"]))
    save_weights(load(target, models), folder / "weights")
    models.record = lambda name: RECORD
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FOLDER", folder / "weights")
        yield models, {"target": target, "prompt": "hello hello", "dtype": "fp32", "device": "cpu", "max_new_tokens": 8}


def last(small, **values: Any) -> Trace:
    models, common = small
    params = read_params(LAB.params, {**common, **values})
    return [update for update in execute(LAB, params, models) if not isinstance(update, Progress)][-1]


@pytest.fixture(scope="module")
def full(small) -> Trace:
    return last(small, k=2)


def test_figures_here_and_on_record(full) -> None:
    found = LAB.summary(full)
    assert 0 <= found["second_token_acceptance"] <= 1
    assert found["recorded"]["second_token_acceptance"] == 0.3
    assert found["num_drafts"] > 0
    assert found["missing"] is None
    assert found["objective"] == pytest.approx(found["loss_depth_0"] + 0.3 * found["loss_depth_1"])


def test_loss_is_the_modules_own_law_of_the_token_after_the_next(small, full) -> None:
    """Depth 1 by hand: the module's first law after tokens[: i + 2], over all tokens, against tokens[i + 2]."""
    models, common = small
    host = load(common["target"], models)
    ready = trained.load_for(host, "mtp")
    text = [*full["mtp"].prompt, *full["mtp"].output_tokens]
    with torch.inference_mode():
        hidden = host.model.model(input_ids=torch.tensor([text])).last_hidden_state[0]
        head = ready.module
        x = head.enter(ready.embed(text[1:]), hidden[:-1])
        states = head.norm(head.block(x[None], torch.arange(len(x)))[0])
        logits = (states @ host.model.get_output_embeddings().weight.T)[:, : host.num_tokens]
        want = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(text[2:]))
        plain = host.model(input_ids=torch.tensor([text])).logits[0, :, : host.num_tokens]
        main = torch.nn.functional.cross_entropy(plain[:-1], torch.tensor(text[1:]))
    found = LAB.summary(full)
    assert found["loss_depth_1"] == pytest.approx(float(want), abs=1e-3)
    assert found["loss_depth_0"] == pytest.approx(float(main), abs=1e-3)


def test_price_from_the_shapes_alone(full) -> None:
    price = LAB.summary(full)["priced"]
    assert price["active_parameters"] == pytest.approx(36.63e9, abs=5e6)
    assert price["total_parameters"] == pytest.approx(671.03e9, abs=5e6)
    assert price["mtp_active_parameters"] == pytest.approx(0.688e9, abs=5e5)
    assert price["draft_cost"] == pytest.approx(0.043, abs=5e-4)
    assert price["speedup_range"] == pytest.approx([1.77, 1.82], abs=5e-3)
    assert price["verify_cost_by_batch"]["1"] == pytest.approx(1.54, abs=5e-3)
    assert price["speedup_by_batch"]["1"] == pytest.approx(1.19, abs=6e-3)
    assert [price["speedup_by_batch"][b] for b in ("128", "512", "2048")] == pytest.approx([1.8] * 3, abs=0.05)
    assert sum(price["terms"].values()) == price["mtp_active_parameters_with_head"]


def test_frames_and_charts(full) -> None:
    assert LAB.num_frames(full) == len(full["mtp"].steps) + 3
    frames = [LAB.frame(full, i) for i in range(LAB.num_frames(full))]
    assert all(frame.status and "<section" in frame.html for frame in frames)
    assert "the module waits" in frames[0].html  # the pass over the prompt
    assert "each through its own norm" in frames[1].html
    assert all(chart.draw(full) is not None for chart in LAB.charts)
    assert Trace.from_json(full.to_json()) == full
    assert LAB.figures(LAB.summary(full))


def test_without_weights_a_sentence_and_the_price() -> None:
    params = read_params(LAB.params, {"target": "table", "prompt": "the cat"})
    trace = [update for update in execute(LAB, params, Models()) if isinstance(update, Trace)][-1]
    found = LAB.summary(trace)
    assert found["missing"].startswith("mtp needs a neural target")
    assert found["second_token_acceptance"] is None
    assert found["loss_depth_1"] is None
    frames = [LAB.frame(trace, i) for i in range(LAB.num_frames(trace))]
    assert len(frames) == 2
    assert "Not drafting here" in frames[0].html


@pytest.mark.parametrize(
    ("values", "says"),
    [({"k": 5}, "between 1 and 4"), ({"acceptance": 1.2}, "acceptance"), ({"priced_target": "none"}, "none")],
)
def test_what_cannot_be_done_is_refused_before_work_starts(small, values, says) -> None:
    with pytest.raises(BadInput, match=says):
        last(small, **values)
