"""Whether a model can serve as a target: found by trying it, not by a list of names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from playground.engine.tree import ROOT, Draft

if TYPE_CHECKING:
    from models.hf import HFModel


class Unsuitable(ValueError):
    """This model cannot score draft trees or give rows back; the message says why."""


@torch.inference_mode()
def layer_windows(model: Any) -> tuple[int | None, ...]:
    """For each layer how many rows back it sees, ``None`` for all, read off the cache that the model makes for itself.

    Raises ``Unsuitable`` for layers that keep something else than rows of keys and values.
    """
    kind = model.config.model_type
    try:
        out = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True)
    except Exception as error:
        raise Unsuitable(f"This {kind} model fails on a single token: {_first_line(error)}.") from error
    layers = getattr(getattr(out, "cache", None), "layers", None)
    if layers is None:
        raise Unsuitable(f"This {kind} model keeps no rows of keys and values: rejected tokens cannot be taken back.")
    for i, layer in enumerate(layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise Unsuitable(
                f"Layer {i + 1} of this {kind} model keeps a state ({type(layer).__name__}) from which rejected tokens "
                "cannot be taken back; choose a model with attention over rows of keys and values in every layer."
            )
    others = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if others:
        raise Unsuitable(f"This {kind} model has layers of {', '.join(sorted(others))}, which take no tree mask.")
    return tuple(layer.sliding_window if layer.is_sliding else None for layer in layers)


def check_trees(model: HFModel) -> None:
    """Score two siblings, keep the second, go on, and compare with plain passes over the same tokens.

    Raises ``Unsuitable`` when the model fails or the laws differ: its attention does not follow a tree mask.
    """
    a, b, c, d = range(4)
    try:
        tree = model.session([a])
        side = tree.score(Draft((b, c), (ROOT, ROOT))).logits[2]
        tree.commit((1,), d)
        after = tree.score(Draft()).logits[0]
        plain = [model.session(tokens).score(Draft()).logits[0] for tokens in ([a, c], [a, c, d])]
    except Exception as error:
        kind = model.config.model_type
        raise Unsuitable(f"This {kind} model cannot score a draft tree: {_first_line(error)}.") from error
    allowed = 0.02 if model.dtype == torch.float32 else 0.5  # of a standard deviation of the logits
    for got, want in zip((side, after), plain, strict=True):
        known = want.isfinite()
        if not (got[known] - want[known]).abs().max() <= allowed * want[known].std():
            raise Unsuitable(f"This {model.config.model_type} model does not follow a tree mask: siblings mix.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
