"""Trained drafters are choices of every lab that has a drafter: on a small random target with random weights."""

from __future__ import annotations

from typing import Any

import pytest

from models import trained
from models.load import TRAINED, Models
from playground.engine.trace import Trace
from playground.lab import execute, read_params
from playground.labs import greedy_verification, speculative_sampling
from tests.drafting import save_weights
from tests.models.conftest import CONFIGS, load, save_model


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder, models = tmp_path_factory.mktemp("small"), Models()
    target = str(save_model(folder / "target", CONFIGS["llama"]))
    save_weights(load(target, models), folder / "weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FOLDER", folder / "weights")
        patch.setattr(greedy_verification, "PASS_SIZES", (1, 4))
        yield models, {"target": target, "prompt": "hello hello", "dtype": "fp32", "device": "cpu"}


def last(lab: Any, small: Any, **values: Any) -> Trace:
    models, common = small
    params = read_params(lab.params, {**common, "max_new_tokens": 12, **values})
    return [update for update in execute(lab, params, models) if isinstance(update, Trace)][-1]


@pytest.mark.parametrize("drafter", TRAINED)
def test_greedy_output_is_that_of_plain_decoding(small, drafter: str) -> None:
    lab = greedy_verification.LAB
    found = lab.summary(last(lab, small, drafter=drafter))
    assert found["identical_to_plain"] is True
    assert found["drafted_tokens"] > 0


@pytest.mark.parametrize("drafter", TRAINED)
def test_sampled_drafts_are_judged_with_their_q(small, drafter: str) -> None:
    lab = speculative_sampling.LAB
    trace = last(lab, small, drafter=drafter, temperature=1.2)
    nodes = [node for step in trace["speculative"].steps for node in step.nodes]
    assert nodes
    assert not any(step.note for step in trace["speculative"].steps)
    assert drafter == "combination" or all(node.q > 0 for node in nodes)
    assert [lab.frame(trace, i) for i in range(lab.num_frames(trace))]
