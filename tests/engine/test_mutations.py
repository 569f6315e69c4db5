"""The checks bite: each classic mistake is planted in the shipped source, and a check of this suite has to fail."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from models.table import TableSession
from playground.engine import decode, drafters, length, stop, tree_drafting, verify
from playground.engine.kv import BlockPool
from playground.engine.sampling import chain
from playground.engine.tree import ROOT, Draft
from playground.engine.tree_drafting import Drawn
from tests.engine import test_beam, test_decode, test_length, test_metrics, test_tree_drafting, test_verify
from tests.engine.tables import laws


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace ``old`` by ``new`` in the source of ``owner.name``, everywhere the engine uses it."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} no longer reads {old!r}: plant this mistake anew"
    namespace: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), function.__globals__, namespace)
    for user in (owner, decode, test_decode, test_length, test_metrics, test_tree_drafting, test_verify):
        if getattr(user, name, None) is function:
            monkeypatch.setattr(user, name, namespace[name])


def greedy_equality() -> None:
    for seed in range(8):
        for kind in test_decode.KINDS:
            test_decode.check_greedy_equality(seed, kind, 4)


def greedy_equality_with_penalties() -> None:
    for seed in range(8):
        test_decode.check_greedy_equality(seed, "trees", 4, knobs=chain(repetition_penalty=1.5))


def one_token_laws() -> None:
    """Law and acceptance of one drafted token, drawn or chosen; the token that nobody says is never accepted."""
    for propose, acceptance in ((test_verify.drawn, 0.8), (test_verify.one_hot, 0.6)):
        test_verify.test_law_and_acceptance_of_each_rule(verify.verify_sampling, propose, (0.6, 0.4), acceptance)
    test_verify.test_a_token_that_the_target_never_says_is_rejected_also_when_q_is_zero(0.0)


def tree_law() -> None:
    """Two children chosen without chance, the second with a child of its own."""
    draft = Draft((0, 1, 2), (ROOT, ROOT, 1))
    for seed in range(3):
        assert test_verify.law_error(verify.verify_sampling, laws(3, seed, 3), lambda coin: draft, 3) < 1e-13


def whole_run_law() -> None:
    test_decode.check_run_law(3, 2, 1, chain(temperature=0.5, top_k=2))


def drafted_trees() -> None:
    test_tree_drafting.check_greedy_tree_equality()


def drawn_trees() -> None:
    knobs = chain(temperature=0.5, top_k=2)
    test_tree_drafting.check_tree_run_law(Drawn(test_tree_drafting.TWO, knobs), knobs)


def schedule() -> None:
    test_length.test_two_more_after_full_acceptance_else_one_less(3, 0, 0, 3)


def shared_beams() -> None:
    for seed in range(8):
        test_beam.test_shared_blocks_give_the_beams_of_copies_and_of_no_cache_at_all(seed)


MISTAKES: dict[str, tuple[Any, str, str, str, Callable[[], None]]] = {
    "greedy bonus off by one": (verify, "verify_greedy", "int(choice[last + 1])", "int(choice[last])", greedy_equality),
    "sampled bonus off by one": (verify, "verify_sampling", "p[node + 1]", "p[max(node, 0)]", tree_law),
    "greedy row off by one": (
        verify, "verify_greedy", "choice[parents + 1]", "choice[parents.clamp(min=0)]", greedy_equality,
    ),
    "ancestors not checked": (verify, "verify_greedy", "(agrees | ~draft.mask).all(-1)", "agrees", greedy_equality),
    "q taken before the knobs": (
        drafters.DraftModel, "propose", "laws.append(law)",
        "laws.append(softmax(self.session.score(Draft()).logits[:1])[0])", whole_run_law,
    ),
    "tree positions by index": (
        TableSession, "score", "for depth, token in zip(draft.depths, draft.tokens, strict=True)",
        "for depth, token in enumerate(draft.tokens, 1)", greedy_equality,
    ),
    "one KV row too many kept": (
        TableSession, "commit", "for i in path]", "for i in [*path, *range(len(draft))][: len(path) + 1]]",
        greedy_equality,
    ),
    "tree: greedy bonus off by one": (
        verify, "verify_greedy", "int(choice[last + 1])", "int(choice[last])", drafted_trees,
    ),
    "tree: sampled bonus off by one": (verify, "verify_sampling", "p[node + 1]", "p[max(node, 0)]", drawn_trees),
    "tree: q taken before the knobs": (
        tree_drafting, "drawn", "picked.append((token, law))",
        "picked.append((token, softmax(apply((), logits[None]))[0]))", drawn_trees,
    ),
    "tree: every sibling claims the first one's law": (
        tree_drafting, "drawn", "picked.append((token, law))",
        "picked.append((token, picked[0][1] if picked else law))", drawn_trees,
    ),
    "tree: positions by index": (
        TableSession, "score", "for depth, token in zip(draft.depths, draft.tokens, strict=True)",
        "for depth, token in enumerate(draft.tokens, 1)", drafted_trees,
    ),
    "tree: one KV row too many kept": (
        TableSession, "commit", "for i in path]", "for i in [*path, *range(len(draft))][: len(path) + 1]]",
        drafted_trees,
    ),
    "one KV row too few kept": (TableSession, "commit", "for i in path]", "for i in path[:-1]]", greedy_equality),
    "sibling judged with what was p": (verify, "residual", "left / mass if", "left if", tree_law),
    "rejected token stays in p": (verify, "residual", "left[x] = 0", "pass", tree_law),
    "residual without q": (verify, "residual", "(p - q).clamp(min=0)", "p.clone()", one_token_laws),
    "emitted from p after a rejection": (verify, "verify_sampling", "draw(law, u)", "draw(p[node + 1], u)", tree_law),
    "p and q change places": (
        verify, "verify_sampling", "u * (1.0 if q is None else float(q[x])) < float(law[x])",
        "u * float(law[x]) < (1.0 if q is None else float(q[x]))", one_token_laws,
    ),
    "accepted at equality": (verify, "verify_sampling", "< float(law[x])", "<= float(law[x])", one_token_laws),
    "q as one": (verify, "verify_sampling", "1.0 if q is None else float(q[x])", "1.0", one_token_laws),
    "penalties without the draft": (
        decode, "_contexts", "(*context.tokens, *path)", "context.tokens", greedy_equality_with_penalties,
    ),
    "only the last token can stop a run": (
        stop.Stop, "cut", "new[kept - 1] in self.eos_ids", "kept == len(new) and new[-1] in self.eos_ids",
        test_decode.test_nothing_is_committed_past_an_end_of_sequence_inside_the_draft,
    ),
    "no copy before a write to a shared block": (
        BlockPool, "append", "self._ref_counts[table.blocks[-1]] == 1", "True", shared_beams,
    ),
    "blocks of a forked table not held": (BlockPool, "fork", "self._hold(block)", "pass", shared_beams),
    "an empty draft counts as accepted": (length.Heuristic, "after", "if drafted == 0:", "if False:", schedule),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    owner, name, old, new, check = MISTAKES[mistake]
    plant(monkeypatch, owner, name, old, new)
    with pytest.raises((AssertionError, ValueError)):
        check()


@pytest.mark.parametrize("check", {check for *_, check in MISTAKES.values()}, ids=lambda check: check.__name__)
def test_without_a_mistake_the_checks_pass(check):
    check()
