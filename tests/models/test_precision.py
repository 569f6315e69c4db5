"""Other numerics on real models: what a layer computes, what is shared, what later drafts move, what leaves a trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import precision
from models.fp8 import FP8Cache, FP8Linear, Matmul, choose_matmul, emulated, num_bytes, scaled_mm
from models.hf import HFModel
from models.load import Models
from models.precision import CONVERT, held_bytes, kv_bytes, probe, twin, weight_bytes
from models.variants import Variants
from playground.engine.drift import Reader, lockstep, log_law, reshaped, variation
from playground.engine.drift_breaks import disturbed
from playground.engine.precision import NUMERICS, Variant, e4m3, per_row
from playground.engine.tree import Draft
from tests.models.test_load import finish

PROMPT = [5, 9, 200, 17, 33, 60, 61]
OTHER = [7, 99, 150]


def variant(model: HFModel, name: str) -> Variant:
    return finish(Variants().get(model, name, lambda dtype: iter(())))


def text_of(model: HFModel, num: int = 8) -> list[int]:
    reader = Reader(model, PROMPT)
    return [drift.text_token for _, drift in lockstep({"own": reader}, reader, frozenset(), num)]


def broken(model: HFModel) -> tuple[float, float]:
    """The largest change by later drafts, and by a rejected draft."""
    *_, last = disturbed(model, PROMPT, text_of(model), [0, 2, 4], 4, OTHER)
    return max(last.later), max(last.after)


# --- Layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_scaled_mm_and_its_emulation_agree(rows):
    torch.manual_seed(rows)
    x, w = torch.randn(rows, 64), torch.randn(32, 64)
    args = (e4m3(x / per_row(x)), e4m3(w / per_row(w)), per_row(x), per_row(w))
    try:
        got = scaled_mm(*args)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch._scaled_mm does not run here: {error}")
    assert torch.allclose(got.float(), emulated(*args), rtol=1e-5, atol=1e-4)


def test_the_page_can_say_who_multiplies():
    found = choose_matmul("cpu")
    assert isinstance(found, Matmul)
    assert ("emulated" in found.why) is not found.is_scaled_mm


@pytest.mark.parametrize(("weights", "most"), [("fp8", 0.04), ("int8", 0.02), ("nf4", 0.15)])
def test_layers_come_out_near(weights, most):
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.randn(5, 64)
    if reason := probe({"fp8": "fp8_weight"}.get(weights, weights), "cpu"):
        pytest.skip(reason)
    with torch.inference_mode():
        made = CONVERT[weights](layer)
        error = ((made(x) - layer(x)).norm() / layer(x).norm()).item()
    assert 0 < error < most


@pytest.mark.parametrize("name", NUMERICS)
def test_every_numerics_is_probed(name):
    reason = probe(name, "cpu")
    assert reason == "" or reason.endswith(".")


def test_what_does_not_run_says_why(monkeypatch, llama):
    monkeypatch.setattr(precision, "CONVERT", {**CONVERT, "nf4": lambda linear: 1 / 0})
    probe.cache_clear()
    try:
        made = variant(llama, "nf4")
        assert made.model is None
        assert made.reason == "NF4 does not run here: division by zero."
    finally:
        probe.cache_clear()


def test_a_wrong_layer_is_refused(monkeypatch):
    monkeypatch.setattr(precision, "CONVERT", {**CONVERT, "int8": lambda linear: nn.Linear(64, 32)})
    probe.cache_clear()
    try:
        assert "comes out wrong" in probe("int8", "cpu")
    finally:
        probe.cache_clear()


def test_a_zero_row_stays_zero():
    layer = FP8Linear.of(nn.Linear(8, 4, bias=False), is_scaled_mm=False)
    for layer.activations in ("token", "tensor"):
        out = layer(torch.stack([torch.zeros(8), torch.ones(8)]))
        assert out[0].tolist() == [0.0] * 4
        assert out[1].isfinite().all()


# --- Whole models -----------------------------------------------------------------------------------------------------


def test_a_twin_shares_tensors_and_parts_can_be_replaced(model):
    made = twin(model)
    assert {p.data_ptr() for p in made.model.parameters()} == {p.data_ptr() for p in model.model.parameters()}
    before = model.session(PROMPT).score(Draft()).logits
    quantised = variant(model, "fp8_weight").model
    assert torch.equal(model.session(PROMPT).score(Draft()).logits, before)
    assert not torch.equal(quantised.session(PROMPT).score(Draft()).logits, before)


@pytest.mark.parametrize("name", ["fp8_weight", "fp8_per_token", "fp8_kv_static", "int8", "nf4"])
def test_drift_is_small_but_there(llama, name):
    made = variant(llama, name)
    if made.reason:
        pytest.skip(made.reason)
    own, reference = (log_law(m.session(PROMPT).score(Draft()).logits[0]) for m in (made.model, llama))
    assert 0 < variation(own, reference) < 0.9


def test_bytes(llama):
    config, base = llama.config, num_bytes(llama.model.parameters())
    linears = [m.weight for m in llama.model.model.modules() if isinstance(m, nn.Linear)]
    weights, channels = sum(w.numel() for w in linears), sum(w.shape[0] for w in linears)
    assert weight_bytes(llama.model) == base
    for name in ("fp8_weight", "int8"):
        assert variant(llama, name).weight_bytes == base - 4 * weights + weights + 4 * channels
    assert base - 4 * weights + weights // 2 < variant(llama, "nf4").weight_bytes < base - 2 * weights
    row = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim
    assert kv_bytes(llama, NUMERICS["fp32"]) == 4 * row
    assert variant(llama, "fp8_kv_static").kv_bytes == row
    assert variant(llama, "fp8_kv_running").kv_bytes == row + config.num_hidden_layers * 2 * 4
    assert variant(llama, "fp8_kv_static").weight_bytes == base


def test_a_shared_scale_lets_later_drafts_move_an_earlier_law(model):
    assert broken(variant(model, "fp8_per_tensor").model)[0] > 1e-4
    assert broken(variant(model, "fp8_per_token").model) == (0.0, 0.0)


def test_a_running_maximum_remembers_a_rejected_draft(llama):
    later, after = broken(variant(llama, "fp8_kv_running").model)
    assert later == 0.0
    assert after > 1e-4
    assert broken(variant(llama, "fp8_kv_static").model) == (0.0, 0.0)
    assert broken(llama) == (0.0, 0.0)


def test_a_window_read_unquantised_depends_on_the_shape_of_the_pass(llama):
    noise = {}
    for name in ("fp8_kv_static", "fp8_kv_window"):
        model = variant(llama, name).model
        reader = Reader(model, PROMPT)
        text = [drift.text_token for _, drift in lockstep({name: reader}, reader, frozenset(), 12)]
        *_, last = reshaped(model, PROMPT, text, reader.logits, 4)
        noise[name] = sum(last.tv) / len(last.tv)
        assert broken(model) == (0.0, 0.0)
    assert noise["fp8_kv_window"] > 10 * noise["fp8_kv_static"]


def test_a_cache_in_fp8_keeps_its_scale_and_rows_through_copy_and_rollback():
    cache = FP8Cache(1, "running")
    layer = cache.layers[0]
    layer.update(torch.full((1, 1, 1, 4), 2.0), torch.ones(1, 1, 1, 4))
    copied = cache.copy()
    layer.update(torch.full((1, 1, 1, 4), 8.0), torch.ones(1, 1, 1, 4))
    cache.keep(1, ())
    assert cache.num_rows == copied.num_rows == 1
    assert [float(peak) for peak in (layer.peaks[0], copied.layers[0].peaks[0])] == [8.0, 2.0]


@pytest.mark.default_model
def test_the_second_break_and_its_control_on_the_default_model(default_model):
    prompt, text = default_model.chat("Hi."), default_model.encode("The sea is a vast and mysterious realm")
    moved = {}
    for name in ("fp8_kv_running", "fp8_kv_static"):
        model = variant(default_model, name).model
        *_, last = disturbed(model, prompt, text, [0, 2], 4, default_model.encode("<|im_start|>system"))
        moved[name] = last
    assert all(each.later == (0.0, 0.0) for each in moved.values())
    assert moved["fp8_kv_static"].after == (0.0, 0.0)
    assert max(moved["fp8_kv_running"].after) > 1e-5


# --- Loading ----------------------------------------------------------------------------------------------------------


def test_formats_are_shared_and_the_least_recently_used_goes(llama):
    held = Variants()
    one, two = (finish(held.get(llama, name, None)).model for name in ("fp8_weight", "fp8_per_token"))
    codes = [next(m for m in each.model.modules() if isinstance(m, FP8Linear)).codes for each in (one, two)]
    assert codes[0] is codes[1]
    assert held.held == ["fp8"]
    finish(held.get(llama, "nf4", None))
    finish(held.get(llama, "fp8_per_tensor", None))
    assert held.held == ["nf4", "fp8"]
    held.limit_bytes = held_bytes(one, llama)
    finish(held.get(llama, "int8", None))
    assert held.held == ["int8"] or held.held == ["fp8", "int8"]
    assert "nf4" not in held.held


def test_progress_while_converting(llama):
    texts = [update.text for update in Variants().get(llama, "fp8_weight", None)]
    assert texts[0] == "Trying FP8 weights"
    assert texts[-1].startswith("Converting")


def test_loading_by_name(folders):
    models, folder = Models(), str(folders["llama"])
    made = finish(models.variant(folder, "bf16", "fp32", "cpu"))
    assert made.model.dtype_name == "bf16"
    assert finish(models.variant(folder, "fp32", "fp32", "cpu")).how == "As loaded."
    with pytest.raises(ValueError, match="no weights to round"):
        finish(models.variant("table", "nf4"))
