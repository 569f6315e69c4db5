"""The tiny language model inside transformers says what it says in our sessions."""

from __future__ import annotations

import pytest
import torch

from models import trained
from models.assistant import as_transformers
from models.drafters import TinyModel
from playground.engine.tree import Draft
from tests.drafting import small_target


def test_transformers_runs_the_same_tiny_model(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = small_target(tmp_path)
    monkeypatch.setattr(trained, "FOLDER", tmp_path / "weights")
    tiny = TinyModel(trained.load_for(host, "tiny"), 64)
    model, tokens = as_transformers(tiny), [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0]
    ours = tiny.session(tokens[:1]).score(Draft.chain(tokens[1:])).logits
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)


def test_assisted_generation_with_it_is_greedy_decoding(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = small_target(tmp_path)
    monkeypatch.setattr(trained, "FOLDER", tmp_path / "weights")
    assistant = as_transformers(TinyModel(trained.load_for(host, "tiny"), 64))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    with torch.inference_mode():
        plain = host.model.generate(ids, **options)
        assisted = host.model.generate(ids, assistant_model=assistant, **options)
    assert torch.equal(plain, assisted)
