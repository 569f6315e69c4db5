"""The same target in other numerics: its linear layers or its KV cache replaced, everything else shared with it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator
from functools import cache

import torch
from torch import Tensor, nn

from models.fp8 import SCALE_BYTES, STATIC_SCALE, FP8KVModel, FP8Linear, choose_matmul, first_line, num_bytes, to_fp8
from models.hf import HFModel
from models.linear import faster_linears
from playground.engine.precision import E4M3_MAX, NUMERICS, Numerics, Variant, e4m3
from playground.engine.progress import Progress

PROBE_ROWS, PROBE_IN, PROBE_OUT = 5, 64, 32
ALLOWED = {"fp8": 0.1, "int8": 0.05, "nf4": 0.25}  # relative error of a probe with normal weights


def to_int8(linear: nn.Linear) -> nn.Module:
    """bitsandbytes' LLM.int8() layer: a scale per row on both sides, columns with outliers apart in 16 bit."""
    import bitsandbytes as bnb

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells about each cast to 16 bit
    made = bnb.nn.Linear8bitLt(
        linear.in_features, linear.out_features, linear.bias is not None, has_fp16_weights=False, threshold=6.0
    )
    made.weight = bnb.nn.Int8Params(linear.weight.detach().clone(), requires_grad=False, has_fp16_weights=False)
    if linear.bias is not None:
        made.bias = linear.bias
    made = made.to(linear.weight.device).eval()
    made.weight_bytes = linear.weight.numel() + linear.out_features * SCALE_BYTES + num_bytes([linear.bias])
    return made


def to_nf4(linear: nn.Linear) -> nn.Module:
    """NF4 codes of bitsandbytes, unpacked by it once instead of in every pass: the same products."""
    import bitsandbytes as bnb

    weight = linear.weight.detach()
    codes, state = bnb.functional.quantize_4bit(weight.contiguous(), quant_type="nf4", compress_statistics=True)
    made = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    made.weight = nn.Parameter(bnb.functional.dequantize_4bit(codes, state).to(weight.dtype), requires_grad=False)
    made.bias = linear.bias
    inner = state.state2
    made.weight_bytes = num_bytes([codes, state.absmax, inner.absmax, inner.code, state.offset, linear.bias])
    return made


CONVERT: dict[str, Callable[[nn.Linear], nn.Module]] = {"fp8": to_fp8, "int8": to_int8, "nf4": to_nf4}
NAMES = {"fp8": "FP8", "int8": "INT8", "nf4": "NF4"}


def convert(base: HFModel, weights: str) -> Generator[Progress, None, HFModel]:
    """``base`` with every linear layer but the output head in the format ``weights``; all else is shared."""
    made = twin(base)
    head, device = made.model.get_output_embeddings(), made.device.type
    found = [
        (parent, name, part)
        for parent in made.model.modules()
        for name, part in parent.named_children()
        if isinstance(part, nn.Linear) and part is not head
    ]
    for i, (parent, name, part) in enumerate(found):
        yield Progress(f"Converting {base.name} to {NAMES[weights]}", i / len(found))
        setattr(parent, name, CONVERT[weights](part))
    if device == "cpu":
        faster_linears(made.model)
    return made


def twin(base: HFModel) -> HFModel:
    """A model of its own on the same tensors: its parts can be replaced without touching ``base``."""
    made = copy.copy(base)
    tensors = [*base.model.parameters(), *base.model.buffers(), *_codes(base.model)]
    made.model = copy.deepcopy(base.model, {id(tensor): tensor for tensor in tensors})
    return made


def _codes(model: nn.Module) -> list[Tensor]:
    return [t for part in model.modules() if isinstance(part, FP8Linear) for t in (part.codes, part.scale)]


# --- Variants ---------------------------------------------------------------------------------------------------------


def derive(model: HFModel, numerics: Numerics) -> Variant:
    """The variant on weights that are already in their format: activations and KV cache are set here."""
    made = twin(model) if numerics.activations else copy.copy(model)
    for part in made.model.modules() if numerics.activations else ():
        if isinstance(part, FP8Linear):
            part.activations = numerics.activations
    if numerics.kv:
        made.__class__, made.kv = FP8KVModel, numerics.kv
    made.name = f"{model.name} in {numerics.name}"
    return Variant(numerics, made, "", _how(made, numerics), weight_bytes(made.model), kv_bytes(made, numerics))


def _how(model: HFModel, numerics: Numerics) -> str:
    around = f"Everything else in {model.dtype_name}."
    if numerics.kv:
        kinds = {
            "static": f"Keys and values are rounded to E4M3 under the scale {STATIC_SCALE:g} when they are written.",
            "running": "Keys and values are rounded to E4M3 under the largest entry written so far, row by row.",
            "window": "As with a fixed scale, but a pass reads its own rows before they are rounded.",
        }
        return f"{kinds[numerics.kv]} {around}"
    if numerics.activations:
        return f"{choose_matmul(str(model.device)).why} {around}"
    kinds = {
        "fp32": "As loaded.",
        "bf16": "As loaded.",
        "fp8": f"Weights of linear layers in E4M3, a scale per output channel. {around}",
        "int8": f"LLM.int8() layers of bitsandbytes: columns with an entry of 6 or more apart in 16 bit. {around}",
        "nf4": f"Codes of bitsandbytes, unpacked once by bitsandbytes. {around}",
    }
    return kinds[numerics.weights]


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the weights in their format, tensors that stand twice counted once."""
    made = [part for part in model.modules() if hasattr(part, "weight_bytes")]
    inside = {id(p) for part in made for p in part.parameters()}
    others = {p.data_ptr(): p for p in model.parameters() if id(p) not in inside}
    return sum(part.weight_bytes for part in made) + num_bytes(others.values())


def held_bytes(model: HFModel, base: HFModel) -> int:
    """Bytes of the tensors that ``model`` has and ``base`` has not."""
    shared = {t.data_ptr() for t in _tensors(base.model)}
    return num_bytes({t.data_ptr(): t for t in _tensors(model.model) if t.data_ptr() not in shared}.values())


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers(), *_codes(model)]


def kv_bytes(model: HFModel, numerics: Numerics) -> int:
    """Bytes of one token's keys and values in all layers, and of the scale that a row of a running maximum needs."""
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    entry = 1 if numerics.kv else torch.finfo(model.dtype).bits // 8
    scales = 2 * SCALE_BYTES if numerics.kv == "running" else 0
    return model.num_layers * (2 * heads * dim * entry + scales)


# --- Probe ------------------------------------------------------------------------------------------------------------


@cache
def probe(name: str, device: str) -> str:
    """Why the numerics ``name`` cannot run on ``device``, found by trying a small layer; nothing where it can."""
    numerics = NUMERICS[name]
    try:
        if numerics.kv or numerics.weights == "fp8":
            _try_grid(device)
        if numerics.weights in CONVERT:
            return _try_layer(numerics, device)
        if numerics.weights == "bf16":
            torch.ones(2, 2, dtype=torch.bfloat16, device=device) @ torch.ones(
                2, 2, dtype=torch.bfloat16, device=device
            )
    except Exception as error:  # a missing package, a missing kernel, a library that does not load
        return f"{NAMES.get(numerics.weights, numerics.title)} does not run here: {first_line(error)}."
    return ""


def _try_grid(device: str) -> None:
    x = torch.tensor([0.3, 1000.0, 0.0], device=device)
    if e4m3(x).tolist() != [0.3125, E4M3_MAX, 0.0]:
        raise ValueError("casts to float8 come out wrong")


def _try_layer(numerics: Numerics, device: str) -> str:
    torch.manual_seed(0)
    layer = nn.Linear(PROBE_IN, PROBE_OUT, bias=False, device=device)
    x = torch.randn(PROBE_ROWS, PROBE_IN, device=device)
    made = CONVERT[numerics.weights](layer)
    if numerics.activations:
        made.activations = numerics.activations
    with torch.inference_mode():
        want = layer(x)
        error = ((made(x) - want).norm() / want.norm()).item()
    if not error <= ALLOWED[numerics.weights]:
        return f"{NAMES[numerics.weights]} comes out wrong on a small layer here: relative error {error:.2g}."
    return ""
