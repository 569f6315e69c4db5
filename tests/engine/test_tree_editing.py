"""Trees as text: they survive a round trip, edits keep them whole, and broken ones are refused with the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.engine.draft_trees import SHAPES, Shape, best_tree
from playground.engine.tree_editing import add_children, check_room, prune, read_tree, write_tree

TREES = st.one_of(
    st.sampled_from(sorted(SHAPES)).map(SHAPES.get),
    st.integers(1, 20).map(lambda n: best_tree((0.5, 0.3, 0.1), n, 4)),
)


@given(TREES)
def test_a_tree_survives_as_text(shape: Shape) -> None:
    assert read_tree(write_tree(shape)) == shape


@given(TREES, st.data())
def test_pruning_takes_all_below_and_nothing_else(shape: Shape, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(shape) - 1))
    path = shape.paths[node]
    left = [other for other in shape.paths if other[: len(path)] != path]
    assert list(prune(shape, [node]).paths) == left


@given(TREES, st.data())
def test_an_added_child_can_be_pruned_again(shape: Shape, data: st.DataObject) -> None:
    parent = data.draw(st.integers(-1, len(shape) - 1))
    bigger = add_children(shape, [parent])
    assert bigger.parents[-1] == parent
    assert prune(bigger, [len(shape)]) == shape


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1, 5", "node 1 is an orphan: there is no node 5"),
        ("-2", "node 0 is an orphan"),
        ("0", "node 0 is its own ancestor"),
        ("-1, 2, 1", "node 1 is its own ancestor, by way of 1 → 2 → 1"),
        ("-1, 2, -1", "node 1 names parent 2: a parent must come before its child"),
        ("-1, 0:0, 0:0", "nodes 1 and 2 are both rank 0 below node 0"),
        ("-1, x", "node 1 is 'x'"),
        ("-1:-1", "node 0 has rank -1"),
    ],
)
def test_broken_trees_are_refused_with_the_node(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="tree: ") as caught:
        read_tree(text)
    assert reason in str(caught.value)


def test_edits_of_nodes_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="add: there is no node 3"):
        add_children(read_tree("-1,0"), [3])
    with pytest.raises(ValueError, match="prune: there is no node 2"):
        prune(read_tree("-1,0"), [2])


def test_a_tree_larger_than_the_context_is_refused_with_the_first_node_outside() -> None:
    check_room(read_tree("-1,0,0"), 5, 8)
    with pytest.raises(ValueError, match="node 2 has no room"):
        check_room(read_tree("-1,0,0"), 6, 8)
