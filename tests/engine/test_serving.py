"""Prices of drafters and of batches against figures derived independently, and their limits for any assumptions."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models import catalogue
from playground.engine.cost import (
    DATA_SHEET,
    PROFILES,
    REALISTIC,
    SPLIT,
    Priced,
    Profile,
    expected_tokens,
    tensor_parallel,
)
from playground.engine.drafter_cost import DRAFTERS, draft_model, eagle, eagle3, medusa, mtp, ngram, speculator
from playground.engine.serving import (
    Contender,
    equal_alpha,
    flips,
    grid,
    most_sequences,
    priced,
    speed_of,
    speeds,
    tokens_by_length,
    tokens_from_hits,
)

L70, L8, V3 = (catalogue.shape(name) for name in ("llama-3.3-70b", "llama-3.1-8b", "deepseek-v3"))
POD = tensor_parallel(catalogue.hardware("h100"), 8)
SERVED = Priced(L70, POD)
HITS = (0.605, 0.356, 0.225, 0.160)


def at(alpha: float, k: int, drafter, name: str = "x") -> Contender:
    return Contender(name, drafter, tokens_by_length(alpha, k), k, alpha)


# --- Reference figures ------------------------------------------------------------------------------------------------


def test_the_realistic_profile_gives_a_public_measurement():
    assert 1 / Priced(L70, POD, REALISTIC).time(1).total_s == pytest.approx(88.6, abs=0.05)


def test_eagle_head():
    head = eagle(L70)
    assert dict(head.network.parts)["fusion"] == pytest.approx(134.2e6, abs=5e4)
    assert dict(head.network.parts)["layer"] == pytest.approx(855.6e6, abs=1e5)
    assert head.network.num_own == pytest.approx(0.990e9, abs=5e5)
    assert head.parameters == pytest.approx(2.041e9, abs=5e5)
    assert head.token_cost(SERVED) == pytest.approx(0.0294, abs=5e-5)
    assert eagle3(L70).token_cost(SERVED) == pytest.approx(0.0173, abs=5e-5)


def test_medusa_heads_and_an_8b_draft_model():
    assert medusa(L70).parameters == pytest.approx(1.118e9, abs=5e5)
    assert 4 * medusa(L70).parameters == pytest.approx(4.471e9, abs=5e5)
    assert medusa(L70).parameter_share(L70, 4) == pytest.approx(0.0634, abs=5e-5)
    assert draft_model(L8).parameter_share(L70, 4) == pytest.approx(0.455, abs=5e-4)
    assert draft_model(L8).cost(SERVED, 1, 4) == pytest.approx(0.432, abs=5e-4)


@pytest.mark.parametrize(
    ("alpha", "context", "first", "batch", "then"),
    [(0.75, 0, "medusa", 69, "8b"), (0.75, 512, "medusa", 109, "8b"), (0.80, 2048, "8b", 17, "medusa")],
)
def test_the_winner_between_medusa_and_a_draft_model(alpha, context, first, batch, then):
    contenders = [Contender("medusa", medusa(L70), tokens_from_hits(HITS), 4), at(alpha, 4, draft_model(L8), "8b")]
    found = flips(SERVED, contenders, context, with_plain=False)
    assert found[0]["to"] == first
    assert found[1] == {"batch": batch, "from": first, "to": then, "k": 4, "alpha": alpha, "context": context}


def test_the_acceptance_at_which_a_head_equals_a_draft_model():
    model = speeds(SERVED, at(0.8, 4, draft_model(L8)), 1.0, 512)
    alpha = equal_alpha(SERVED, eagle(L70), 4, model, 1, 512)
    assert speeds(SERVED, at(alpha, 4, eagle(L70)), 1.0, 512) == pytest.approx(model)
    assert alpha < 0.8  # the head is cheaper, so it needs less
    assert equal_alpha(SERVED, draft_model(L8), 4, 9.0) is None


def test_medusa_stays_ahead_when_each_side_picks_its_own_length():
    batches = np.arange(1.0, 257)
    ours = speeds(SERVED, Contender("medusa", medusa(L70), tokens_from_hits(HITS)), batches, 512)
    theirs = speeds(SERVED, Contender("8b", draft_model(L8), tokens_by_length(0.75, 12)), batches, 512)
    assert (ours >= theirs - 1e-12).all()


def test_mtp_of_deepseek_v3():
    module, served = mtp(V3), Priced(V3, POD, weight_bytes=1, kv_bytes=1)
    parts = dict(module.network.parts)
    assert parts["projection and norms"] == pytest.approx(102.8e6, abs=5e4)
    assert module.parameters - parts["lm head"] == pytest.approx(0.688e9, abs=5e5)
    assert module.parameters == pytest.approx(1.615e9, abs=5e5)
    share = module.parameter_share(V3)
    assert share == pytest.approx(0.043, abs=5e-4)
    assert [(1 + p) / (1 + share) for p in (0.85, 0.90)] == pytest.approx([1.77, 1.82], abs=5e-3)
    assert served.time(1, 2, 4096).total_s / served.time(1, 1, 4096).total_s == pytest.approx(1.54, abs=5e-3)
    gains = {b: speeds(served, at(0.875, 1, module), float(b), 4096) for b in (1, 64, 128, 512, 2048, 4096)}
    assert gains[1] == pytest.approx(1.19, abs=6e-3)
    assert [gains[b] for b in (128, 512, 2048)] == pytest.approx([1.8] * 3, abs=0.05)
    assert gains[64] < 1.75
    assert gains[4096] < 1.75


def test_draft_tree_against_a_chain():
    tokens = {"chain": 2.407, "tree": 2.705}
    for context, batch in {0: 32, 1024: 34, 4096: 41}.items():
        chain = Contender("chain", 0.03, (1.0,) * 5 + (tokens["chain"],), 5)
        tree = Contender("tree", 0.03, (1.0,) * 4 + (tokens["tree"],), 4, num_nodes=10)
        found = flips(SERVED, [tree, chain], context, with_plain=False)
        assert [(f["batch"], f["to"]) for f in found[:2]] == [(1, "tree"), (batch, "chain")]


def test_draft_length_per_batch():
    batches, k = (1, 32, 64, 128, 256, 512), 16
    found = grid(SERVED, eagle(L70), 0.8, (256, 4096), batches, k).best_k.tolist()
    assert found == [[10, 8, 4, 2, 1, 0], [10, 10, 6, 4, 3, -1]]
    four = at(0.8, 4, eagle(L70))
    assert [speeds(SERVED, four, float(b), 256) for b in (1, 32)] == pytest.approx([3.01] * 2, abs=5e-3)
    assert speeds(SERVED, four, 1024.0, 256) == pytest.approx(0.66, abs=5e-3)


@pytest.mark.parametrize(
    ("profile", "context", "change"), [(DATA_SHEET, 256, -0.34), (SPLIT, 256, -0.25), (SPLIT, 1024, -0.02)]
)
def test_peak_throughput(profile, context, change):
    served = Priced(L70, POD, profile)
    batches = np.arange(1.0, most_sequences(served, context) + 1)
    plain = batches / served.time(batches, 1, context).total_s
    fast = plain * speeds(served, at(0.8, 4, eagle(L70)), batches, context)
    assert fast.max() / plain.max() - 1 == pytest.approx(change, abs=5e-3)
    if profile is DATA_SHEET:
        assert plain.max() == pytest.approx(56.7e3, abs=50)
        assert fast.max() == pytest.approx(37.2e3, abs=50)


def test_the_context_above_which_no_batch_is_compute_bound():
    def ever(context: int) -> bool:
        time_ = SERVED.time(1e9, 5, float(context))
        return time_.compute_s > time_.memory_s

    assert ever(8250)
    assert not ever(8350)


# --- Limits -----------------------------------------------------------------------------------------------------------

shapes = st.sampled_from([catalogue.shape(name) for name in catalogue.names("models")])
chips = st.sampled_from([catalogue.hardware(name) for name in catalogue.names("hardware")])
profiles = st.sampled_from([*PROFILES.values(), Profile("serial", is_serial=True)])
bytes_ = st.sampled_from((0.5, 1.0, 2.0, 4.0))
servers = st.builds(
    lambda shape, chip, n, profile, w, kv: Priced(shape, tensor_parallel(chip, n), profile, w, kv),
    shapes, chips, st.sampled_from((1, 2, 8, 64)), profiles, bytes_, bytes_,
)  # fmt: skip
drafters = st.sampled_from([*DRAFTERS, "llama-3.2-1b"])
alphas, lengths = st.floats(0, 1), st.integers(0, 24)
batches_, contexts_ = st.integers(1, 8192), st.integers(0, 200_000)


@given(servers, drafters, alphas, batches_, contexts_)
def test_no_drafts_change_nothing(served, name, alpha, batch, context):
    drafter = speculator(name, served.shape, catalogue.shape)
    assert speed_of(served, at(alpha, 0, drafter), 0, float(batch), context) == 1.0
    assert np.nan_to_num(grid(served, drafter, alpha, (context,), (batch,), 3).speed[0, 0, 0], nan=1.0) == 1.0


@given(servers, batches_, st.integers(1, 64), contexts_)
def test_more_bandwidth_and_more_flops_never_slow_a_pass(served, batch, n, context):
    slow = served.time(batch, n, context).total_s
    for better in ("bandwidth", "peak_flops"):
        chip = replace(served.hardware, **{better: 1.7 * getattr(served.hardware, better)})
        assert replace(served, hardware=chip).time(batch, n, context).total_s <= slow
    assert served.time(batch + 1, n, context).total_s >= slow
    assert served.time(batch, n + 1, context).total_s >= slow
    assert served.time(batch, n, context + 1).total_s >= slow
    assert slow > 0


@given(servers, drafters, alphas, lengths, batches_, contexts_)
def test_speed_is_bounded_and_moves_without_jumps(served, name, alpha, k, batch, context):
    drafter = speculator(name, served.shape, catalogue.shape)
    value = speeds(served, at(alpha, k, drafter), float(batch), context)
    assert 0 < value <= expected_tokens(alpha, k) * (1 + 1e-9)
    near = speeds(served, at(alpha, k, drafter), float(batch) * (1 + 1e-6), context)
    assert near == pytest.approx(value, rel=1e-3)
    better = speeds(served, at(min(1.0, alpha + 0.01), k, drafter), float(batch), context)
    assert better >= value


@given(servers, drafters, alphas, contexts_)
def test_best_length_does_not_rise_with_the_batch_where_compute_binds(served, name, alpha, context):
    """For a dense model and without fixed times; those are shared by the batch, so drafts can get cheaper with it."""
    assume(served.shape.experts is None and served.profile.pass_s == 0)
    drafter = speculator(name, served.shape, catalogue.shape)
    contender = Contender("x", drafter, tokens_by_length(alpha, 12))
    sizes = np.unique(np.geomspace(1, 4096, 40).astype(int)).astype(float)
    table = np.stack([np.broadcast_to(speed_of(served, contender, k, sizes, context), sizes.shape) for k in range(13)])
    plain = served.time(sizes, 1, float(context))
    table = table[:, plain.gemm_s + plain.attention_s >= plain.weights_s + plain.kv_s]
    best = table.argmax(0)
    for i in range(table.shape[1] - 1):  # equally fast lengths count as one
        if best[i + 1] > best[i]:
            assert table[best[i], i + 1] >= table[:, i + 1].max() * (1 - 1e-9)


@given(servers, drafters, alphas, contexts_)
def test_prices_are_numbers_or_none(served, name, alpha, context):
    drafter = speculator(name, served.shape, catalogue.shape)
    result = priced(served, [at(alpha, 4, drafter, name)], context, batches=(1, 8, 4096))
    for value in result["speedup_by_batch"].values():
        assert value is None or np.isfinite(value)
    assert [f["batch"] for f in result["flips"]] == sorted(f["batch"] for f in result["flips"])
    for flip in result["flips"]:
        assert set(flip) == {"batch", "from", "to", "k", "alpha", "context"}
        assert flip["from"] != flip["to"]


def test_free_drafts_while_nothing_binds_are_always_worth_it():
    found = grid(SERVED, ngram(L70), 0.5, (0,), (1,), 16)
    assert found.best_k.tolist() == [[16]]
    assert grid(SERVED, ngram(L70), 0.0, (0,), (1, 4096), 16).best_k.tolist() == [[0, 0]]


def test_the_binding_term_of_a_grid_is_that_of_each_point():
    for profile in PROFILES.values():
        served = Priced(L70, POD, profile)
        table = served.time(np.array([[1.0, 64, 4096]]), 1, np.array([[0.0], [8192]])).binding
        for i, context in enumerate((0, 8192)):
            for j, batch in enumerate((1, 64, 4096)):
                assert table[i, j] == served.time(batch, 1, context).binding


def test_a_heat_map_of_1600_points_is_quick():
    sizes = [int(x) for x in np.geomspace(1, 4096, 40)]
    began = time.perf_counter()
    found = grid(SERVED, eagle(L70), 0.8, sizes, sizes, 16)
    assert time.perf_counter() - began < 5  # generous: typically some hundredths
    assert found.best_k.shape == (40, 40)


def test_an_unknown_drafter_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"llama-3\.1-8b.*as drafter also eagle"):
        speculator("gpt-9", L70, catalogue.shape)
