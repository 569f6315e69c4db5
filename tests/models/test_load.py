"""The loader: one cache, one load at a time, drafters by name, the table model."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models import load as loading
from models import teaching
from models.fetch import ModelUnavailable
from models.load import Models
from playground.engine.decode import speculate
from playground.engine.drafters import DraftModel, NGram, NoDrafter
from playground.engine.length import Fixed
from playground.engine.progress import Progress
from playground.engine.sampling import coins
from playground.engine.stop import Stop
from playground.engine.verify import verify_greedy
from tests.models.conftest import load


def finish(work: Iterator[Progress]) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def test_a_model_is_loaded_once(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models()
    first = load(str(folders["llama"]), models)
    assert load(str(folders["llama"]), models) is first
    monkeypatch.setattr(loading, "resolve", lambda dtype, device: ("fp32", "cpu"))
    assert finish(models.load(str(folders["llama"]), "auto", "auto")) is first
    assert load(str(folders["llama"]), Models()) is not first


def test_callers_at_the_same_time_share_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    go, calls = threading.Event(), []

    def slow(target: str, dtype: str, device: str) -> Iterator[Progress]:
        calls.append(target)
        yield Progress("slowly", 0.5)
        go.wait()
        return object()

    monkeypatch.setattr(loading, "load_model", slow)
    models = Models()
    one, two, other = models.load("a/b"), models.load("a/b"), models.load("c/d")
    assert [next(work).text for work in (one, two)] == ["slowly", "slowly"]
    assert next(other).text == "Waiting for another model to load"
    one.close()  # a visitor who leaves does not stop the load
    go.set()
    assert finish(two) is finish(models.load("a/b"))
    assert finish(other) is not None
    assert calls == ["a/b", "c/d"]


def test_a_load_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def flaky(*key: str) -> Iterator[Progress]:
        tries.append(key)
        yield Progress("trying")
        if len(tries) == 1:
            raise ModelUnavailable("No network.")
        return "model"

    monkeypatch.setattr(loading, "load_model", flaky)
    models = Models()
    with pytest.raises(ModelUnavailable, match="No network"):
        finish(models.load("a/b"))
    assert finish(models.load("a/b")) == "model"


def test_only_the_models_used_last_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(target: str, *rest: str) -> Iterator[Progress]:
        yield Progress("quickly")
        return object()

    monkeypatch.setattr(loading, "load_model", quick)
    models = Models()
    first = finish(models.load("a/0"))
    for i in range(1, loading.MAX_LOADED):
        finish(models.load(f"a/{i}"))
    assert finish(models.load("a/0")) is first
    finish(models.load("a/new"))  # a/1 goes
    assert finish(models.load("a/0")) is first
    assert len(models._jobs) == loading.MAX_LOADED


@pytest.mark.parametrize("target", ["", " ", "nonsense", "a/b/c", "../x/y", "\x00"])
def test_an_unknown_name_gets_the_list_of_names(target: str) -> None:
    with pytest.raises(ModelUnavailable, match=r"there are default, table, .*hub ids and folders"):
        finish(Models().load(target))


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(loading.urllib.request, "getproxies", dict)
    with pytest.raises(ModelUnavailable, match="nobody/nothing cannot be had from the hub") as error:
        finish(Models().load("nobody/nothing"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("dtype", "device"), [("int3", "cpu"), ("fp32", "tpu")])
def test_wrong_dtypes_and_devices_are_named(folders, dtype: str, device: str) -> None:
    with pytest.raises(ValueError, match="dtype is one of auto, fp32, bf16"):
        finish(Models().load(str(folders["llama"]), dtype, device))


def test_bf16_is_what_the_processor_says(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, kind in (({"avx512_bf16": True}, "bf16"), ({"amx_bf16": False}, "fp32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: flags, raising=False)
        assert loading.resolve("auto", "cpu") == (kind, "cpu")
    monkeypatch.undo()
    model = finish(Models().load(str(folders["llama"]), "bf16", "cpu"))
    assert model.provenance()["dtype"] == "bf16"


def test_drafters_by_name(llama, folders) -> None:
    models, prompt = Models(), [5, 6, 7]
    assert isinstance(finish(models.drafter("none", llama, prompt)), NoDrafter)
    ngram = finish(models.drafter("ngram", llama, prompt, longest=2))
    assert isinstance(ngram, NGram)
    assert (ngram.longest, ngram.eos_ids) == (2, llama.eos_ids)
    skip = finish(models.drafter("layer_skip", llama, prompt, draft_layers=1))
    assert skip.session.model.num_layers == 1
    other = finish(models.drafter(str(folders["qwen3"]), llama, prompt))
    assert isinstance(other, DraftModel)
    with pytest.raises(ValueError, match="choose one of the list"):
        finish(models.drafter("psychic", llama, prompt))
    with pytest.raises(ValueError, match="give its draft model"):
        finish(models.drafter("model", llama, prompt))


def test_every_pair_names_its_draft_model() -> None:
    for pair in loading.pairs():
        assert loading.pair_of(pair["name"]) == loading.pair_of(pair["target"]) == pair
        assert pair["draft_model"]


def test_the_table_model_needs_no_download_and_drafts_for_itself() -> None:
    models = Models()
    target = finish(models.load("table"))
    prompt = target.encode("the cat sees")
    assert target.decode(prompt) == " the cat sees"
    runs = {}
    for name in ("none", "ngram", "layer_skip", "model"):
        drafter = finish(models.drafter(name, target, prompt))
        options = {"rule": verify_greedy, "length": Fixed(3), "coin": coins(0), "stop": Stop(target.eos_ids)}
        runs[name] = list(speculate(target.session(prompt), drafter, max_new_tokens=24, **options))
    outputs = {name: [o.token for step in steps for o in step.outputs] for name, steps in runs.items()}
    assert outputs["ngram"] == outputs["layer_skip"] == outputs["model"] == outputs["none"]
    drafted = sum(len(step.nodes) for step in runs["model"])
    accepted = sum(step.num_accepted for step in runs["model"])
    assert 0.3 < accepted / drafted < 1  # worth drafting, and not perfect


def test_the_laws_of_the_table_model_are_laws() -> None:
    num = len(teaching.WORDS)
    for before in (None, *range(num)):
        for last in (None, *range(num)):
            for law in (teaching.law, teaching.small_law):
                p = law((before, last))
                assert p.min() > 0
                assert float(p.sum()) == pytest.approx(1)
                best = p.topk(2).values
                assert best[0] > best[1]  # no ties


@pytest.mark.parametrize("name", ["~nobodyhere", "/" + "x" * 300, "/nonexistent", "./nowhere"])
def test_a_folder_that_is_not_there_gets_a_sentence(name: str) -> None:
    with pytest.raises(ModelUnavailable, match="There is no model"):
        load(name)


def test_loads_that_fail_hold_no_place() -> None:
    models = Models()
    for i in range(6):
        with pytest.raises(ModelUnavailable):
            load(f"/nonexistent{i}", models)
    assert len(models._jobs) <= 1
