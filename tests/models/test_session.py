"""Sessions on transformers models: trees, commits, roll-backs, forks, states."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MambaConfig

from models.fetch import ModelUnavailable
from models.hf import HFModel
from models.load import Models
from models.probe import Unsuitable, check_trees
from playground.engine.trace import KVRows
from playground.engine.tree import ROOT, Draft
from tests.models.conftest import save_model

PROMPT = [5, 9, 200, 17, 33, 8, 8, 150, 61]  # longer than the window of the Gemma model


def plain(model: HFModel, tokens: list[int]) -> torch.Tensor:
    """Logits after ``tokens`` from transformers alone: one pass, no cache of ours, no mask of ours."""
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([tokens])).logits[0, -1, : model.num_tokens]


def assert_follows(model: HFModel, logits: torch.Tensor, tokens: list[int]) -> None:
    torch.testing.assert_close(logits[: model.num_tokens], plain(model, tokens), atol=2e-4, rtol=1e-4)


@st.composite
def trees(draw: st.DrawFn, size: int = 7) -> Draft:
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(draw(st.integers(0, size)))]
    tokens: list[int] = []
    for i, parent in enumerate(parents):
        taken = {tokens[j] for j in range(i) if parents[j] == parent}
        tokens.append(draw(st.integers(1, 260).filter(lambda token, taken=taken: token not in taken)))
    return Draft(tuple(tokens), tuple(parents))


@settings(max_examples=15)
@given(draft=trees())
def test_a_tree_scores_as_each_of_its_paths_alone(model: HFModel, draft: Draft) -> None:
    logits = model.session(PROMPT).score(draft).logits
    assert logits.shape == (len(draft) + 1, model.vocab_size)
    for node in range(ROOT, len(draft)):
        assert_follows(model, logits[node + 1], [*PROMPT, *draft.path_tokens(node)])


@settings(max_examples=15)
@given(draft=trees(), data=st.data())
def test_after_any_commit_the_session_equals_a_fresh_pass(model: HFModel, draft: Draft, data: st.DataObject) -> None:
    session = model.session(PROMPT)
    session.score(draft)
    path = draft.path(data.draw(st.integers(ROOT, len(draft) - 1)))
    rows = session.commit(path, 77)
    assert rows == KVRows(len(PROMPT) - 1, 1 + len(draft), 1 + len(path), len(draft) - len(path))
    assert session.tokens == [*PROMPT, *(draft.tokens[i] for i in path), 77]
    assert session.num_kv_rows == len(session.tokens) - 1
    again = data.draw(trees(4))
    logits = session.score(again).logits
    for node in range(ROOT, len(again)):
        assert_follows(model, logits[node + 1], [*session.tokens, *again.path_tokens(node)])


def test_a_session_outlives_many_commits(model: HFModel) -> None:
    """Rows move within buffers that grow, and past a sliding window several times over."""
    session = model.session(PROMPT)
    for i in range(12):
        session.score(Draft((10 + i, 20 + i, 30 + i, 40 + i), (ROOT, ROOT, 1, 2)))
        rows = session.commit((1, 2) if i % 3 else (), 50 + i)
        assert (rows.written, rows.kept) == (5, 3 if i % 3 else 1)
    assert_follows(model, session.score(Draft()).logits[0], session.tokens)


@settings(max_examples=20)
@given(cut=st.integers(0, len(PROMPT) + 1), tail=st.lists(st.integers(1, 260), min_size=1, max_size=4))
def test_sync_keeps_the_common_prefix(llama: HFModel, cut: int, tail: list[int]) -> None:
    session = llama.session(PROMPT)
    session.score(Draft.chain([1, 2, 3]))
    session.commit((0,), 4)
    old = list(session.tokens)
    new = [*old[:cut], *tail]
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    rows = session.sync(new)
    kept = min(same, len(old) - 1, len(new) - 1)
    assert rows == KVRows(len(old) - 1, 0, 0, len(old) - 1 - kept, missing=len(new) - 1 - kept)
    assert_follows(llama, session.score(Draft()).logits[0], new)


def test_sync_drops_a_draft_that_was_scored_and_not_committed(llama: HFModel) -> None:
    session = llama.session(PROMPT)
    session.score(Draft.chain([1, 2, 3]))
    assert session.sync(PROMPT) == KVRows(len(PROMPT), 0, 0, 1)
    assert_follows(llama, session.score(Draft()).logits[0], PROMPT)


def test_scoring_twice_replaces_the_first_draft(llama: HFModel) -> None:
    session = llama.session(PROMPT)
    session.score(Draft.chain([1, 2, 3]))
    assert_follows(llama, session.score(Draft.chain([9])).logits[1], [*PROMPT, 9])
    assert session.num_kv_rows == len(PROMPT)


def test_forks_go_their_own_ways(model: HFModel) -> None:
    session = model.session(PROMPT)
    session.score(Draft())
    session.commit((), 7)
    twin = session.fork()
    twin.score(Draft())
    twin.commit((), 100)
    session.score(Draft())
    session.commit((), 200)
    for one in (session, twin):
        assert_follows(model, one.score(Draft()).logits[0], one.tokens)
    assert (session.tokens[-1], twin.tokens[-1]) == (200, 100)


def test_states_are_those_of_transformers(model: HFModel) -> None:
    taps = (0, 2, model.num_layers)
    session = model.session(PROMPT, taps)
    hidden = session.score(Draft.chain([3, 4])).hidden
    with torch.inference_mode():
        want = model.model(input_ids=torch.tensor([[*PROMPT, 3, 4]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(hidden, torch.stack([want[tap][0] for tap in taps], 1), atol=2e-4, rtol=1e-4)
    session.commit((0, 1), 5)
    assert session.score(Draft.chain([6])).hidden.shape == (2, len(taps), 32)
    assert model.session(PROMPT).score(Draft()).hidden is None


def test_padding_of_the_vocabulary_is_never_sampled(model: HFModel) -> None:
    logits = model.session(PROMPT).score(Draft.chain([1, 2])).logits
    assert model.num_tokens == 263 < model.vocab_size == 320
    assert logits[:, 263:].isneginf().all()
    assert logits[:, :263].isfinite().all()


def test_a_pass_that_fails_leaves_a_session_that_works(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = llama.session(PROMPT)
    session.score(Draft())
    session.commit((), 7)
    layer = llama.model.model.layers[2]
    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.score(Draft.chain([1, 2]))
    assert session.num_kv_rows == 0
    assert_follows(llama, session.score(Draft.chain([1])).logits[0], [*PROMPT, 7])


def test_the_first_layers_share_the_weights(model: HFModel) -> None:
    part = model.layer_skip(2)
    assert part.model.model.embed_tokens is model.model.model.embed_tokens
    assert part.num_layers == 2
    assert len(model.model.model.layers) == 4 == model.model.config.num_hidden_layers
    logits = part.session(PROMPT).score(Draft.chain([3])).logits
    assert_follows(part, logits[1], [*PROMPT, 3])
    assert not torch.allclose(logits[1, :263], plain(model, [*PROMPT, 3]))
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="between 1 and 3"):
            model.layer_skip(wrong)


def test_context_limits_are_kept(llama: HFModel) -> None:
    session = llama.session(list(range(1, 127)))
    assert session.score(Draft.chain([1, 2])).logits.isfinite().any()
    with pytest.raises(ValueError, match="at most 128"):
        session.score(Draft.chain([1, 2, 3]))
    with pytest.raises(ValueError, match="empty"):
        llama.session([])


def test_a_model_without_rows_is_refused_with_the_reason(tmp_path) -> None:
    config = MambaConfig(vocab_size=320, hidden_size=16, num_hidden_layers=2, state_size=4)
    loading = Models().load(str(save_model(tmp_path / "mamba", config)), "fp32", "cpu")
    with pytest.raises(Unsuitable, match=r"mamba model keeps .* cannot be taken back"):
        for _ in loading:
            pass


def test_a_model_that_ignores_tree_masks_is_refused(folders) -> None:
    from tests.models.conftest import load

    model = load(str(folders["llama"]))
    model._masks = lambda past, positions, draft: None  # plain causal attention: siblings see one another
    with pytest.raises(Unsuitable, match="does not follow a tree mask"):
        check_trees(model)


def test_a_folder_that_is_no_model_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match="cannot be loaded as a causal language model"):
        for _ in Models().load(str(tmp_path)):
            pass


def test_provenance_names_the_weights_and_how_they_run(llama: HFModel, folders) -> None:
    about = llama.provenance()
    assert (about["source"], about["dtype"], about["device"]) == (str(folders["llama"]), "fp32", "cpu")
