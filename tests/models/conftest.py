"""Small random models of three families, saved to a folder with a tokenizer of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from models.hf import HFModel
from models.load import Models
from models.tokens import byte_alphabet

END = "<|end|>"
SIZES = {
    "vocab_size": 320,  # wider than the tokenizer
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.5,  # sharp enough that laws differ from row to row
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 2),
}


def make_tokenizer(words: tuple[str, ...] = ("he", "ll", "hell", "hello", "Ġt", "Ġth")) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: the end token, the 256 bytes, a few merges."""
    vocab = {END: 0, **{char: 1 + i for i, char in enumerate(byte_alphabet())}}
    merges = []
    for word in words:
        left = next(word[:i] for i in range(len(word) - 1, 0, -1) if word[:i] in vocab and word[i:] in vocab)
        merges.append((left, word.removeprefix(left)))
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def save_model(folder: Path, config: PreTrainedConfig, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def load(name: str, models: Models | None = None) -> HFModel:
    """Load to the end, progress dropped."""
    loading = (models or Models()).load(name, "fp32", "cpu")
    while True:
        try:
            next(loading)
        except StopIteration as stop:
            return stop.value


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """The models made here are tiny: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if request.node.get_closest_marker("default_model") else 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {kind: save_model(home / kind, config) for kind, config in CONFIGS.items()}


@pytest.fixture(scope="session", params=CONFIGS)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> HFModel:
    return load(str(folders[request.param]))


@pytest.fixture(scope="session")
def llama(folders: dict[str, Path]) -> HFModel:
    return load(str(folders["llama"]))
