from __future__ import annotations

import pytest

from models import catalogue
from playground.engine.cost import Priced, tensor_parallel
from playground.engine.grammar.mask_load import hidden_until, mask_load

SMALL = Priced(catalogue.shape("llama-3.2-1b"), catalogue.hardware("h100"))
LARGE = Priced(catalogue.shape("llama-3.3-70b"), tensor_parallel(catalogue.hardware("h100"), 8))


def test_the_limit_is_the_last_batch_whose_masks_fit_behind_the_pass():
    batch = hidden_until(SMALL, 7.0, 4, 1024)
    assert 1 <= batch < 200
    for b, fits in ((batch, True), (batch + 1, False)):
        assert (7e-6 * 4 * b <= SMALL.time(b, 4, 1024).total_s) == fits


def test_masks_of_microseconds_hide_behind_a_large_model_and_milliseconds_never():
    assert hidden_until(LARGE, 2.5, 1, 1024) is None
    assert hidden_until(LARGE, 10_000.0, 1, 1024) == 0  # one walk over the vocabulary in Python


def test_more_drafts_show_sooner_and_slower_masks_too():
    load = mask_load(2.18, [2.0] * 99 + [20.0], SMALL, k=3, context=1024, slowdown=2.0)
    assert load.us_mean == pytest.approx(2 * 2.18)
    assert load.rows == 4
    limits = [mean for _, mean, _ in load.hidden_until if mean is not None]
    assert limits == sorted(limits, reverse=True)
    assert all(p99 is None or mean is None or p99 <= mean for _, mean, p99 in load.hidden_until)
    assert all(point.mean_ms == pytest.approx(point.batch * 4 * load.us_mean / 1e3) for point in load.points)
