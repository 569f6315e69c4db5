"""Beams in shared blocks on real models: the beams and scores of copies, and of transformers; and what it saves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from models.hf import HFModel
from models.paged import PagedCache, PagedLayer
from playground.engine.beam import BeamStep, CopiedSessions, beam_search
from playground.engine.kv import BlockPool, BlockTable, OutOfBlocks, Write, num_blocks_for

PROMPTS = ([5, 9, 200, 17, 33], [40, 41, 42, 40, 41, 42, 40], [7] * 12)
CHATS = (
    "Write one sentence about the sea.",
    "What is the capital of France?",
    "List three colours.",
    "Explain gravity to a child.",
    "Repeat after me: one two three one two three",
)


def enough(prompt: Sequence[int], width: int, num_new: int, block_size: int) -> BlockPool:
    return BlockPool(width * num_blocks_for(len(prompt) + num_new, block_size), block_size)


def search(model: HFModel, state, width: int = 4, num_new: int = 8, **options) -> list[BeamStep]:
    return list(beam_search(state, width=width, eos_ids=model.eos_ids, max_new_tokens=num_new, **options))


@pytest.mark.parametrize("block_size", [1, 4, 8, 32])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_blocks_give_bit_for_bit_what_copies_give(model: HFModel, prompt: list[int], block_size: int) -> None:
    """All families of models, those with a sliding window too: every candidate's log-probability is the same number."""
    pool = enough(prompt, 4, 8, block_size)
    paged = model.beams(prompt, pool)
    assert search(model, paged) == search(model, model.beams(prompt))
    pool.check_integrity(paged.tables.tables)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_one_pass_for_all_beams_agrees_with_a_session_each(model: HFModel, prompt: list[int]) -> None:
    ours, apart = (search(model, state)[-1] for state in (model.beams(prompt), CopiedSessions(model.session(prompt))))
    assert [each.tokens for each in ours.finished] == [each.tokens for each in apart.finished]
    for one, other in zip(ours.finished, apart.finished, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)


def transformers_beams(model: HFModel, prompt: list[int], num_new: int, **options) -> list[tuple[list[int], float]]:
    """Outputs of transformers' own beam search with their scores, padding of the vocabulary ruled out as here."""

    def without_padding(ids, logprobs):
        return logprobs.index_fill(-1, torch.arange(model.num_tokens, model.vocab_size), -torch.inf).log_softmax(-1)

    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.model.generate(
            ids, attention_mask=torch.ones_like(ids), logits_processor=[without_padding], max_new_tokens=num_new,
            do_sample=False, num_return_sequences=options["num_beams"], return_dict_in_generate=True,
            output_scores=True, **options,
        )  # fmt: skip
    rows = [row[len(prompt) :].tolist() for row in out.sequences]
    return list(zip(rows, out.sequences_scores.tolist(), strict=True))


def check_against_transformers(model: HFModel, prompt, num_new=8, width=4, penalty=1.0, early=False) -> None:
    options = {"length_penalty": penalty, "early_stopping": early}
    want = transformers_beams(model, prompt, num_new, num_beams=width, **options)
    paged = model.beams(prompt, enough(prompt, width, num_new, 4))
    found = search(model, paged, width, num_new, **options)[-1].finished
    for ours, (tokens, score) in zip(found, want, strict=True):
        assert list(ours.tokens) == tokens[: len(ours.tokens)]
        assert ours.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("width", "penalty", "early"), [(3, 1.0, False), (4, 0.0, True), (2, 2.0, "never")])
def test_blocks_give_the_beams_and_scores_of_transformers(llama, prompt, width, penalty, early) -> None:
    check_against_transformers(llama, prompt, 8, width, penalty, early)


def start_with(value: float, monkeypatch) -> None:
    """Fresh pools hold ``value`` everywhere."""
    plain = PagedLayer.lazy_initialization

    def filled(self, key_states, value_states):
        plain(self, key_states, value_states)
        self.keys.fill_(value)
        self.values.fill_(value)

    monkeypatch.setattr(PagedLayer, "lazy_initialization", filled)


def test_what_no_row_was_written_to_is_never_read(llama: HFModel, monkeypatch) -> None:
    """The pool is full of NaN at the start: one row read that nobody wrote would spoil every logit."""
    start_with(torch.nan, monkeypatch)
    paged = llama.beams(PROMPTS[0], enough(PROMPTS[0], 4, 8, 4))
    assert search(llama, paged) == search(llama, llama.beams(PROMPTS[0]))


class WritesInPlace(BlockPool):
    """A planted mistake: no copy before a write to a shared block."""

    def append(self, table):
        if offset := table.num_tokens % self.block_size:
            return BlockTable(table.blocks, table.num_tokens + 1), Write(table.blocks[-1], offset)
        return super().append(table)


def test_a_missing_copy_on_write_is_found(llama: HFModel) -> None:
    planted = search(llama, llama.beams(PROMPTS[0], WritesInPlace(64, 8)))
    assert planted != search(llama, llama.beams(PROMPTS[0]))


def test_rows_that_are_not_copied_are_found(llama: HFModel, monkeypatch) -> None:
    start_with(0.0, monkeypatch)
    monkeypatch.setattr(PagedCache, "_copy", lambda *args: None)
    assert search(llama, llama.beams(PROMPTS[0], BlockPool(64, 8))) != search(llama, llama.beams(PROMPTS[0]))


def test_bytes_are_those_of_the_blocks_in_use(llama: HFModel) -> None:
    prompt = PROMPTS[1]
    paged, copied = llama.beams(prompt, enough(prompt, 4, 3, 4)), llama.beams(prompt)
    for state in (paged, copied):
        state.start()
        state.advance([0, 0, 0, 0], [1, 2, 3, 4])
    row = 2 * 4 * 2 * 8 * 4  # K and V, layers, heads, dim, bytes of fp32
    assert paged.block_bytes == 4 * row
    assert paged.cache.num_bytes == 5 * 4 * row  # seven tokens: one full block shared, the next one copied three times
    assert copied.cache.num_bytes == 4 * 8 * row
    paged.tables.free()
    assert paged.cache.num_bytes == 0


def test_a_pool_that_runs_out_gives_everything_back(llama: HFModel) -> None:
    pool = BlockPool(4, 4)
    with pytest.raises(OutOfBlocks, match="All 4 blocks"):
        search(llama, llama.beams(PROMPTS[1], pool), 4, 12)
    assert pool.num_free == 4
    with pytest.raises(OutOfBlocks, match="12 tokens need 3 blocks"):
        llama.beams(PROMPTS[2], BlockPool(2, 4)).start()


@pytest.mark.default_model
@pytest.mark.parametrize("text", CHATS)
def test_the_default_model_in_blocks_and_in_copies(default_model: HFModel, text: str) -> None:
    prompt = default_model.chat(text)
    paged, copied = default_model.beams(prompt, enough(prompt, 4, 8, 16)), default_model.beams(prompt)
    steps, others = search(default_model, paged), search(default_model, copied)
    assert steps[-1].finish == others[-1].finish
    if default_model.dtype == torch.float32:
        assert steps == others
    assert [each.tokens for each in steps[-1].finished] == [each.tokens for each in others[-1].finished]


@pytest.mark.default_model
def test_the_default_model_has_the_beams_of_transformers(default_model: HFModel) -> None:
    check_against_transformers(default_model, default_model.chat(CHATS[0]), 8)
