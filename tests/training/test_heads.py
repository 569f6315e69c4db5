"""The shipped drafters against independent computations: training and drafting must be the same function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import trained
from models.drafters import EagleDrafter, MedusaDrafter, TinyModel, ngram_or_eagle
from models.heads import Eagle, Medusa, Shape, TinyLM
from models.training.batches import Batch
from models.training.losses import eagle_loss, tiny_loss
from playground.engine.drafters import DraftModel
from playground.engine.sampling import Context, Temperature, coins
from playground.engine.tree import Draft

SHAPE = Shape(dim=16, num_heads=4, num_kv_heads=2, head_dim=4, intermediate=24, taps=(1, 2, 3))
VOCAB, SMALL = 40, 30
GREEDY = (Temperature(0.0),)


def make(module: torch.nn.Module) -> trained.Trained:
    generator = torch.Generator().manual_seed(1)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.5
    embedding = torch.randn(VOCAB, SHAPE.dim, generator=generator)
    vocabulary = torch.randperm(VOCAB, generator=generator)[:SMALL].sort().values
    return trained.Trained(module.requires_grad_(False), vocabulary, embedding, embedding)


def batch_of(tokens: torch.Tensor, features: torch.Tensor, choice: torch.Tensor) -> Batch:
    n = len(tokens)
    own = torch.arange(n) < n - 1
    ids = torch.zeros(1, n, 2, dtype=torch.long)
    probs = torch.tensor([0.5, 0.5]).expand(1, n, 2)
    return Batch(tokens[None], torch.tensor([n]), features[None], ids, probs, own[None], choice[None])


def test_eagle_chain_is_what_training_unrolls() -> None:
    """Greedy drafting from every prefix of a text that follows the drafts: each depth must count a hit in training."""
    ready = make(Eagle(SHAPE))
    torch.manual_seed(0)
    tokens, features = torch.randint(VOCAB, (12,)), torch.randn(12, 4, SHAPE.dim)
    for anchor in (3, 7):
        drafter = EagleDrafter(ready, GREEDY)
        context = Context(tuple(tokens[: anchor + 2].tolist()), 2)
        draft = drafter.propose(context, 4, coins(0), features[: anchor + 1, :3])
        assert len(draft) == 4
        text = torch.cat([tokens[: anchor + 2], torch.tensor(draft.tokens), tokens[:1]])
        known = torch.cat([features[: anchor + 1], torch.zeros(len(text) - anchor - 1, 4, SHAPE.dim)])
        choice = torch.full((len(text),), -1)
        for j, token in enumerate(draft.tokens):  # the law after token anchor + 1 + j prefers draft token j
            choice[anchor + 1 + j] = int((ready.vocabulary == token).nonzero())
        batch = batch_of(text, known, choice)
        batch.own[0] = False
        batch.own[0, anchor + 1 : anchor + 5] = True
        score = eagle_loss(ready.module, batch, slice(0, 3), ready.embedding, ready.head, 4, 1.0, 1.0, _first_anchor())
        assert score.hits[0] >= 1
        # of the anchors only the first can reach all four depths
        assert score.rows == [4, 3, 2, 1]
        assert score.hits[3] == 1


def _first_anchor() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_eagle_in_pieces_equals_eagle_at_once() -> None:
    """States that arrive over several passes, with drafts in between, leave the same draft as all of them at once."""
    ready = make(Eagle(SHAPE))
    torch.manual_seed(0)
    tokens, features = tuple(torch.randint(VOCAB, (14,)).tolist()), torch.randn(14, 3, SHAPE.dim)
    pieces = EagleDrafter(ready, GREEDY)
    for now, fed in ((5, 0), (6, 4), (9, 5), (13, 8)):
        last = pieces.propose(Context(tokens[:now], 3), 3, coins(0), features[fed : now - 1])
        rows = pieces.sync(tokens[:now])
        assert rows.kept + rows.before == now - 1
        assert rows.rolled_back == 2
    whole = EagleDrafter(ready, GREEDY).propose(Context(tokens[:13], 3), 3, coins(0), features[:12])
    assert last.tokens == whole.tokens
    torch.testing.assert_close(last.q, whole.q)


def test_eagle_waits_for_missing_states() -> None:
    drafter = EagleDrafter(make(Eagle(SHAPE)), GREEDY)
    assert not drafter.propose(Context((1, 2, 3), 3), 4, coins(0), None)
    assert not drafter.propose(Context((1, 2, 3, 4), 3), 4, coins(0), torch.randn(1, 3, SHAPE.dim))


def test_sampled_drafts_report_the_law_they_were_drawn_from() -> None:
    ready = make(Eagle(SHAPE))
    drafter = EagleDrafter(ready, (Temperature(0.7),))
    draft = drafter.propose(Context((1, 2, 3, 4), 3), 3, coins(5), torch.randn(3, 3, SHAPE.dim))
    assert draft.q.shape == (3, VOCAB)
    torch.testing.assert_close(draft.q.sum(-1).double(), torch.ones(3).double())
    outside = torch.ones(VOCAB, dtype=torch.bool)
    outside[ready.vocabulary] = False
    assert draft.q[:, outside].sum() == 0
    assert all(draft.q[i, t] > 0 for i, t in enumerate(draft.tokens))


def test_medusa_levels_do_not_know_each_other() -> None:
    """Drawing another token at the first level, by another coin, changes no later law."""
    ready = make(Medusa(Shape(**{**SHAPE.as_dict(), "layers": 2, "taps": (4,)})))
    hidden = torch.randn(3, 1, SHAPE.dim)
    drafter, context = MedusaDrafter(ready, (Temperature(50.0),)), Context((1, 2), 2)
    one, two = (drafter.propose(context, 4, coins(seed), hidden) for seed in (1, 2))
    assert one.tokens != two.tokens
    torch.testing.assert_close(one.q, two.q)


def test_tiny_sessions_score_as_training_does() -> None:
    ready = make(TinyLM(Shape(**{**SHAPE.as_dict(), "layers": 2})))
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (9,)).tolist()
    session = TinyModel(ready, 64).session(tokens[:4])
    scores = session.score(Draft(tuple(tokens[4:6]), (-1, 0)))
    session.commit((0, 1), tokens[6])
    session.score(Draft((5, 6, 7), (-1, -1, 1)))
    session.commit((1,), tokens[8])
    tokens[7] = 6
    last = session.score(Draft()).logits
    states = ready.module(ready.embed(tokens)[None], torch.arange(9))[0]
    torch.testing.assert_close(last[0], ready.logits(states)[8], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scores.logits, ready.logits(states)[3:6], atol=1e-4, rtol=1e-4)
    choice = ready.logits(states)[:, ready.vocabulary].argmax(-1)
    batch = batch_of(torch.tensor(tokens), torch.zeros(9, 4, SHAPE.dim), choice)
    assert tiny_loss(ready.module, batch, ready.embedding, ready.head).hits == [8]


def test_tiny_is_a_draft_model() -> None:
    model = TinyModel(make(TinyLM(Shape(**{**SHAPE.as_dict(), "layers": 2}))), 64)
    drafter = DraftModel(model.session((1, 2, 3)), GREEDY, "tiny")
    first = drafter.propose(Context((1, 2, 3), 3), 4, coins(0))
    rows = drafter.sync((1, 2, 3, first.tokens[0], 9))
    assert rows.missing >= 0
    fresh = DraftModel(model.session((1, 2, 3, first.tokens[0], 9)), GREEDY, "tiny")
    context = Context((1, 2, 3, first.tokens[0], 9), 3)
    assert drafter.propose(context, 3, coins(0)).tokens == fresh.propose(context, 3, coins(0)).tokens


def test_combination_copies_when_two_tokens_match_and_keeps_eagle_informed() -> None:
    ready = make(Eagle(SHAPE))
    drafter = ngram_or_eagle(EagleDrafter(ready, GREEDY))
    tokens, features = (7, 8, 9, 7, 8, 5), torch.randn(6, 3, SHAPE.dim)
    copied = drafter.propose(Context(tokens[:5], 3), 2, coins(0), features[:4])
    assert copied.tokens == (9, 7)
    assert copied.q is None
    drafter.sync(tokens)
    drafted = drafter.propose(Context(tokens, 3), 2, coins(0), features[4:5])
    alone = EagleDrafter(ready, GREEDY).propose(Context(tokens, 3), 2, coins(0), features[:5])
    assert drafted.tokens == alone.tokens


def test_weights_survive_the_disk_and_are_refused_elsewhere(tmp_path: Path) -> None:
    ready, path = make(Eagle(SHAPE)), tmp_path / "eagle3.safetensors"
    trained.save(path, "eagle3", ready.module, ready.vocabulary, ready.embedding, {"target": "a"})
    again = trained.load(path, ready.embedding, ready.embedding)
    assert torch.equal(again.vocabulary, ready.vocabulary)
    torch.testing.assert_close(again.module.fusion.weight, ready.module.fusion.weight, atol=0.02, rtol=0.02)
    trained.load(path, ready.embedding + 0.01 * torch.randn(VOCAB, SHAPE.dim), ready.embedding)  # rounded or quantised
    other = torch.randn(VOCAB, SHAPE.dim)
    with pytest.raises(trained.Unfit, match="another target"):
        trained.load(path, other, other)
    with pytest.raises(trained.Unfit, match="41 of width"):
        trained.load(path, torch.randn(41, SHAPE.dim), other)


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "foreign", "incomplete"])
def test_damaged_weights_are_refused_in_a_sentence(tmp_path: Path, damage: str) -> None:
    ready, path = make(Eagle(SHAPE)), tmp_path / "eagle3.safetensors"
    trained.save(path, "eagle3", ready.module, ready.vocabulary, ready.embedding, {})
    if damage == "missing":
        path.unlink()
    elif damage in ("truncated", "empty"):
        path.write_bytes(path.read_bytes()[: 1000 if damage == "truncated" else 0])
    elif damage == "foreign":
        save_file({"a": torch.zeros(2)}, path)
    else:
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        del tensors["entry.weight"]
        save_file(tensors, path, metadata)
    with pytest.raises(trained.Unfit, match=r"eagle3\.safetensors.*[.]$"):
        trained.load(path, ready.embedding, ready.embedding)
