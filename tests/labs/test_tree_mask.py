"""The lab of draft trees: bad trees, partial traces, positions by index, and drafters that cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from models import trained
from models.load import Models
from playground.engine.trace import Trace
from playground.lab import BadInput, Progress, execute, read_params
from playground.labs import tree_mask
from playground.labs.tree_mask import LAB
from playground.views import draft_tree
from tests.drafting import save_weights
from tests.models.conftest import CONFIGS, load, save_model

TABLE = {"target": "table", "prompt": "the cat", "drafter": "layer_skip", "max_new_tokens": 12}
KEYS = {"nodes", "mask_ones", "positions", "expected_tokens", "chain_expected_tokens", "measured_tokens", "mask_bytes"}


def traces(models: Models | None = None, **values: Any) -> list[Trace]:
    params = read_params(LAB.params, {**TABLE, **values})
    return [t for t in execute(LAB, params, models or Models()) if not isinstance(t, Progress)]


def test_the_reference_tree_is_there_before_anything_runs() -> None:
    first = traces()[0]
    found = LAB.summary(first)
    assert found["mask_ones"] == 33
    assert found["positions"] == (0, 1, 2, 3, 4, 1, 2, 2, 1, 3, 3)
    assert found["expected_tokens"] == pytest.approx(2.705, abs=5e-4)
    assert found["chain_expected_tokens"] == pytest.approx(2.407, abs=1e-3)
    assert LAB.num_frames(first) == 1
    assert first["tree"].steps == ()


def test_the_summary_has_its_keys_on_every_partial_trace() -> None:
    everything = traces()
    for trace in (Trace(), *everything):
        assert set(LAB.summary(trace)) >= KEYS
        assert LAB.figures(LAB.summary(trace))
    frames = [LAB.frame(everything[-1], i) for i in range(LAB.num_frames(everything[-1]))]
    assert all(frame.status and "<section" in frame.html for frame in frames)


@pytest.mark.parametrize(("context", "batch"), [(0, 32), (1024, 34), (4096, 41)])
def test_the_batch_from_which_the_chain_wins(context: int, batch: int) -> None:
    first = traces(shape="best", priced_context=context)[0]
    price = LAB.summary(first)["priced"]
    change = {"batch": batch, "from": "tree", "to": "chain", "k": 5, "alpha": 0.605, "context": context}
    assert (price["first"], price["flips"][0]) == ("tree", change)
    assert "Who is the fastest" in LAB.frame(first, 0).html
    assert LAB.charts[-1].draw(first) is not None


@pytest.mark.parametrize("shape", tree_mask.SHAPE_NAMES)
def test_every_shape_is_lossless(shape: str) -> None:
    found = LAB.summary(traces(shape=shape)[-1])
    assert found["identical_to_plain"] is True
    assert found["measured_tokens"] > 1
    assert set(found["pass_ms"]) >= {"no draft", "chain of 5"}


@pytest.mark.parametrize("children", ["likeliest", "drawn"])
def test_sampled_trees_run(children: str) -> None:
    found = LAB.summary(traces(temperature=0.9, children=children)[-1])
    assert found["identical_to_plain"] is None
    assert 0 < found["output_tokens"] <= 12


def test_positions_by_index_are_shown_and_measured() -> None:
    trace = traces(shape="medusa", positions="indices")[-1]
    found = LAB.summary(trace)
    assert found["positions"] == tuple(range(22))
    assert found["position_error"] > 0
    assert 0 <= found["position_flips"] <= 21
    assert any("law moved by" in LAB.frame(trace, i).html for i in range(LAB.num_frames(trace)))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tree": "-1,5"}, "node 1 is an orphan"),
        ({"tree": "-1,2,1"}, "node 1 is its own ancestor"),
        ({"tree": "-1,0:0,0:0"}, "nodes 1 and 2 are both rank 0"),
        ({"tree": ",".join(["-1"] * 80)}, "node 64 is too many"),
        ({"tree": ",".join(str(i - 1) for i in range(20))}, "node 16 is too many"),
        ({"add": "12"}, "add: there is no node 12"),
        ({"prune": "10"}, "prune: there is no node 10"),
        ({"prune": "0,4,5,8"}, None),
        ({"tree": "-1", "prune": "0"}, "no node left"),
        ({"ranks": "0.7,0.6"}, "sum to 1.300"),
        ({"ranks": "1.5"}, "must lie between 0 and 1"),
        ({"nodes": "0"}, "nodes must lie"),
        ({"shape": "dynamic", "prune": "1"}, "add and prune edit a fixed tree"),
        ({"children": "drawn"}, "raise temperature"),
        ({"children": "drawn", "temperature": 1, "shape": "dynamic"}, "change the output's law"),
        ({"prompt": ""}, "prompt is empty"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(values: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert traces(**values)
        return
    with pytest.raises(BadInput) as caught:
        traces(**values)
    assert says in str(caught.value)


def test_a_tree_larger_than_the_context_is_refused_with_the_node() -> None:
    with pytest.raises(ValueError, match="node 8 has no room"):
        traces(prompt=" ".join(["the cat sees"] * 168))


def test_without_weights_the_tree_is_still_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    trace = traces(drafter="eagle3")[-1]
    assert "needs a neural target" in LAB.summary(trace)["missing"]
    assert LAB.summary(trace)["mask_ones"] == 33
    assert "neural target" in LAB.frame(trace, LAB.num_frames(trace) - 1).status


def test_the_mask_says_in_words_what_a_row_sees() -> None:
    shape = tree_mask.Params(shape="best").fixed
    drawn = draft_tree.mask(shape)
    assert drawn.count('class="on"') == 33
    assert "Row 5, position +2, sees last, 0, 5." in drawn


@pytest.mark.parametrize("drafter", ["eagle3", "eagle", "mtp", "medusa", "tiny"])
def test_trained_drafters_run_in_the_lab(drafter: str, tmp_path, monkeypatch) -> None:
    """On a small random target with random weights: the path from weights to page."""
    folder, models = str(save_model(tmp_path / "target", CONFIGS["llama"])), Models()
    save_weights(load(folder, models), tmp_path / "weights")
    monkeypatch.setattr(trained, "FOLDER", tmp_path / "weights")
    found = LAB.summary(traces(models, target=folder, prompt="hello", drafter=drafter, dtype="fp32", device="cpu")[-1])
    assert found["missing"] is None
    assert found["identical_to_plain"] is True
    assert found["measured_tokens"] >= 1
