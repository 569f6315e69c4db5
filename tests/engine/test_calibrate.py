"""The fit on made-up timings: exact where the law holds, close where it does not, sane whatever is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import catalogue, teaching
from playground.engine.calibrate import FIT, JUDGE, TimedPass, fit, measure, predict, worst_error
from playground.engine.cost import Hardware, Priced, Profile

SHAPE = catalogue.shape("smollm2-135m")


def timings(served: Priced, passes, context: int) -> list[TimedPass]:
    return [TimedPass(n, context, 1e3 * served.time(1, n, context).total_s) for n in passes]


@given(st.floats(1e9, 1e12), st.floats(1e10, 1e14), st.floats(0, 0.2))
def test_a_machine_that_obeys_the_law_is_found_exactly(bandwidth, flops, wide):
    truth = Priced(SHAPE, Hardware("x", bandwidth, flops, 1e9), Profile("x", is_serial=True, wide_s=wide), 4, 4)
    found = fit(SHAPE, timings(truth, FIT, 64), 4)
    judged = predict(found, timings(truth, JUDGE, 512))
    assert worst_error(judged) < 1e-3


def test_the_fit_reaches_passes_and_a_context_it_has_not_seen():
    """Times of one processor, one thread: short passes are the less efficient ones."""
    measured = {64: {1: 71.2, 4: 96.0, 32: 263.4}, 512: {2: 101.9, 8: 152.2, 16: 203.7, 64: 468.9}}
    found = fit(SHAPE, [TimedPass(n, 64, ms) for n, ms in measured[64].items()], 4)
    judged = predict(found, [TimedPass(n, 512, ms) for n, ms in measured[512].items()])
    assert worst_error(judged) < 0.20


@given(st.lists(st.floats(1e-3, 1e5), min_size=3, max_size=3))
def test_any_timings_give_positive_times(ms):
    found = fit(SHAPE, [TimedPass(n, 64, t) for n, t in zip(FIT, ms, strict=True)], 4)
    for n in (1, 2, 64):
        assert 0 < found.time(1, n, 512).total_s < 1e6
    assert found.time(1, 64, 512).total_s >= found.time(1, 2, 512).total_s


def test_too_few_passes_are_refused():
    with pytest.raises(ValueError, match="at least three"):
        fit(SHAPE, [TimedPass(1, 64, 1.0)], 4)


def test_measuring_leaves_the_sessions_as_they_were():
    model = teaching.target()
    session = model.session(model.chat("the cat sees the dog"))
    before = list(session.tokens)
    rounds = list(measure({5: session}, [(1, 5), (3, 5)]))
    assert list(session.tokens) == before
    assert [p.new_tokens for p in rounds[-1]] == [1, 3]
    assert all(later.ms <= first.ms for first, later in zip(rounds[0], rounds[-1], strict=True))
    assert worst_error(rounds[-1]) is None
