"""E4M3 and its scales: what is rounded to what, who shares a scale, and what must not become NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.precision import E4M3_MAX, NUMERICS, e4m3, per_row, per_tensor, rounded, running, scale_of

ROW, LOUD = [0.11, 0.2, 0.31, 1.0], [100.0, 3.0, 5.0, 7.0]


def test_a_scale_per_tensor_depends_on_the_other_rows():
    alone, both = torch.tensor([ROW]), torch.tensor([ROW, LOUD])
    assert per_tensor(alone).item() == pytest.approx(0.002232, abs=1e-6)
    assert rounded(alone, per_tensor(alone))[0].tolist() == pytest.approx([0.10714, 0.19643, 0.32143, 1.0], abs=1e-5)
    assert per_tensor(both)[0].item() == pytest.approx(0.22321, abs=1e-5)
    assert rounded(both, per_tensor(both))[0].tolist() == pytest.approx([0.11161, 0.19531, 0.30692, 1.00446], abs=1e-5)


def test_a_scale_per_row_does_not():
    alone, both = torch.tensor([ROW]), torch.tensor([ROW, LOUD])
    assert torch.equal(rounded(both, per_row(both))[0], rounded(alone, per_row(alone))[0])


@pytest.mark.parametrize("value", [448.0, 449.0, 464.0, 465.0, 1000.0, math.inf])
def test_too_large_a_value_is_clamped_before_the_cast(value):
    assert e4m3(torch.tensor([value, -value])).tolist() == [E4M3_MAX, -E4M3_MAX]


def test_ends_of_the_range():
    kept, lost, half = e4m3(torch.tensor([2.0**-9, 2.0**-10, 1.5 * 2.0**-9])).tolist()
    assert (kept, lost, half) == (2.0**-9, 0.0, 2.0**-8)  # ties go to the even code
    assert e4m3(torch.tensor([math.nan])).isnan().all()


def test_what_a_bare_cast_of_e5m2_does():
    """The wider format overflows to infinity, which no clamp at 448 would show."""
    cast = torch.tensor([60000.0, 61440.0, 1e6]).to(torch.float8_e5m2).float()
    assert cast.tolist() == [57344.0, math.inf, math.inf]


@pytest.mark.parametrize("scales", [per_row, per_tensor])
def test_zeros_stay_zero(scales):
    zeros = torch.zeros(3, 4)
    assert scales(zeros).tolist() == [[1.0]] * 3
    assert torch.equal(rounded(zeros, scales(zeros)), zeros)
    assert scale_of(torch.tensor(0.0)).item() == 1.0


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (2, 3, 4)])
def test_scales_have_one_entry_per_row_and_memory_of_their_own(shape):
    x = torch.randn(shape)
    for scale in (per_row(x), per_tensor(x)):
        assert scale.shape == (*shape[:-1], 1)
        assert scale.stride(-1) == 1


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=8))
def test_rounding_errs_by_half_a_step_at_most(values):
    x = torch.tensor([values])
    scale = per_row(x)
    error = (rounded(x, scale) - x).abs()
    assert (error <= torch.maximum(x.abs() * 2.0**-4, scale * 2.0**-10) * (1 + 1e-5)).all()
    assert torch.equal(rounded(x, scale).abs().amax(), (scale * E4M3_MAX).amax()) or x.abs().amax() < 1e-30


def test_a_running_maximum_never_falls():
    assert running(torch.tensor([1.0, 3.0, 2.0]), torch.tensor(2.0)).tolist() == [2.0, 3.0, 3.0]


def test_names_are_their_own():
    assert {name: each.name for name, each in NUMERICS.items()} == {name: name for name in NUMERICS}
    assert list(NUMERICS) == [
        "fp32", "bf16", "fp8_weight", "fp8_per_token", "fp8_per_tensor", "fp8_kv_static", "fp8_kv_running",
        "fp8_kv_window", "int8", "nf4",
    ]  # fmt: skip
