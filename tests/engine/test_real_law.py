"""The law of real steps: p and q recorded from the default model, the shipped verifier integrated over its coins."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from models.load import Models
from playground.engine.decode import speculate
from playground.engine.draft_trees import Shape, chain
from playground.engine.exact import exact_law
from playground.engine.length import Fixed
from playground.engine.sampling import chain as knob_chain
from playground.engine.sampling import coins, draw
from playground.engine.tree import ROOT, Draft
from playground.engine.tree_drafting import Drawn, Ranked, without
from playground.engine.verify import verify_sampling
from tests.drafting import finish

PROMPT = "Write a short story about a robot that learns to paint."
pytestmark = pytest.mark.default_model


class Judged(NamedTuple):
    """What the verifier was given in one real step."""

    draft: Draft
    p: Tensor  # [n + 1, vocab]


def record(model, grower, knobs, num_tokens: int = 24) -> list[Judged]:
    """Every step of a sampled run that had a draft."""
    prompt, found = model.chat(PROMPT), []
    drafter = finish(Models().drafter("eagle3", model, prompt, knobs=knobs, grower=grower))

    def rule(draft, p, coin, start):
        if draft:
            found.append(Judged(draft, p))
        return verify_sampling(draft, p, coin, start)

    how = {"rule": rule, "length": Fixed(4), "coin": coins(1), "knobs": knobs, "max_new_tokens": num_tokens}
    assert not any(step.note for step in speculate(model.session(prompt, drafter.taps), drafter, **how))
    return found


def laws_below(step: Judged) -> dict[int, tuple[float, Tensor]]:
    """Node -> the chance that it is reached, and the law ``[vocab]`` of the token that follows it then."""
    draft, p = step
    emitted: dict[tuple[int, ...], Tensor] = {}

    def sample(coin):
        verdict = verify_sampling(draft, p, coin, 0)
        emitted[verdict.path] = verdict.law  # what the last token is drawn from, by the coin "emit"
        return verdict.path

    reached = dict.fromkeys(range(ROOT, len(draft)), 0.0)
    follows = {node: torch.zeros(p.shape[-1], dtype=torch.float64) for node in reached}
    for path, probability in exact_law(sample).items():
        for node, child in zip((ROOT, *path), (*path, None), strict=True):
            reached[node] += probability
            if child is None:
                follows[node] += probability * emitted[path]
            else:
                follows[node][draft.tokens[child]] += probability
    return {node: (reached[node], follows[node]) for node in reached}


@pytest.mark.parametrize(
    "shape", [chain(4), Shape((ROOT, ROOT, 0, 0, 2, 4), (0, 1, 0, 1, 0, 0))], ids=["chain", "tree"]
)
def test_children_chosen_without_chance_give_p_back_at_every_depth(default_model, shape):
    """The whole vocabulary, at every node that can be reached."""
    steps = record(default_model, Ranked(shape), knob_chain(temperature=0.9))
    best = sorted(steps, key=lambda s: -float(s.p[0, s.draft.tokens[0]]))[:2]  # where deep nodes are reached
    depths = set()
    for step in best:
        for node, (chance, law) in laws_below(step).items():
            if chance > 1e-8:
                assert float((law / chance - step.p[node + 1]).abs().max()) < 1e-6
                depths.add(0 if node == ROOT else step.draft.depths[node])
    assert depths >= {0, 1, 2, 3}


def test_children_drawn_without_replacement_give_p_back_at_every_depth(default_model):
    """Two siblings, every pair that q can draw, on all tokens that p or q leaves: at one node of every depth."""
    knobs = knob_chain(temperature=1.0, top_k=4)
    shape = Shape((ROOT, ROOT, 0, 0, 2, 2, 4, 4), (0, 1, 0, 1, 0, 1, 0, 1))
    steps = record(default_model, Drawn(shape, knobs), knobs)
    for depth, (first, second) in enumerate(((0, 1), (2, 3), (4, 5), (6, 7))):
        step = next(s for s in steps[depth:] if len(s.draft) == len(shape))
        p, q = step.p[step.draft.parents[first] + 1].double(), step.draft.q[first].double()
        assert torch.equal(step.draft.q[second], without(step.draft.q[first], step.draft.tokens[first]))
        alive = ((p > 0) | (q > 0)).nonzero().flatten()
        assert two_siblings(p[alive], q[alive]) == pytest.approx(p[alive].tolist(), abs=1e-6)


def two_siblings(p: Tensor, q: Tensor) -> list[float]:
    """The law of the first output token when two siblings are drawn from ``q`` and judged by ``p``."""

    def sample(coin):
        one = draw(q, coin(0, "first"))
        rest = without(q, one)
        tokens, laws = [one], [q]
        if rest is not None:
            tokens, laws = [one, draw(rest, coin(0, "second"))], [q, rest]
        draft = Draft(tuple(tokens), (ROOT,) * len(tokens), torch.stack(laws))
        verdict = verify_sampling(draft, p.expand(len(tokens) + 1, -1), coin, 1)
        return tuple(tokens), draft.tokens[verdict.path[0]] if verdict.path else verdict.token

    law = [0.0] * len(p)
    for (_, token), probability in exact_law(sample, [*p.cumsum(0).tolist(), *q.cumsum(0).tolist()]).items():
        law[token] += probability
    return law
