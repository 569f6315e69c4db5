import pytest

from playground.engine.grammar.automaton import build
from playground.engine.grammar.bitmask import Masks, allocate, unpack
from playground.engine.grammar.matcher import OwnMatcher
from playground.engine.grammar.regex import parse_regex
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar, XGrammarMatcher
from tests.engine.grammar.schemas import INT, LINKED, NUM, STR, compiled, obj

WORDS = [
    *[None, b"{", b"}", b'"a"', b'": ', b": ", b", ", b"1", b"2", b'"', b"a", b"b"],
    *[b"\xf0\x9f", b"\x98\x80", b"\xf0", b"\x9f\x98", b"\x80", b'{"a": ', b'a": ', b"a1", None, b"ab", b"c"],
]
END, ALSO_END = 0, 20
TRIE = TokenTrie(WORDS, [END, ALSO_END])
A_INT = obj({"a": INT})


def token(data):
    return WORDS.index(data)


def own(schema=None, regex=None):
    automaton = compiled(schema) if schema is not None else build({"regex": parse_regex(regex)}, "regex")
    return OwnMatcher(Masks(automaton, TRIE))


def xgrammar(schema=None, regex=None):
    engine = XGrammar(TRIE)
    return XGrammarMatcher(engine.json_schema(schema) if schema is not None else engine.regex(regex))


@pytest.fixture(params=[own, xgrammar], ids=["ours", "xgrammar"])
def start(request):
    return request.param


def legal(matcher):
    mask = allocate(1, TRIE.vocab_size)
    matcher.fill(mask)
    return {WORDS[t] or t for t in unpack(mask[0], TRIE.vocab_size).nonzero()[0].tolist()}


def feed(matcher, *words):
    for word in words:
        assert matcher.accept(word if isinstance(word, int) else token(word)), word


def test_the_text_ends_only_where_the_grammar_can(start):
    matcher = start(A_INT)
    feed(matcher, b"{", b'"a"', b": ", b"1")
    assert not matcher.accept(END)
    assert not matcher.can_end
    assert legal(matcher) == {b"}", b"1", b"2"}
    feed(matcher, b"}")
    assert matcher.can_end
    assert legal(matcher) == {END, ALSO_END}  # every id that ends the run, and nothing else


def test_no_end_inside_a_string(start):
    matcher = start(STR)
    feed(matcher, b'"', b"a")
    assert not {END, ALSO_END} & legal(matcher)
    feed(matcher, b'"')
    assert legal(matcher) == {END, ALSO_END}


def test_rollback_takes_back_the_end_and_then_tokens(start):
    matcher = start(A_INT)
    feed(matcher, b"{", b'"a"', b": ")
    after_colon = legal(matcher)
    feed(matcher, b"1", b"}", END)
    assert matcher.is_terminated
    assert legal(matcher) == set()
    assert not matcher.accept(token(b"1"))
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert legal(matcher) == {END, ALSO_END}
    matcher.rollback(2)
    assert legal(matcher) == after_colon


def test_a_rejected_token_changes_nothing(start):
    matcher = start(A_INT)
    feed(matcher, b"{")
    before = legal(matcher)
    for wrong in (b"}", b"1", b"a", END, 999, -1):
        assert not matcher.accept(wrong if isinstance(wrong, int) else token(wrong))
    assert legal(matcher) == before
    feed(matcher, b'"a"', b": ", b"2", b"}")


def test_a_fork_goes_its_own_way(start):
    matcher = start(A_INT)
    feed(matcher, b"{", b'"a"')
    twin = matcher.fork()
    feed(twin, b": ", b"1", b"}", END)
    assert twin.is_terminated
    assert legal(matcher) == {b": "}
    twin.rollback(4)
    assert legal(twin) == {b": "}


def test_rolling_back_more_than_was_accepted_is_an_error():
    matcher = own(A_INT)
    feed(matcher, b"{")
    with pytest.raises(ValueError, match="1 were accepted"):
        matcher.rollback(2)


def test_characters_split_over_tokens(start):
    matcher = start(regex="[😀-🙏]")
    assert legal(matcher) == {b"\xf0\x9f", b"\xf0"}
    feed(matcher, b"\xf0\x9f")
    assert not matcher.accept(token(b"a"))
    assert legal(matcher) == {b"\x98\x80", b"\x9f\x98"} - {b"\x9f\x98"}
    assert matcher.find_jump_forward() == ""
    feed(matcher, b"\x98\x80")
    assert legal(matcher) == {END, ALSO_END}
    again = start(regex="[😀-🙏]")
    feed(again, b"\xf0", b"\x9f\x98", b"\x80")
    assert again.can_end


def test_jump_forward_gives_the_forced_text(start):
    matcher = start(A_INT)
    assert matcher.find_jump_forward() == '{"a": '
    feed(matcher, b'{"a": ', b"1")
    assert matcher.find_jump_forward() == ""
    assert start({"const": "ab"}).find_jump_forward() == '"ab"'
    assert start(regex="é*").find_jump_forward() == ""


@pytest.mark.parametrize("schema", [A_INT, LINKED, {}, NUM, obj({"a": {}}, ["a"])], ids=str)
def test_both_engines_follow_the_same_walk(schema):
    ours, theirs = own(schema), xgrammar(schema)
    for word in (b"{", b'"a"', b": ", b"{", b'"a"', b": ", b"1", b"}", b"}", END):
        assert legal(ours) == legal(theirs)
        assert ours.find_jump_forward() == theirs.find_jump_forward()
        assert ours.accept(token(word) if isinstance(word, bytes) else word) == theirs.accept(
            token(word) if isinstance(word, bytes) else word
        )


def test_a_place_is_described_in_words():
    matcher = own(A_INT)
    assert "next: '{'" in matcher.place
    feed(matcher, b"{", b'"a"', b": ", b"1")
    assert "integer" in matcher.place
    feed(matcher, b"}", END)
    assert matcher.place == "the end of the text"


def test_a_legal_token_is_in_the_mask():
    """xgrammar 0.2.9 accepts ``xax:`` here, but its mask leaves the token out when ``x:`` is one too: a dead end."""
    words = [None, b"xax:", b"x:", b"k", b"z"]
    trie = TokenTrie(words, [0])
    automaton = build({"regex": parse_regex("kxax:z")}, "regex")
    ours, theirs = OwnMatcher(Masks(automaton, trie)), XGrammarMatcher(XGrammar(trie).regex("kxax:z"))
    mask, other = allocate(1, 5), allocate(1, 5)
    for matcher, into in ((ours, mask), (theirs, other)):
        assert matcher.accept(3)
        matcher.fill(into)
        assert matcher.fork().accept(1)
    assert unpack(mask[0], 5).tolist() == [False, True, False, False, False]
    assert not other.any()
