"""Shapes of draft trees: the reference tree, optimality, and shapes that are refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.draft_trees import SHAPES, Shape, best_tree, chain, expected_tokens, from_paths, product
from playground.engine.tree import Draft

RANKS = (0.605, 0.112, 0.049, 0.033, 0.024)


def test_best_ten_node_tree_of_the_reference() -> None:
    tree = best_tree(RANKS, nodes=10, max_depth=4)
    assert tree.positions == (0, 1, 2, 3, 4, 1, 2, 2, 1, 3, 3)
    assert tree.mask_ones == 33
    assert expected_tokens(RANKS, tree) == pytest.approx(2.705, abs=5e-4)
    assert expected_tokens(RANKS, chain(5)) == pytest.approx(2.407, abs=5e-4)


@given(st.sampled_from(sorted(SHAPES)))
def test_shapes_agree_with_the_drafts_they_become(name: str) -> None:
    shape = SHAPES[name]
    draft = Draft(tuple(range(len(shape))), shape.parents)
    assert draft.depths == shape.depths
    assert int(draft.mask.sum()) + len(shape) + 1 == shape.mask_ones


chances = st.lists(st.floats(0, 1), min_size=1, max_size=3).map(lambda xs: [x / max(sum(xs), 1) for x in xs])


@given(chances, st.integers(0, 4), st.integers(0, 3))
def test_no_tree_of_the_same_size_expects_more(ranks: list[float], nodes: int, max_depth: int) -> None:
    every = [p for d in range(1, max_depth + 1) for p in itertools.product(range(len(ranks)), repeat=d)]
    best = expected_tokens(ranks, best_tree(ranks, nodes, max_depth))
    for chosen in itertools.combinations(every, min(nodes, len(every), 3)):
        if all(len(p) == 1 or p[:-1] in chosen for p in chosen):
            assert expected_tokens(ranks, from_paths(chosen)) <= best + 1e-9


def test_budget_and_depth_hold() -> None:
    tree = best_tree((0.5, 0.4), nodes=50, max_depth=3)
    assert (len(tree), tree.max_depth) == (14, 3)
    assert len(best_tree((0.5, 0.4), nodes=7, max_depth=3)) == 7
    assert len(best_tree(RANKS, nodes=0, max_depth=3)) == 0


def test_product_is_medusas_full_tree() -> None:
    assert len(product((3, 2, 1, 1))) == 3 + 6 + 6 + 6


@pytest.mark.parametrize(
    ("parents", "ranks", "reason"),
    [
        ((0,), (0,), "node 0 names parent 0"),
        ((-1, 2, 1), (0, 0, 0), "node 1 names parent 2"),
        ((-1, -1), (1, 1), "nodes 0 and 1 are both rank 1"),
        ((-1,), (-1,), "node 0 has rank -1"),
    ],
)
def test_broken_trees_are_refused_with_the_node(parents: tuple, ranks: tuple, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Shape(parents, ranks)


@pytest.mark.parametrize("ranks", [(1.2,), (-0.1,), (0.7, 0.7), (float("nan"),)])
def test_chances_that_are_none_are_refused(ranks: tuple) -> None:
    with pytest.raises(ValueError, match="chance"):
        best_tree(ranks, 3, 2)
