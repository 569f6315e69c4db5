"""The whole pipeline on a tiny random target: it learns, survives being killed, and its figures are the loop's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from models import trained
from models.hf import HFModel
from models.training import __main__ as cli
from models.training.batches import Shards
from models.training.corpus import REPLY, load_corpus
from models.training.evaluate import Item, evaluate, load_items, simulate
from models.training.features import finished_shards, read_meta
from models.training.report import from_checkpoint, makers
from models.training.target import parts
from models.training.teacher import choose_vocabulary
from models.training.train import Plan, Run
from playground.engine.decode import speculate
from playground.engine.drafters import Drafter, NoDrafter
from playground.engine.length import Fixed
from playground.engine.sampling import coins
from playground.engine.stop import Stop
from playground.engine.trace import Pass
from playground.engine.tree import Draft
from playground.engine.verify import verify_greedy

STEPS = {"eagle3": 100, "eagle": 60, "mtp": 60, "eagle3_blind": 60, "medusa": 60, "tiny": 100}


@pytest.fixture(scope="module")
def work(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")

    def command(name: str, *more: str) -> None:
        cli.main(["--work", str(folder), "--name", "tiny-random", name, "--target", str(target_folder), *more])

    command("data", "--chunks", "2", "--chunk-size", "32", "--limit", "96")
    command("features", "--shard-size", "8")
    command("heldout", "--max-new", "32")
    for name in STEPS:
        sizes = ["--drafter", name, "--vocabulary", "200", "--layers", "2" if name == "tiny" else "1"]
        command("train", *sizes, "--steps", "0", "--run-name", f"untrained-{name}")
        command("train", *sizes, "--steps", str(STEPS[name]), "--sequences", "8", "--lr", "4e-3")
    return folder


@pytest.fixture(scope="module")
def model(target_folder: Path):
    return cli.load_target(str(target_folder))


def kept(work: Path, model) -> list[int]:
    return [*read_meta(work / "features").taps, model[0].config.num_hidden_layers]


class Unigram:
    """Always the commonest token of the replies."""

    name, taps = "unigram", ()

    def __init__(self, token: int) -> None:
        self.token = token

    def propose(self, context, k, coin, hidden=None) -> Draft:
        return Draft.chain([self.token] * k)

    def sync(self, tokens) -> None:
        return None


@pytest.mark.parametrize("name", STEPS)
def test_training_beats_no_training_and_a_unigram(work: Path, model, name: str) -> None:
    target, items = parts(model[0], "tiny-random"), load_items(work / "heldout.npz")
    corpus = load_corpus(work / "corpus.npz")
    commonest = Counter(corpus.tokens[corpus.role == REPLY].tolist()).most_common(1)[0][0]

    def length(make) -> float:
        return evaluate(make, items, 4, kept(work, model))["mean_acceptance_length"]

    ready, untrained = (from_checkpoint(work / "runs" / run, target) for run in (name, f"untrained-{name}"))
    after, before = (length(makers({name: weights})[name]) for weights in (ready, untrained))
    assert after > before
    assert after > length(lambda item: Unigram(commonest))


@pytest.mark.parametrize("name", [*STEPS, "combination", "ngram"])
def test_simulated_acceptance_is_the_loops(work: Path, model, name: str) -> None:
    """The real loop, with the session's hidden states: plain decoding's reply, the simulation's acceptance."""
    target, items = parts(model[0], "tiny-random"), load_items(work / "heldout.npz")
    weights = {n: from_checkpoint(work / "runs" / n, target) for n in STEPS}
    make, host = makers(weights)[name], HFModel("tiny-random", *model)
    for item in items[:3]:
        drafter = make(item)
        simulated = simulate(make(item), item, 4, [kept(work, model).index(tap) for tap in drafter.taps])
        plain, passes = _decode(host, item, NoDrafter()), _decode(host, item, drafter)
        assert _reply(passes) == _reply(plain) == item.reply
        assert not any(p.note for p in passes)
        assert sum(p.num_verified for p in passes) == sum(simulated.accepted)


def _decode(host: HFModel, item: Item, drafter: Drafter) -> list[Pass]:
    session, stop = host.session(item.prompt, drafter.taps), Stop(host.eos_ids)
    arguments = {"rule": verify_greedy, "length": Fixed(4), "coin": coins(0), "max_new_tokens": len(item.reply)}
    return list(speculate(session, drafter, stop=stop, **arguments))


def _reply(passes: list[Pass]) -> tuple[int, ...]:
    return tuple(o.token for p in passes for o in p.outputs)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(work: Path, model, tmp_path: Path) -> None:
    target, corpus = parts(model[0], "tiny-random"), load_corpus(work / "corpus.npz")
    vocabulary = choose_vocabulary(corpus, 8, 200)

    def fresh(folder: Path) -> Run:
        head = target.head[vocabulary].contiguous()
        shards = Shards(corpus, work / "features", tmp_path / "laws", vocabulary, head)
        return Run(Plan("eagle3", steps=6, sequences=4), target, shards, folder)

    whole = fresh(tmp_path / "whole")
    for _ in range(6):
        whole.advance()
    killed = fresh(tmp_path / "killed")
    for _ in range(3):
        killed.advance()
    killed.save()
    killed.advance()  # lost
    again = fresh(tmp_path / "killed")
    again.run()
    assert again.step == 6
    for a, b in zip(whole.average.parameters(), again.average.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_features_resume_at_the_missing_shard(work: Path, target_folder: Path) -> None:
    folder = work / "features"
    everything = {i: np.load(folder / f"{i:05d}.npy") for i in finished_shards(folder)}
    (folder / "00003.npy").unlink()
    (folder / "partial-0.tmp").write_bytes(b"half a shard")
    cli.main(
        ["--work", str(work), "--name", "tiny-random", "features", "--target", str(target_folder), "--shard-size", "8"]
    )
    assert finished_shards(folder) == sorted(everything)
    np.testing.assert_allclose(np.load(folder / "00003.npy"), everything[3], atol=1e-2)


def test_validation_shard_is_neither_trained_on_nor_counted(work: Path) -> None:
    corpus = load_corpus(work / "corpus.npz")
    saved = torch.load(work / "runs" / "eagle3" / "checkpoint.pt", weights_only=True)
    assert not set(corpus.shard(0, 8)) & set(saved["visits"])


def test_other_features_are_refused(work: Path, target_folder: Path) -> None:
    with pytest.raises(ValueError, match="other features"):
        cli.main(
            ["--work", str(work), "--name", "else", "features", "--target", str(target_folder), "--shard-size", "8"]
        )


def test_export_says_where_the_weights_come_from(work: Path, target_folder: Path, model, tmp_path: Path) -> None:
    cli.main(["--work", str(work), "evaluate", "--target", str(target_folder), "--export", str(tmp_path)])
    table, head = model[0].get_input_embeddings().weight, model[0].get_output_embeddings().weight
    for name in STEPS:
        trained.load(tmp_path / f"{name}.safetensors", table, head)
        text = (tmp_path / f"{name}.json").read_text()
        for key in ("token_visits", "corpus", "evaluate", "seed", "by_class"):
            assert key in text


def test_recorded_figures_come_out_again_in_an_empty_folder(work: Path, target_folder: Path, tmp_path: Path) -> None:
    target = ["--target", str(target_folder)]
    cli.main(["--work", str(work), "evaluate", *target, "--drafters", "eagle3", "--export", str(tmp_path)])
    again = ["--weights", str(tmp_path), "--drafters", "eagle3", "--max-new", "32", "--json", str(tmp_path / "again")]
    cli.main(["--work", str(tmp_path / "work"), "evaluate", *target, *again])
    recorded = json.loads((tmp_path / "eagle3.json").read_text())["heldout"]["eagle3"]
    assert json.loads((tmp_path / "again").read_text())["eagle3"] == recorded
