"""A grammar in the decoding loop, on table models."""

import json

import jsonschema
import pytest

from models.table import TableModel, random_law
from playground.engine.constrain import DeadEnd, decode_bits, legality
from playground.engine.drafters import DraftModel, NGram, NoDrafter, Replay
from playground.engine.grammar.automaton import build
from playground.engine.grammar.bitmask import Masks
from playground.engine.grammar.drafting import ForcedTokens, GrammarKnob
from playground.engine.grammar.json_schema import schema_rules
from playground.engine.grammar.matcher import OwnMatcher
from playground.engine.grammar.regex import parse_regex
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar, XGrammarMatcher
from playground.engine.sampling import Temperature, TopK
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Trace
from playground.engine.tree import Draft
from playground.engine.verify import verify_sampling
from tests.engine.tables import RandomTrees, outputs, run

WORDS = ("", '{"a', '": ', "{", "}", '"', "a", ": ", "1", "2", "-", "true", "[", "]", ", ", "x", "{}", "0", "false")
END = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}]}
    },
    "required": ["a"],
}
STOP = Stop(frozenset({END}))


def model(seed, words=WORDS, sharpness=1.5):
    return TableModel(words, random_law(len(words), seed, sharpness), eos_ids=frozenset({END}))


def masks(schema=None, regex=None, words=WORDS):
    automaton = build(*schema_rules(schema)) if schema is not None else build({"regex": parse_regex(regex)}, "regex")
    return Masks(automaton, TokenTrie([word.encode() or None for word in words], [END]))


JSON = masks(SCHEMA)


def drafters(target, prompt, reply, seed):
    other = model(seed + 1)
    return {
        "none": NoDrafter(),
        "trees": RandomTrees(seed, target.vocab_size, reply),
        "oracle": Replay(tuple(reply)),
        "ngram": NGram(3),
        "draft_model": DraftModel(other.session(prompt), ()),
        "masked_draft_model": DraftModel(other.session(prompt), (GrammarKnob(OwnMatcher(JSON)),)),
        "forced": ForcedTokens(OwnMatcher(JSON), target.vocab_size),
    }


def text_of(target, tokens):
    return target.decode(tokens)


def check(target, steps, grammar):
    """The output is valid when the run stopped by itself, and can still become valid when it was cut."""
    tokens = outputs(steps)
    text = text_of(target, tokens)
    if steps[-1].finish == "eos":
        assert grammar.is_terminated
        assert jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(text)), text
    else:
        assert steps[-1].finish == "length"
        assert JSON.automaton.walk(JSON.automaton.start, text.encode()), text
    follower = OwnMatcher(JSON)
    assert all(follower.accept(token) for token in tokens)  # the matcher took each committed token once
    assert (follower.config, follower.is_terminated) == (grammar.config, grammar.is_terminated)


@pytest.mark.parametrize("seed", range(50))
def test_greedy_output_is_valid_and_the_same_with_every_drafter(seed):
    target, prompt = model(seed), [6, 8]
    plain = OwnMatcher(JSON)
    steps = list(run(target, prompt, stop=STOP, grammar=plain, max_new_tokens=12))
    check(target, steps, plain)
    reply = outputs(steps)
    for name, drafter in drafters(target, prompt, reply, seed).items():
        grammar = OwnMatcher(JSON)
        found = list(run(target, prompt, drafter, stop=STOP, grammar=grammar, max_new_tokens=12))
        assert outputs(found) == reply, name
        check(target, found, grammar)


@pytest.mark.parametrize("seed", range(50))
def test_sampled_output_is_valid_with_every_drafter(seed):
    target, prompt = model(seed), [6, 8]
    for name, drafter in drafters(target, prompt, (1, 2, 8, 9, 4), seed).items():
        grammar = OwnMatcher(JSON)
        options = {"rule": verify_sampling, "seed": seed, "knobs": (TopK(3), Temperature(1.5))}
        steps = list(run(target, prompt, drafter, stop=STOP, grammar=grammar, max_new_tokens=14, **options))
        check(target, steps, grammar)
        nodes = [node for step in steps for node in step.nodes]
        if name == "masked_draft_model":  # what it drafts is legal; only behind the end it goes on
            for step in steps:
                before = [node.token for node in step.nodes if node.state != "blocked"]
                assert len(before) == len(step.nodes) or before[-1] == END
        if name == "forced":
            assert all(node.state == "accepted" and node.p == 1 for node in nodes)


def test_a_draft_is_judged_up_to_its_first_illegal_token():
    words = ("", "a", "b", "c")
    target, grammar = model(3, words), OwnMatcher(masks(regex="ab", words=words))
    steps = list(run(target, [3], Replay((1, 3, 2)), stop=STOP, grammar=grammar, max_new_tokens=5))
    first = steps[0]
    assert [node.state for node in first.nodes] == ["accepted", "blocked", "blocked"]
    assert [decode_bits(mask, 4).nonzero().flatten().tolist() if mask else None for mask in first.masks] == [
        [1],
        [2],
        None,
        None,
    ]
    assert [output.token for output in first.outputs] == [1, 2]
    assert [output.kind for output in first.outputs] == ["accepted", "recovered"]
    assert (first.target_kv.kept, first.target_kv.rolled_back) == (2, 2)
    assert outputs(steps) == (1, 2, 0)
    assert grammar.is_terminated


def test_every_node_of_a_tree_has_the_mask_of_its_own_path():
    grammar = OwnMatcher(JSON)
    draft = Draft((1, 3, 2, 15, 5, 8, 6), (-1, -1, 0, 0, 1, 2, 4))
    legal = legality(grammar, draft, len(WORDS))
    assert legal.blocked == {3}
    assert grammar.config == JSON.automaton.start
    for node in range(-1, len(draft)):
        follower = OwnMatcher(JSON)
        if node not in legal.blocked:
            assert all(follower.accept(token) for token in draft.path_tokens(node))
            assert (legal.bitmask[node + 1].numpy() == JSON.words(follower.config)).all()


def test_a_draft_past_the_end_is_cut_there():
    target = model(0)
    reply = (1, 2, 8, 4, END, 8, 8)
    grammar = OwnMatcher(JSON)
    steps = list(
        run(target, [6], Replay(reply), k=7, rule=verify_sampling, stop=STOP, grammar=grammar, max_new_tokens=20)
    )
    assert steps[-1].finish == "eos"
    assert END not in outputs(steps)[:-1]


def test_the_run_ends_with_the_grammar_even_when_no_stop_rule_says_so():
    grammar = OwnMatcher(masks(regex="a", words=("", "a", "b")))
    steps = list(run(model(1, ("", "a", "b")), [2], grammar=grammar, max_new_tokens=9))
    assert outputs(steps) == (1, END)
    assert steps[-1].finish == "eos"


def test_a_dead_end_is_an_error_that_names_the_state():
    words = ("", "a", "b")  # no token for the c that must come
    grammar = OwnMatcher(masks(regex="abc", words=words))
    with pytest.raises(DeadEnd, match=r"dead end.*regex; next: 'c'"):
        list(run(model(1, words), [2], Replay((1, 2)), grammar=grammar, stop=STOP))


def test_an_error_of_the_mask_leaves_nothing_committed():
    words = ("", "a", "b")
    target = model(1, words).session([2])
    grammar = OwnMatcher(masks(regex="c", words=words))
    with pytest.raises(DeadEnd):
        next(run(model(1, words), [2], grammar=grammar))
    assert target.tokens == [2]


def test_feasible_mass_is_what_the_model_gave_to_legal_tokens():
    target, prompt = model(5), [6, 8]
    grammar = OwnMatcher(JSON)
    step = next(run(target, prompt, grammar=grammar, stop=STOP))
    law = target.law((6, 8))
    legal = decode_bits(step.masks[0], len(WORDS))
    assert step.masks[0].feasible_mass == pytest.approx(float(law[legal].sum()))
    assert step.masks[0].num_legal == int(legal.sum())
    assert step.outputs[0].logprob == pytest.approx(float(law[step.outputs[0].token].log()))  # the model's own
    assert step.mask_ms > 0
    assert [c.token for c in step.masks[0].top] == law.topk(10).indices.tolist()


def test_steps_with_masks_travel_as_json():
    target = model(5)
    steps = tuple(
        run(target, [6, 8], RandomTrees(5, len(WORDS)), grammar=OwnMatcher(JSON), stop=STOP, max_new_tokens=8)
    )
    trace = Trace((Lane("constrained", (6, 8), steps),))
    assert Trace.from_json(trace.to_json()) == trace


def test_xgrammar_decodes_the_same():
    trie = JSON.trie
    compiled = XGrammar(trie).json_schema(SCHEMA)
    for seed in range(10):
        target, prompt = model(seed), [6, 8]
        ours = run(
            target, prompt, RandomTrees(seed, len(WORDS)), grammar=OwnMatcher(JSON), stop=STOP, max_new_tokens=12
        )
        theirs = run(
            target,
            prompt,
            RandomTrees(seed, len(WORDS)),
            grammar=XGrammarMatcher(compiled),
            stop=STOP,
            max_new_tokens=12,
        )
        for a, b in zip(ours, theirs, strict=True):
            assert [m and m.bits for m in a.masks] == [m and m.bits for m in b.masks]
            assert a.nodes == b.nodes
            assert a.outputs == b.outputs
