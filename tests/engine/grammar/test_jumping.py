"""Jump-forward on table models: what is appended, what is held back, what the repairs do, and what is accounted for."""

from __future__ import annotations

import json

import jsonschema
import pytest

from models.table import TableModel, random_law
from playground.engine.decode import speculate
from playground.engine.drafters import NoDrafter
from playground.engine.grammar.automaton import build
from playground.engine.grammar.bitmask import Masks
from playground.engine.grammar.json_schema import schema_rules
from playground.engine.grammar.jumping import (
    LONGEST,
    ForcedText,
    Repair,
    Vocabulary,
    canonical,
    held_back,
    jumps_of,
    output_of,
    piecewise,
    retokenised,
    seams,
    take_forced,
    take_forced_greedy,
)
from playground.engine.grammar.matcher import OwnMatcher
from playground.engine.grammar.remedies import account
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.length import Fixed
from playground.engine.sampling import Context, coins
from playground.engine.stop import Stop
from playground.engine.verify import verify_greedy, verify_sampling

# A space may be a token, or the beginning of one with what follows: forced text that ends in a space has a bad seam.
WORDS = (
    "", '{"a"', ":", " ", " 1", " 2", "1", "2", "-", "}", ', "', 'b"', " true", " false", "true", "false", "{", '"',
    "a", "b", ",",
)  # fmt: skip
END, PROMPT = 0, [1]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, 12]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}
MASKS = Masks(build(*schema_rules(SCHEMA)), TokenTrie([word.encode() or None for word in WORDS], [END]))
CUTS = {"piecewise": piecewise, "canonical": canonical, "held back": held_back}
VOCABULARY = Vocabulary(MASKS.trie, TableModel(WORDS, random_law(len(WORDS), 0)).encode)


def model(seed):
    return TableModel(WORDS, random_law(len(WORDS), seed, 1.5), eos_ids=frozenset({END}))


def forced(cut):
    return ForcedText(OwnMatcher(MASKS), VOCABULARY, cut)


def write(seed, drafter, rule, limit=40, stop=None):
    target, grammar = model(seed), OwnMatcher(MASKS)
    session = target.session(PROMPT)
    steps = speculate(
        session,
        drafter,
        rule=rule,
        length=Fixed(LONGEST),
        coin=coins(seed),
        stop=stop or Stop(target.eos_ids),
        grammar=grammar,
        max_new_tokens=limit,
    )
    return steps, session, grammar


def tokens_of(steps):
    return [out.token for made in steps for out in made.outputs]


def text_of(steps):
    return VOCABULARY.bytes_of(tokens_of(steps)).decode()


def proposed(cut, output):
    return forced(cut).propose(Context((*PROMPT, *output), len(PROMPT)), LONGEST, coins(0)).tokens


def words(tokens):
    return [WORDS[t] for t in tokens]


def test_the_forced_text_is_drafted_in_three_cuts():
    assert OwnMatcher(MASKS).find_jump_forward() == '{"a": '
    assert words(proposed(piecewise, [])) == ['{"a"', ":", " "]
    assert words(proposed(canonical, [])) == ['{"a"', ":", " "]
    assert words(proposed(held_back, [])) == ['{"a"', ":"]  # " 1" could take the space in


def test_held_back_keeps_what_no_legal_token_could_absorb():
    one = VOCABULARY.encode('{"a": 2')  # ", "b": " follows, and a boolean
    assert words(proposed(piecewise, one)) == [', "', 'b"', ":", " "]
    assert words(proposed(held_back, one)) == [', "', 'b"', ":"]
    done = VOCABULARY.encode('{"a": 2, "b": true')
    assert words(proposed(held_back, done)) == ["}"]


def test_nothing_is_drafted_where_there_is_a_choice():
    assert proposed(piecewise, VOCABULARY.encode('{"a": 1')) == ()  # 1 or 12
    assert proposed(piecewise, VOCABULARY.encode('{"a": 2, "b": true}')) == ()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("seed", range(20))
def test_every_way_writes_a_valid_document(cut, seed):
    for rule in (take_forced_greedy, take_forced):
        steps, _, grammar = write(seed, forced(CUTS[cut]), rule)
        steps = list(steps)
        assert steps[-1].finish == "eos"
        assert grammar.is_terminated
        jsonschema.validate(json.loads(text_of(steps)), SCHEMA)


@pytest.mark.parametrize("seed", range(20))
def test_offered_as_a_draft_the_output_is_the_one_without_jumps(seed):
    plain = tokens_of(write(seed, NoDrafter(), verify_greedy)[0])
    steps = list(write(seed, forced(canonical), verify_greedy)[0])
    assert tokens_of(steps) == plain
    sampled = tokens_of(write(seed, forced(canonical), verify_sampling)[0])
    jsonschema.validate(json.loads(VOCABULARY.bytes_of(sampled)), SCHEMA)


def test_a_canonical_jump_changes_nothing_where_the_model_would_have_cut_alike():
    same = 0
    for seed in range(30):
        plain = text_of(list(write(seed, NoDrafter(), verify_greedy)[0]))
        steps = list(write(seed, forced(held_back), take_forced_greedy)[0])
        whole = VOCABULARY.canonical(tokens_of(write(seed, NoDrafter(), verify_greedy)[0]))
        if whole == [t for t in tokens_of(write(seed, NoDrafter(), verify_greedy)[0]) if t != END]:
            same += 1
            assert text_of(steps) == plain
    assert same > 0


@pytest.mark.parametrize("seed", range(20))
def test_retokenised_output_is_canonical_and_valid(seed):
    steps, session, grammar = write(seed, forced(canonical), take_forced_greedy)
    made = list(retokenised(steps, session, grammar, VOCABULARY, 40))
    passes = [each for each in made if not isinstance(each, Repair)]
    repairs = [each for each in made if isinstance(each, Repair)]
    output = list(session.tokens[len(PROMPT) :])
    assert output[-1] == END
    text = VOCABULARY.bytes_of(output).decode()
    jsonschema.validate(json.loads(text), SCHEMA)
    assert output == output_of(passes, repairs)
    done = account("re-tokenised", passes, repairs, passes, VOCABULARY)
    assert (done.text, done.num_tokens, done.num_repairs) == (text, len(output), len(repairs))
    for repair in repairs:
        assert VOCABULARY.bytes_of(repair.new).startswith(VOCABULARY.bytes_of(repair.old))
    follower = OwnMatcher(MASKS)
    assert all(follower.accept(token) for token in output)


def test_some_seam_is_repaired():
    found = 0
    for seed in range(20):
        steps, session, grammar = write(seed, forced(piecewise), take_forced_greedy)
        found += sum(isinstance(each, Repair) for each in retokenised(steps, session, grammar, VOCABULARY, 40))
    assert found > 0


@pytest.mark.parametrize("limit", range(1, 12))
def test_jumped_tokens_count_against_the_limit(limit):
    steps, session, _ = write(3, forced(piecewise), take_forced_greedy, limit=limit)
    steps = list(steps)
    assert len(tokens_of(steps)) <= limit
    assert steps[-1].finish == "eos" or len(tokens_of(steps)) == limit
    assert session.num_kv_rows == len(session.tokens) - 1


def test_a_stop_string_inside_forced_text_ends_the_run():
    stop = Stop(frozenset({END}), ('"b"',), lambda ids: VOCABULARY.bytes_of(ids).decode())
    steps = list(write(3, forced(piecewise), take_forced_greedy, stop=stop)[0])
    assert steps[-1].finish == "stop_string"
    assert text_of(steps).endswith('"b"')


def test_seams_are_shown_with_both_cuts():
    written = [*VOCABULARY.encode('{"a":'), WORDS.index(" "), WORDS.index("2"), *VOCABULARY.encode(', "b": true}')]
    first, second = seams([(0, 3)], written, VOCABULARY), seams([(0, 2)], written, VOCABULARY)
    assert [(s.at, s.is_canonical) for s in first] == [(6, False)]
    assert (words(first[0].written), words(first[0].canonical)) == ([" ", "2"], [" 2"])
    assert [(s.at, s.is_canonical) for s in second] == [(5, True)]


def test_an_account_adds_up():
    plain = list(write(5, NoDrafter(), verify_greedy)[0])
    steps = list(write(5, forced(piecewise), take_forced_greedy)[0])
    done = account("jump-forward", steps, [], plain, VOCABULARY)
    assert done.sampled == len(steps)
    assert done.num_tokens == done.sampled + sum(last - first for first, last in jumps_of(steps))
    assert 0 < done.forced_bytes < done.num_bytes == len(done.text)
    same = account("no jumps", plain, [], plain, VOCABULARY)
    assert (same.parts_at, same.forced_bytes, same.sampled) == (None, 0, len(plain))
    assert done.parts_at is None or done.text[: done.parts_at] == same.text[: done.parts_at]
