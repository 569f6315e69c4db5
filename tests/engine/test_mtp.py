"""The loss by depth and the terms of a draft step, against what they are made of."""

from __future__ import annotations

import math

import pytest
import torch

from models import catalogue
from playground.engine.drafter_cost import mtp
from playground.engine.mtp import active_parameters, depth_loss, objective, simple_speedup, terms
from playground.engine.wiring import Probe


def test_each_depth_is_asked_for_its_own_token():
    logits = torch.full((3, 5), -20.0)
    tokens = [0, 1, 2, 3]
    for row, token in enumerate([1, 2, 3]):  # row i knows token i + 1
        logits[row, token] = 20.0
    sure = depth_loss(logits, tokens, 0)
    assert sure.tokens == (1, 2, 3)
    assert sure.mean == pytest.approx(0, abs=1e-4)
    late = depth_loss(logits[1:], tokens, 1)  # row i of depth 1 knows token i + 2
    assert late.tokens == (2, 3)
    assert late.mean == pytest.approx(0, abs=1e-4)
    assert depth_loss(torch.zeros(2, 5), tokens, 1).mean == pytest.approx(math.log(5), abs=1e-4)
    assert depth_loss(torch.zeros(0, 5), tokens[:2], 1).mean is None


def test_objective_weighs_the_mean_of_the_further_depths():
    assert objective(2.0, [3.0], 0.3) == pytest.approx(2.9)
    assert objective(2.0, [], 0.3) == 2.0


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.3-70b", "qwen3-8b"])
def test_terms_add_up_to_the_module(name):
    shape = catalogue.shape(name)
    found = terms(shape)
    assert sum(size for _, size in found) == mtp(shape).parameters
    assert sum(size for _, size in found[:-1]) == active_parameters(shape)


def test_published_figures():
    shape = catalogue.shape("deepseek-v3")
    cost = mtp(shape).parameter_share(shape)
    assert [simple_speedup(p, cost) for p in (0.85, 0.90)] == pytest.approx([1.77, 1.82], abs=5e-3)
    assert active_parameters(shape) == pytest.approx(0.688e9, abs=5e5)


def test_a_probe_keeps_the_newest_chain():
    probe = Probe()
    probe.tell("old", torch.ones(4))
    probe.guess(torch.zeros(6))
    probe.restart()
    probe.read(3)
    probe.tell("state", torch.tensor([3.0, -4.0]))
    probe.tell("none", torch.zeros(0))
    probe.guess(torch.tensor([0.0, 2.0, -torch.inf]))
    seen = probe.wiring("head", 9)
    assert len(seen.levels) == 1
    level = seen[0]
    assert (level.token, [wire.name for wire in level.wires]) == (3, ["state"])
    assert (level.wires[0].norm, level.wires[0].strip) == (5.0, (3.0, -4.0))
    assert [token for token, _ in level.top] == [1, 0, 2]
