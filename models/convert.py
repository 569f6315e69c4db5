"""From a GGUF file of the Llama architecture to a folder that transformers loads: each tensor dequantised once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from playground.engine.progress import Progress

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # GGUF's token type of special tokens


def convert(gguf: Path, folder: Path) -> Iterator[Progress]:
    """Write ``folder`` (weights in fp32, so that nothing is lost, tokenizer, chat template) from the file ``gguf``.

    Raises ``ValueError`` for another architecture, another kind of tokenizer, or a damaged file.
    """
    yield Progress("Reading the model file", 0.0)
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or fields.get("tokenizer.ggml.model") != "gpt2":
        raise ValueError(f"{gguf.name} is not a Llama model with a byte-level tokenizer.")
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, np.ndarray] = {}
    for i, tensor in enumerate(reader.tensors):
        yield Progress(f"Unpacking weights, {i} of {len(reader.tensors)} tensors", 0.9 * i / len(reader.tensors))
        weights[hf_name(tensor.name)] = _dequantise(tensor, fields)
    yield Progress("Writing the model", 0.9)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = llama_config(fields, is_tied="lm_head.weight" not in weights)
    special = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", special)
    write_tokenizer(fields, folder)


def hf_name(name: str) -> str:
    """
    >>> hf_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    *block, part, kind = name.split(".")
    return ".".join(["model.layers", block[1], NAMES[part], kind] if block else [NAMES[part], kind])


def _dequantise(tensor: Any, fields: dict[str, Any]) -> np.ndarray:
    weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    heads = fields["llama.attention.head_count"]
    if ".attn_q." in tensor.name:
        weight = unpermute(weight, heads)
    elif ".attn_k." in tensor.name:
        weight = unpermute(weight, fields.get("llama.attention.head_count_kv", heads))
    return np.ascontiguousarray(weight)


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a query or key projection back in transformers' order.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ..., transformers the pairs (i, i + head_dim / 2); the file's
    rows are interleaved for the former.
    """
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama_config(fields: dict[str, Any], is_tied: bool) -> dict[str, Any]:
    """The ``config.json`` of transformers."""
    llama = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    heads = llama["attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": llama.get("attention.head_count_kv", heads),
        "head_dim": llama.get("rope.dimension_count", llama["embedding_length"] // heads),
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": llama["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": llama.get("rope.freq_base", 10000.0)},
        "tie_word_embeddings": is_tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """``tokenizer.json`` with its settings and the chat template. Digits stand alone where the file says ``smollm``."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if fields.get("tokenizer.ggml.pre") == "smollm":
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), split])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    settings = {name: tokens[i] for name, i in ids.items() if i is not None}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", settings | {"model_max_length": fields["llama.context_length"]})
    if template := fields.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
