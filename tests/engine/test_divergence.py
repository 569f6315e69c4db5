"""A difference between two greedy outputs is a near tie only as far as rounding reaches."""

from __future__ import annotations

import pytest

from playground.engine.divergence import Divergence, compare, dtype_step, margins
from playground.engine.drafters import Replay
from playground.engine.trace import Lane
from tests.engine.tables import outputs, run, table


def test_equal_outputs_do_not_diverge():
    assert compare([1, 2, 3], [1, 2, 3], [1.0, 1.0, 1.0]) is None
    assert compare([], [], []) is None


@pytest.mark.parametrize(
    ("margin", "dtype", "verdict"),
    [
        (5e-4, "fp32", "near tie"),
        (2.0, "fp32", "bug"),
        (0.01, "fp32", "bug"),
        (0.0, "bf16", "near tie"),
        (0.125, "bf16", "near tie"),
        (2.0, "bf16", "bug"),
        (1e-3, "fp64", "bug"),
        (None, "bf16", "bug"),
    ],
)
def test_the_verdict_follows_the_margin_and_the_step_of_the_dtype(margin, dtype, verdict):
    assert compare([7, 1, 5], [7, 2, 5], [3.0, margin, 3.0], dtype) == Divergence(1, margin, verdict)


def test_one_output_that_ends_before_the_other_is_a_bug():
    assert compare([1, 2], [1, 2, 3], [1.0, 1.0, 0.0]) == Divergence(2, None, "bug")


def test_a_step_grows_with_the_logit():
    assert dtype_step("bf16", 16.0) == dtype_step("bf16", 31.9) == 0.125
    assert dtype_step("bf16", 32.0) == 0.25


def test_margins_of_a_lane_are_those_of_its_tokens():
    model = table(5, 3)
    plain = Lane("plain", (0, 1), tuple(run(model, [0, 1], max_new_tokens=9)))
    guess = [*plain.output_tokens[:4], *((t + 1) % 5 for t in plain.output_tokens[4:])]
    fast = Lane("speculative", (0, 1), tuple(run(model, [0, 1], Replay(tuple(guess)), max_new_tokens=9)))
    assert outputs(fast.steps) == plain.output_tokens
    assert margins(fast) == pytest.approx(margins(plain))
    assert margins(plain) == pytest.approx([step.rows[0].margin for step in plain.steps])
