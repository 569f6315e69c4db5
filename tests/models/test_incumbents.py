"""Decoding with this engine equals decoding with transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from models.hf import HFModel, fit
from models.linear import FewRowsLinear
from models.load import Models
from playground.engine.decode import speculate
from playground.engine.drafters import Drafter, DraftModel, NGram, NoDrafter, Replay
from playground.engine.length import Fixed
from playground.engine.sampling import Context, chain, coins
from playground.engine.stop import Stop
from playground.engine.trace import KVRows, Pass
from playground.engine.verify import verify_greedy, verify_sampling
from tests.models.conftest import CONFIGS, load, save_model

PROMPTS = ([5, 9, 200, 17, 33], [40, 41, 42, 40, 41, 42, 40], [7] * 12)


def generate(model: HFModel, prompt: list[int], num: int, **options) -> list[int]:
    """transformers' own greedy decoding, padding of the vocabulary ruled out as here."""
    padding = [[i] for i in range(model.num_tokens, model.vocab_size)] or None
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "bad_words_ids": padding, **options}
        out = model.model.generate(ids, max_new_tokens=num, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


def run(model: HFModel, prompt: list[int], drafter: Drafter, k: int, num: int, **options) -> list[Pass]:
    options = {"rule": verify_greedy, "stop": Stop(model.eos_ids), **options}
    session = model.session(prompt)
    return list(speculate(session, drafter, length=Fixed(k), coin=coins(0), max_new_tokens=num, **options))


def output(steps: list[Pass]) -> list[int]:
    return [o.token for step in steps for o in step.outputs]


def drafters(model: HFModel, prompt: list[int]) -> list[Drafter]:
    part = model.layer_skip(2).session(prompt)
    return [NoDrafter(), NGram(3, 1, model.eos_ids), DraftModel(part, ()), Replay((1,) * 99, "always_wrong")]


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_output_is_that_of_transformers(model: HFModel, prompt: list[int], k: int) -> None:
    want = generate(model, prompt, 20)
    for drafter in drafters(model, prompt):
        assert output(run(model, prompt, drafter, k, 20)) == want, drafter.name


def test_the_oracle_needs_one_pass_per_draft(llama: HFModel) -> None:
    want = generate(llama, PROMPTS[0], 20, eos_token_id=None)
    steps = run(llama, PROMPTS[0], Replay(tuple(want)), 4, 20, stop=Stop())
    assert output(steps) == want
    assert [len(step.outputs) for step in steps] == [5, 5, 5, 5]


def test_prompt_lookup_and_assisted_generation_agree_too(llama: HFModel, folders) -> None:
    draft_model = load(str(folders["qwen3"]))
    for prompt in PROMPTS:
        want = output(run(llama, prompt, NGram(), 4, 20))
        assert generate(llama, prompt, 20, prompt_lookup_num_tokens=4) == want
        assert generate(llama, prompt, 20, assistant_model=draft_model.model) == want
        drafting = draft_model.as_draft_of(llama).session(prompt)
        assert output(run(llama, prompt, DraftModel(drafting, ()), 4, 20)) == want


@pytest.mark.parametrize(
    ("ids", "k", "longest", "eos"),
    [
        ([1, 2, 3], 3, 2, None),
        ([1, 2, 3, 1, 2], 3, 2, None),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, 2, None),
        ([5, 1, 2, 9, 1, 2, 8, 5, 1, 2], 1, 3, None),
        ([7, 0, 5, 7], 3, 1, 0),
        ([7, 4, 0, 5, 7], 4, 1, 0),
        ([3, 3, 3], 5, 2, None),
        ([3, 3], 5, 1, None),
    ],
)
def test_ngram_drafts_what_prompt_lookup_drafts(ids: list[int], k: int, longest: int, eos: int | None) -> None:
    theirs = PromptLookupCandidateGenerator(
        eos_token_id=None if eos is None else torch.tensor([eos]),
        num_output_tokens=k,
        max_matching_ngram_size=longest,
        max_length=100,
        vocab_size=16,
    )
    candidates, _ = theirs.get_candidates(torch.tensor([ids]))
    drafter = NGram(longest, 1, frozenset() if eos is None else frozenset({eos}))
    ours = drafter.propose(Context(ids, len(ids)), k, coins(0))
    assert list(ours.tokens) == candidates[0, len(ids) :].tolist()


@pytest.mark.parametrize("at", range(7))
def test_the_run_ends_at_eos_wherever_it_stands_in_a_draft(llama: HFModel, at: int) -> None:
    want = generate(llama, PROMPTS[0], 16, eos_token_id=None)
    eos = want[at]
    cut = want[: want.index(eos) + 1]
    for drafter in (Replay(tuple(want)), NoDrafter(), DraftModel(llama.layer_skip(2).session(PROMPTS[0]), ())):
        steps = run(llama, PROMPTS[0], drafter, 4, 16, stop=Stop(frozenset({eos})))
        assert output(steps) == cut
        assert steps[-1].finish == "eos"


@pytest.mark.parametrize("num", range(1, 8))
def test_the_run_has_exactly_the_tokens_asked_for(llama: HFModel, num: int) -> None:
    want = generate(llama, PROMPTS[0], 7, eos_token_id=None)
    for k in (1, 2, 3, 10):
        assert output(run(llama, PROMPTS[0], Replay(tuple(want)), k, num, stop=Stop())) == want[:num]


@pytest.mark.parametrize(
    ("right", "kept", "rolled_back", "missing"), [(0, 1, 3, 0), (1, 2, 2, 0), (3, 4, 0, 0), (4, 4, 0, 1)]
)
def test_the_drafter_cache_keeps_in_step(llama: HFModel, right: int, kept: int, rolled_back: int, missing: int) -> None:
    """A drafter that is right ``right`` times of four: rows of both caches after the second step."""
    prompt = PROMPTS[0]
    want = generate(llama, prompt, 30, eos_token_id=None)

    class Guided(DraftModel):
        def pick(self, law: torch.Tensor, coin: float) -> int:
            at = len(self.session.tokens) - len(prompt)
            return want[at] if at - self.done < right else (want[at] + 1) % 200

        def propose(self, context, k, coin, hidden=None):
            self.done = len(context.tokens) - len(prompt)
            return super().propose(context, k, coin, hidden)

    steps = run(llama, prompt, Guided(llama.layer_skip(2).session(prompt), ()), 4, 12, stop=Stop())
    step = steps[1]
    before = len(prompt) + right  # committed tokens before the step, the newest without a row
    assert step.target_kv == KVRows(before, 5, right + 1, 4 - right)
    assert (step.drafter_kv.kept - (right == 4), step.drafter_kv.rolled_back) == (kept, rolled_back)
    assert step.drafter_kv.missing == missing
    assert output(steps) == want[:12]


def test_a_sampled_run_repeats_itself_and_depends_on_the_seed(llama: HFModel) -> None:
    def sampled(seed: int) -> list[int]:
        knobs = chain(temperature=0.8, top_k=20)
        drafter = DraftModel(llama.layer_skip(2).session(PROMPTS[0]), knobs)
        options = {"rule": verify_sampling, "length": Fixed(3), "coin": coins(seed), "knobs": knobs}
        return output(list(speculate(llama.session(PROMPTS[0]), drafter, max_new_tokens=12, **options)))

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_a_draft_model_of_another_width_is_padded_or_cut(llama: HFModel, tmp_path) -> None:
    for width in (288, 352):  # the target has 320; the tokenizer 263
        config = type(CONFIGS["llama"])(**{**CONFIGS["llama"].to_dict(), "vocab_size": width})
        drafting = load(str(save_model(tmp_path / str(width), config, seed=1))).as_draft_of(llama)
        draft = DraftModel(drafting.session(PROMPTS[0]), ()).propose(Context(PROMPTS[0], 5), 3, coins(0))
        assert draft.q.shape == (3, 320)
        torch.testing.assert_close(draft.q.sum(-1), torch.ones(3, dtype=torch.float64))
        assert draft.q[:, 263:].max() == 0
    assert fit(torch.zeros(1, 3), 5).tolist() == [[0, 0, 0, -torch.inf, -torch.inf]]


def test_a_draft_model_with_other_tokens_is_refused(llama: HFModel, tmp_path) -> None:
    from tests.models.conftest import make_tokenizer

    folder = save_model(tmp_path / "other", CONFIGS["llama"], seed=1)
    make_tokenizer(("he", "ll", "hell", "hello", "Ġt", "Ġs")).save_pretrained(folder)
    making = Models().drafter(str(folder), llama, PROMPTS[0])
    with pytest.raises(ValueError, match=r"tokenizers differ \(id 262 is ' th' there and ' s' here\)"):
        for _ in making:
            pass


@pytest.mark.parametrize("rows", range(1, 8))
def test_few_row_matrices_give_the_same_result(rows: int) -> None:
    plain = torch.nn.Linear(16, 48)
    quick = torch.nn.Linear(16, 48)
    quick.load_state_dict(plain.state_dict())
    quick.__class__ = FewRowsLinear
    x = torch.randn(1, rows, 16)
    torch.testing.assert_close(quick(x), plain(x))
    assert quick(x).is_contiguous()


@pytest.mark.default_model
def test_the_default_model_decodes_as_transformers_does(default_model: HFModel) -> None:
    prompt = default_model.chat("Repeat after me: one two three one two three one two")
    want = generate(default_model, prompt, 10)
    for drafter in (NGram(), DraftModel(default_model.layer_skip(8).session(prompt), ())):
        assert output(run(default_model, prompt, drafter, 4, 10)) == want, drafter.name
