"""The simulated server, on cases small enough to follow by hand."""

from __future__ import annotations

import dataclasses

import pytest

from playground.engine.grammar.compile_stall import (
    CACHE,
    FREE,
    PLACES,
    SCHEDULER,
    WORKER,
    Costs,
    Request,
    arrivals,
    simulate,
)

STEP = 0.010
COSTS = Costs((STEP, STEP, STEP), cold_s=0.050, cached_s=0.001, renamed_s=0.020)
TWO = (Request(0.0, 0, 6), Request(0.025, 1, 6))


def test_without_a_grammar_every_request_gets_a_token_per_step():
    done = simulate(FREE, TWO, COSTS, max_batch=3)
    assert [r.first_s for r in done.requests] == pytest.approx([0.01, 0.04])
    assert [r.last_s for r in done.requests] == pytest.approx([0.06, 0.09])
    assert (done.num_steps, done.num_tokens, done.num_compiles) == (9, 12, 0)
    assert done.p50_itl_ms == done.p99_itl_ms == pytest.approx(10)


def test_a_compilation_on_the_scheduler_holds_everybody_up():
    done = simulate(SCHEDULER, TWO, COSTS, max_batch=3)
    assert done.stalls == (pytest.approx((0.0, 0.05)), pytest.approx((0.06, 0.11)))  # not while the first one compiles
    assert done.stall_steps == pytest.approx(5)  # the first stall held nobody up: nobody ran
    assert done.tokens_lost == pytest.approx(5)
    assert done.requests[0].last_s == pytest.approx(0.05 + 0.06 + 0.05)
    assert done.p99_itl_ms > 50
    assert done.longest_itl_ms == pytest.approx(60)  # the stall and the step


def test_in_a_worker_only_the_new_request_waits():
    done = simulate(WORKER, TWO, COSTS, max_batch=3)
    assert done.compiles == (pytest.approx((0.0, 0.05)), pytest.approx((0.05, 0.10)))  # one after the other
    assert done.tokens_lost == done.stall_steps == 0
    assert done.p99_itl_ms == pytest.approx(10)
    assert done.requests[1].ready_s == pytest.approx(0.10)


def test_a_cache_compiles_each_schema_once_and_a_renamed_one_faster():
    requests = (*TWO, Request(0.2, 0, 6), Request(0.3, 1, 6))
    done = simulate(CACHE, requests, COSTS, max_batch=3)
    assert done.num_compiles == 2
    assert done.compiles == (pytest.approx((0.0, 0.05)), pytest.approx((0.05, 0.07)))
    assert len(done.stalls) == 2  # two look-ups
    same = simulate(CACHE, (Request(0.0, 0, 6), Request(0.01, 0, 6)), COSTS, max_batch=3)
    assert same.num_compiles == 1  # the second waits for the first one's grammar
    assert same.requests[1].ready_s == pytest.approx(0.05)


def test_requests_queue_when_the_batch_is_full():
    done = simulate(FREE, (Request(0.0, 0, 4), Request(0.0, 0, 4)), COSTS, max_batch=1)
    assert done.requests[1].first_s == pytest.approx(0.05)
    assert done.mean_batch == 1


def test_masks_count_where_they_are_longer_than_the_pass():
    slow = dataclasses.replace(COSTS, mask_s=0.020)
    assert slow.step(2) == pytest.approx(0.040)
    assert COSTS.step(2) == STEP


@pytest.mark.parametrize("place", PLACES)
def test_nobody_is_lost_and_time_runs_forwards(place):
    requests = arrivals(50.0, 60, 3, 20, seed=1)
    done = simulate(place, requests, COSTS, max_batch=3)
    assert done.num_tokens == 60 * 20
    for request, served in zip(requests, done.requests, strict=True):
        assert request.arrives_s <= served.ready_s <= served.first_s <= served.last_s <= done.ended_s


def test_arrivals_follow_the_seed_and_the_rate():
    assert arrivals(20.0, 50, 4, 10, 7) == arrivals(20.0, 50, 4, 10, 7)
    many = arrivals(20.0, 2000, 4, 10, 7)
    assert many[0].arrives_s == 0
    assert many[-1].arrives_s == pytest.approx(100, rel=0.1)
    assert {r.schema for r in many} == {0, 1, 2, 3}
