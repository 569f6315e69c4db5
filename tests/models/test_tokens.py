"""Tokens as text and bytes, and which tokenizers mean the same."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models.hf import HFModel
from models.tokens import TokenTable, differing_token, same_tokens
from tests.models.conftest import END, make_tokenizer

HOSTILE = "${x} {{y}} `z` <img onerror=1> \u202eabc \x07\t\n héllo 😀 \u00a0 <0xF0> " + END


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return TokenTable(make_tokenizer())


def sentencepiece_table() -> TokenTable:
    """The shape of Llama 2's and Gemma's: a mark for spaces, bytes as <0x..>."""
    vocab = {"<unk>": 0, **{f"<0x{i:02X}>": 1 + i for i in range(256)}}
    vocab |= {piece: 257 + i for i, piece in enumerate(["\u2581", "h", "i", "\u2581h", "\u2581hi"])}
    merges = [("\u2581", "h"), ("\u2581h", "i")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.mark.parametrize("make", [lambda: TokenTable(make_tokenizer()), sentencepiece_table])
def test_decode_gives_the_text_back(make) -> None:
    table = make()
    text = " hi hi 😀" if table.size < 263 else HOSTILE
    tokens = table.tokenizer.encode(text, add_special_tokens=False)
    assert table.decode(tokens) == text


@pytest.mark.parametrize("make", [lambda: TokenTable(make_tokenizer()), sentencepiece_table])
def test_an_unfinished_character_is_held_back_and_shown_as_bytes(make) -> None:
    table = make()
    tokens = table.tokenizer.encode("hi😀", add_special_tokens=False)
    assert [table.text(token) for token in tokens] == ["h", "i", "<F0>", "<9F>", "<98>", "<80>"]
    assert [table.decode(tokens[:n]) for n in range(1, 7)] == ["h", "hi", "hi", "hi", "hi", "hi😀"]


def test_bytes_that_can_never_become_text_are_shown_not_replaced(table: TokenTable) -> None:
    lead, follow, letter = (table.tokenizer.convert_tokens_to_ids(piece) for piece in ("ð", "Ł", "h"))
    assert table.decode([lead, letter, lead, follow, letter]) == "<F0>h<F0><9F>h"


def test_every_token_shows_something(table: TokenTable) -> None:
    assert all(table.text(token) for token in range(table.size))
    assert table.text(0) == END
    assert table.text(999) == "<id 999>"


def test_a_byte_spelled_out_in_a_byte_level_text_stays_text(table: TokenTable) -> None:
    tokens = table.tokenizer.encode("<0xF0>", add_special_tokens=False)
    assert table.decode(tokens) == "<0xF0>"


def test_tokenizers_are_compared_by_their_tokens() -> None:
    table, same = TokenTable(make_tokenizer()), TokenTable(make_tokenizer())
    longer = TokenTable(make_tokenizer(("he", "ll", "hell", "hello", "Ġt", "Ġth", "Ġhe")))
    other = TokenTable(make_tokenizer(("he", "ll", "hell", "hello", "Ġt", "Ġs")))
    assert same_tokens(table, same)
    assert same_tokens(table, longer)
    assert same_tokens(longer, table)
    assert not same_tokens(table, other)
    assert differing_token(table, other) == table.size - 1
    assert not same_tokens(table, sentencepiece_table())


def test_a_model_encodes_text_as_it_stands(llama: HFModel) -> None:
    tokens = llama.encode("hello th")
    assert llama.decode(tokens) == "hello th"
    assert llama.texts(tokens)[tokens[0]] == "hello"
    assert llama.chat("hello") == llama.encode("hello")  # no chat template
    assert llama.eos_ids == frozenset({0})


def test_a_chat_template_is_used_where_there_is_one(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}"
    monkeypatch.setattr(llama.tokenizer, "chat_template", template)
    assert llama.decode(llama.chat("hello")) == "<user>hello>"
