import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.engine.grammar.automaton import build
from playground.engine.grammar.bitmask import Masks, allocate, apply_bitmask, naive_mask, num_words, pack, unpack
from playground.engine.grammar.expression import Alt, Call, GrammarError, Repeat, Seq, text
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.sampling import TopK, apply, softmax

EOS = 0
WORDS = [
    None,
    *("".join(w).encode() for n in (1, 2, 3) for w in itertools.product("ab(", repeat=n)),
    b"aabb",
    b"",
    None,
]


def test_words_of_known_vocabularies():
    assert [num_words(n) for n in (32, 33, 40, 49_152, 128_256, 151_669, 151_936)] == [1, 2, 2, 1536, 4008, 4740, 4748]
    assert [allocate(1, n).nbytes for n in (49_152, 128_256)] == [6_144, 16_032]


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_packing_and_unpacking_are_inverse(bits):
    allowed = np.array(bits)
    words = pack(allowed)
    assert len(words) == num_words(len(bits))
    assert (unpack(words, len(bits)) == allowed).all()
    assert all(bool(words[i // 32] >> (i % 32) & 1) == bit for i, bit in enumerate(bits))


def test_ids_that_the_mask_does_not_cover_are_forbidden():
    logits = torch.zeros(1, 40)
    narrow = torch.tensor([[-1]], dtype=torch.int32)  # 32 bits, all legal
    masked = apply_bitmask(logits, narrow)
    assert torch.isfinite(masked[0, :32]).all()
    assert masked[0, 32:].isneginf().all()


def test_an_empty_mask_is_an_error_and_reaches_no_sampler():
    with pytest.raises(ValueError, match="row 0 allows no token"):
        apply_bitmask(torch.zeros(1, 40), allocate(1, 20))


def test_the_law_is_renormalised_over_legal_tokens_and_the_mask_comes_first():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    mask = torch.tensor([[0b110]], dtype=torch.int32)
    masked = apply_bitmask(logits, mask)
    torch.testing.assert_close(softmax(masked)[0], torch.tensor([0.0, 0.6, 0.4], dtype=torch.float64))
    assert softmax(apply([TopK(1)], masked))[0].tolist() == [0, 1, 0]


def expressions(rules):
    leaves = st.sampled_from([text("a"), text("b"), text("ab"), *(Seq((text("("), Call(rule))) for rule in rules)])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Seq(tuple(parts))),
            st.lists(inner, min_size=1, max_size=3).map(lambda options: Alt(tuple(options))),
            inner.map(lambda part: Repeat(part, 0, 1)),
            inner.map(lambda part: Repeat(part, 0, None)),
            inner.map(lambda part: Repeat(part, 1, 2)),
            st.sampled_from(rules).map(lambda rule: Seq((text("a"), Call(rule)))),
        ),
        max_leaves=6,
    )


@settings(max_examples=150, deadline=None)
@given(first=expressions(["x", "y"]), second=expressions(["x", "y"]), seed=st.integers(0, 2**30))
def test_precompiled_masks_equal_naive_ones_on_any_grammar(first, second, seed):
    try:
        automaton = build({"x": first, "y": Alt((second, text("b")))}, "x")
    except GrammarError:  # calls itself without an end
        return
    trie = TokenTrie(WORDS, [EOS])
    masks, rng = Masks(automaton, trie), np.random.default_rng(seed)
    config = automaton.start
    for _ in range(6):
        naive = naive_mask(automaton, trie, config)
        assert (unpack(masks.words(config), trie.vocab_size) == naive).all()
        legal = [t for t in np.flatnonzero(naive) if t != EOS]
        if not legal:
            break
        config = automaton.walk(config, WORDS[rng.choice(legal)])


def test_tokens_past_the_end_of_a_rule_depend_on_the_context():
    inner = {"word": Seq((text("a"), Repeat(text("a")))), "root": Alt((Seq((Call("word"), text("b"))), text("(")))}
    automaton = build(inner, "root")
    trie = TokenTrie(WORDS, [EOS])
    masks = Masks(automaton, trie)
    config = automaton.walk(automaton.start, b"a")
    dependent = [
        w for w in WORDS if w and w.startswith(b"a") and w.lstrip(b"a")
    ]  # a-s, and then something after the word
    assert masks.context_dependent(config) == len(dependent)
    assert masks.context_dependent(automaton.start) == len(dependent)
    legal = {WORDS[t] for t in np.flatnonzero(unpack(masks.words(config), trie.vocab_size))}
    assert legal == {b"a", b"aa", b"aaa", b"b", b"ab", b"aab"}


def test_a_mask_is_as_wide_as_the_logits():
    automaton = build({"r": text("a")}, "r")
    masks = Masks(automaton, TokenTrie([b"a", b"b"], [1], vocab_size=70))
    assert len(masks.words(automaton.start)) == 3
    assert unpack(masks.words(automaton.start), 70).tolist() == [True] + [False] * 69
