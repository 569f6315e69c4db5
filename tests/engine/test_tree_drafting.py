"""Trees of every drafter: lossless, of the shape they were asked for, with the law their tokens were drawn from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import trained
from models.load import Models
from models.table import TableModel
from playground.engine.decode import speculate
from playground.engine.draft_trees import SHAPES, Shape, best_tree, chain
from playground.engine.drafters import DraftModel, NoDrafter
from playground.engine.exact import exact_law
from playground.engine.length import Fixed
from playground.engine.sampling import Context, Temperature, coins
from playground.engine.sampling import chain as knob_chain
from playground.engine.tree import ROOT, Draft
from playground.engine.tree_drafting import Drawn, Dynamic, Ranked, SessionGuesser, TreeDrafter, propose_chain
from playground.engine.verify import verify_greedy, verify_sampling
from tests.drafting import finish, growers, small_target
from tests.engine.tables import RandomTrees, outputs, run, table

GREEDY = (Temperature(0.0),)
PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The small target; the app's weights are those made for it."""
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FOLDER", folder / "weights")
        yield small_target(folder)


def decode(host, drafter, rule=verify_greedy, k=4, n=24, knobs=(), seed=0, wrap=lambda s: s):
    how = {"rule": rule, "length": Fixed(k), "coin": coins(seed), "knobs": knobs, "max_new_tokens": n}
    return list(speculate(wrap(host.session(PROMPT, drafter.taps)), drafter, **how))


@pytest.mark.parametrize(
    "name", ["eagle3", "eagle", "mtp", "eagle3_blind", "medusa", "tiny", "combination", "layer_skip"]
)
def test_greedy_chains_are_lossless(host, name):
    plain = outputs(decode(host, NoDrafter()))
    drafter = finish(Models().drafter(name, host, PROMPT, knobs=GREEDY, draft_layers=2))
    steps = decode(host, drafter)
    assert outputs(steps) == plain
    assert not any(step.note for step in steps)
    assert any(step.nodes for step in steps)


@pytest.mark.parametrize("shape", ["ten", "medusa", "dynamic", "drawn"])
@pytest.mark.parametrize("name", ["eagle3", "eagle", "mtp", "eagle3_blind", "medusa", "tiny", "layer_skip"])
def test_greedy_trees_are_lossless(host, name, shape):
    plain = outputs(decode(host, NoDrafter()))
    grower = growers(knob_chain(temperature=1.5))[shape]
    drafter = finish(Models().drafter(name, host, PROMPT, draft_layers=2, grower=grower))
    steps = decode(host, drafter)
    assert outputs(steps) == plain
    assert not any(step.note for step in steps)
    assert any(len({node.parent for node in step.nodes}) < len(step.nodes) for step in steps)  # a real tree


@pytest.mark.parametrize("name", ["eagle3", "tiny", "layer_skip"])
def test_a_law_in_a_tree_is_the_law_of_its_path_alone(host, name):
    """Each node's q in a drawn tree is what the drafter says after that path in a chain; cousins change nothing."""
    shape = Shape((ROOT, ROOT, 1, 0, 1, 4), (0, 1, 0, 0, 1, 0))

    def make(grower):
        return finish(Models().drafter(name, host, PROMPT, draft_layers=2, grower=grower))

    hidden = host.session(PROMPT, make(Ranked(shape)).taps).score(Draft()).hidden
    context = Context((*PROMPT, 7), len(PROMPT))
    tree = make(Ranked(shape)).propose(context, 4, coins(0), hidden)
    assert tree.parents == shape.parents
    for node in range(len(tree)):
        if not tree.children(node):
            continue
        path = [shape.ranks[i] for i in tree.path(node)]
        line = Shape(tuple(range(-1, len(path))), (*path, 0))
        alone = make(Ranked(line)).propose(context, len(path) + 1, coins(0), hidden)
        assert alone.tokens[: len(path)] == tree.path_tokens(node)
        first = next(c for c in tree.children(node) if shape.ranks[c] == 0)
        assert alone.tokens[-1] == tree.tokens[first]


def test_drawn_siblings_are_without_replacement_and_declare_their_law(host):
    knobs = knob_chain(temperature=1.0, top_k=5)
    drafter = finish(
        Models().drafter("layer_skip", host, PROMPT, draft_layers=2, grower=Drawn(best_tree((0.4, 0.3), 8, 3), knobs))
    )
    steps = decode(host, drafter, verify_sampling, knobs=knobs)
    for step in steps:
        below = {}
        for node in step.nodes:
            assert node.q > 0
            assert node.token not in below.setdefault(node.parent, set())
            below[node.parent].add(node.token)


def check_tree_run_law(grower, knobs=()):
    """Draft, verify, commit on tables, integrated over every coin: also the coins that drew the children."""
    model, other = table(3, 5), table(3, 6)

    def sample(coin):
        drafter = TreeDrafter(SessionGuesser(other.session([0, 1])), grower)
        how = {"rule": verify_sampling, "k": 2, "coin": coin, "knobs": knobs, "max_new_tokens": 2}
        steps = list(run(model, [0, 1], drafter, **how))
        return tuple(tuple(n.token for n in s.nodes) for s in steps), outputs(steps)

    def alone(coin):
        return (), outputs(run(model, [0, 1], rule=verify_sampling, coin=coin, knobs=knobs, max_new_tokens=2))

    laws = []
    for one in (sample, alone):
        laws.append({})
        for (_, tokens), probability in exact_law(one).items():
            laws[-1][tokens] = laws[-1].get(tokens, 0.0) + probability
    found, plain = laws
    assert found.keys() == plain.keys()
    assert all(found[tokens] == pytest.approx(plain[tokens], abs=1e-12) for tokens in plain)


TWO = best_tree((0.5, 0.3), 3, 2)


@pytest.mark.parametrize("grower", [Drawn(TWO), Ranked(best_tree((0.5, 0.3), 4, 2)), Dynamic(3, 2, 2)])
def test_sampled_runs_have_the_law_of_plain_sampling(grower):
    check_tree_run_law(grower)


def test_drawn_children_and_their_judges_share_the_knobs():
    knobs = knob_chain(temperature=0.5, top_k=2)
    check_tree_run_law(Drawn(TWO, knobs), knobs)


def check_greedy_tree_equality():
    """The target drafts for itself, in trees whose right path is not the first one listed; rows are those committed."""
    shape, prompt = Shape((ROOT, ROOT, 0, 1, 3, 3), (1, 0, 0, 0, 1, 0)), [0, 1, 2]
    how = {"rule": verify_greedy, "length": Fixed(3), "coin": coins(0), "max_new_tokens": 10}
    for seed in range(6):
        model = table(5, seed)
        for grower in (Ranked(shape), Dynamic(8, 3, 3)):
            session, steps = model.session(prompt), []
            for step in speculate(session, TreeDrafter(SessionGuesser(model.session([0])), grower), **how):
                steps.append(step)
                assert session.rows == [(i, token) for i, token in enumerate(session.tokens[:-1])]
            assert outputs(steps) == outputs(run(model, prompt, max_new_tokens=10))
            assert max(step.num_verified for step in steps) == 3


def test_trees_whose_right_path_comes_last_are_lossless():
    check_greedy_tree_equality()


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from(["ten", "chain", "medusa"]), st.integers(1, 6))
def test_levels_beyond_the_room_are_cut(seed, name, k):
    model = table(5, seed)
    drafter = TreeDrafter(SessionGuesser(table(5, seed + 1).session([0])), Ranked(SHAPES[name]))
    steps = list(run(model, [0, 1], drafter, k=k, max_new_tokens=9))
    assert outputs(steps) == outputs(run(model, [0, 1], max_new_tokens=9))
    assert all(node.depth <= k for step in steps for node in step.nodes)


def test_candidates_that_the_law_lacks_are_left_out_with_all_below():
    law = lambda context: torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)  # noqa: E731
    drafter = TreeDrafter(SessionGuesser(TableModel(("a", "b", "c"), law).session([0])), Ranked(SHAPES["medusa"]))
    steps = list(run(table(3, 1), [0, 1], drafter, k=3, max_new_tokens=8))
    assert {node.token for step in steps for node in step.nodes} == {0, 1}
    assert outputs(steps) == outputs(run(table(3, 1), [0, 1], max_new_tokens=8))


def test_a_dynamic_tree_keeps_the_most_confident_nodes_and_their_parents():
    model = table(6, 3, sharpness=2.0)
    drafter = TreeDrafter(SessionGuesser(model.session([0])), Dynamic(6, 4, 3))
    step = next(run(model, [0, 1], drafter, k=4, max_new_tokens=9))
    worth = []
    for node in step.nodes:
        worth.append(node.p * (1.0 if node.parent == ROOT else worth[node.parent]))
    assert len(worth) == 6
    assert worth == sorted(worth, reverse=True)


def test_a_chain_through_the_tree_code_is_the_draft_models_chain():
    model, other = table(5, 1), table(5, 2)
    knobs, context = knob_chain(temperature=1.3), Context((0, 1, 2), 3)
    ours = propose_chain(SessionGuesser(other.session([0])), knobs, context, 4, coins(7), None)
    theirs = DraftModel(other.session([0]), knobs).propose(context, 4, coins(7))
    assert ours.tokens == theirs.tokens
    torch.testing.assert_close(ours.q, theirs.q)
    assert model.vocab_size == 5


def test_missing_weights_are_a_sentence(host, tmp_path, monkeypatch):
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    monkeypatch.setattr(trained, "_LOADED", {})
    with pytest.raises(ValueError, match="There are no weights at eagle3"):
        finish(Models().drafter("eagle3", host, PROMPT))


def test_a_table_has_no_states_to_read():
    models = Models()
    with pytest.raises(ValueError, match="needs a neural target"):
        finish(models.drafter("medusa", finish(models.load("table")), [0]))


def test_copying_makes_no_tree(host):
    for name in ("ngram", "combination"):
        with pytest.raises(ValueError, match=name):
            finish(Models().drafter(name, host, PROMPT, grower=Ranked(chain(2))))


class Breaks(RandomTrees):
    """Follows for a while, then raises while it takes in the committed tokens."""

    def sync(self, tokens):
        if len(tokens) > 6:
            raise RuntimeError("the cable is out")


def test_a_drafter_that_fails_in_mid_run_is_dropped_with_a_note():
    model = table(4, 2)
    steps = list(run(model, [0, 1], Breaks(1, 4), max_new_tokens=10))
    assert outputs(steps) == outputs(run(model, [0, 1], max_new_tokens=10))
    assert [step.note for step in steps if step.note] == [
        "The drafter failed (the cable is out); the run goes on without drafts."
    ]
    assert not steps[-1].nodes
