"""Speculation in a batch: speed against plain decoding over batch and context, the best draft length, and who wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playground.engine.cost import Priced, expected_tokens, max_batch
from playground.engine.drafter_cost import Speculator

BATCHES = tuple(2**i for i in range(11))
MOST = 4096  # the largest batch that a flip is looked for at
PLAIN = "plain"
Floats = NDArray[np.float64]


def tokens_by_length(alpha: float, max_k: int) -> tuple[float, ...]:
    """Tokens per pass with 0, 1, ..., ``max_k`` drafts, each accepted with chance ``alpha``.

    >>> tokens_by_length(0.5, 2)
    (1.0, 1.5, 1.75)
    """
    return tuple(expected_tokens(alpha, k) for k in range(max_k + 1))


def tokens_from_hits(hits: Sequence[float]) -> tuple[float, ...]:
    """Tokens per pass by draft length when position i is accepted in the share ``hits[i]`` of all passes."""
    return tuple(1.0 + sum(hits[:k]) for k in range(len(hits) + 1))


@dataclass(frozen=True)
class Contender:
    """A way to draft: who drafts, and what a pass then puts out by draft length (``tokens[k]``).

    ``k`` is fixed, or ``None`` for the best one at every batch. A tree of depth k with ``num_nodes`` nodes is verified
    whole. ``drafter`` may be a number: the cost of one drafted token or tree level in plain passes.
    """

    name: str
    drafter: Speculator | float
    tokens: tuple[float, ...]
    k: int | None = None
    alpha: float | None = None
    num_nodes: int | None = None


def speed_of(served: Priced, contender: Contender, k: int, batch: Any, context: Any = 0) -> Any:
    """Tokens per second with draft length ``k`` against plain decoding. Exactly 1 at k = 0."""
    if k == 0:
        return np.ones(np.broadcast_shapes(np.shape(batch), np.shape(context))) if np.ndim(batch) else 1.0
    plain = served.time(batch, 1, context).total_s
    nodes = contender.num_nodes or k
    wide = served.time(batch, nodes + 1, context).total_s
    drafter = contender.drafter
    draft = drafter.seconds(served, batch, k, context) if isinstance(drafter, Speculator) else drafter * k * plain
    return contender.tokens[k] * plain / (wide + draft)


def speeds(served: Priced, contender: Contender, batch: Any, context: Any = 0) -> Any:
    """The speed at the contender's ``k``, or at the best one for each batch and context."""
    if contender.k is not None:
        return speed_of(served, contender, contender.k, batch, context)
    return np.max([speed_of(served, contender, k, batch, context) for k in range(len(contender.tokens))], axis=0)


@dataclass(frozen=True)
class Grid:
    """Speed against plain decoding, ``[contexts, batches, max_k + 1]``; NaN where it does not fit in memory."""

    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    speed: Floats
    plain_s: Floats  # [contexts, batches], seconds of a plain pass
    binding: NDArray[np.str_]  # [contexts, batches], of a plain pass
    fits: NDArray[np.bool_]  # [contexts, batches], plain decoding

    @property
    def best_k(self) -> NDArray[np.int64]:
        """``[contexts, batches]``; -1 where nothing fits. The shortest of equally fast lengths."""
        k = np.argmax(np.nan_to_num(self.speed, nan=-1.0), axis=-1)
        return np.where(self.fits, k, -1)


def grid(
    served: Priced, drafter: Speculator, alpha: float, contexts: Sequence[int], batches: Sequence[int], max_k: int
) -> Grid:
    """All draft lengths 0 .. ``max_k`` at every context and batch, in one sweep."""
    c = np.array(contexts, float)[:, None, None]
    b = np.array(batches, float)[None, :, None]
    k = np.arange(max_k + 1)[None, None, :]
    plain = served.time(b, 1, c)
    plain_s = plain.total_s
    tokens = np.array(tokens_by_length(alpha, max_k))
    speed = tokens * plain_s / (served.time(b, k + 1, c).total_s + drafter.seconds(served, b, k, c))
    fits = fitting(served, None, contexts, batches)
    with_drafter = fitting(served, drafter, contexts, batches)
    shape = (len(contexts), len(batches))
    speed = np.broadcast_to(speed, (*shape, max_k + 1)).copy()
    speed[..., 0] = 1.0
    speed[~fits] = np.nan
    speed[fits & ~with_drafter, 1:] = np.nan
    plain_s, binding = (np.broadcast_to(x, (*shape, 1))[..., 0] for x in (plain_s, plain.binding))
    return Grid(tuple(contexts), tuple(batches), speed, plain_s, binding, fits)


def fitting(
    served: Priced, drafter: Speculator | None, contexts: Sequence[int], batches: Sequence[int]
) -> NDArray[np.bool_]:
    """Whether ``[contexts, batches]`` fit in memory, with a drafter beside the model or without."""
    most = [most_sequences(served, context, drafter) for context in contexts]
    return np.array([[m is None or batch <= m for batch in batches] for m in most])


def most_sequences(served: Priced, context: float, drafter: Speculator | None = None) -> int | None:
    """The batch that memory allows; ``None`` when nothing bounds it."""
    return max_batch(
        served.shape,
        served.hardware,
        context,
        weight_bytes=served.weight_bytes,
        kv_bytes=served.kv_bytes,
        drafter_parameters=drafter.stored_parameters if drafter else 0,
        drafter_kv_values=drafter.kv_values_per_token if drafter else 0,
    )


def buckets(batches: Sequence[int], best_k: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of batches with one draft length as (first, last, k); what does not fit (-1) is left out.

    >>> buckets((1, 2, 3, 4), (3, 3, 1, -1))
    [(1, 2, 3), (3, 3, 1)]
    """
    found: list[tuple[int, int, int]] = []
    for batch, k in zip(batches, best_k, strict=True):
        if k < 0:
            continue
        if found and found[-1][2] == k:
            found[-1] = (found[-1][0], batch, int(k))
        else:
            found.append((batch, batch, int(k)))
    return found


def equal_alpha(
    served: Priced, drafter: Speculator, k: int, speed: float, batch: float = 1, context: int = 0
) -> float | None:
    """The acceptance at which ``drafter`` with ``k`` drafts reaches ``speed``; ``None`` if it never does."""

    def reached(alpha: float) -> float:
        return float(speed_of(served, Contender("", drafter, tokens_by_length(alpha, k), k), k, batch, context))

    if not reached(0.0) <= speed <= reached(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < speed else (low, middle)
    return high


# --- Who wins ---


def flips(
    served: Priced, contenders: Sequence[Contender], context: int = 0, most: int = MOST, with_plain: bool = True
) -> list[dict[str, Any]]:
    """Every batch from which another contender is the fastest: ``{batch, from, to, k, alpha, context}``, in order.

    ``from`` is ``None`` at the first batch. Plain decoding takes part unless told otherwise. Ties change nothing.
    """
    bound = most_sequences(served, context)
    last = most if bound is None else min(most, bound)
    if last < 1 or not contenders:
        return []
    names = [c.name for c in contenders] + [PLAIN] * with_plain
    batches = np.arange(1, last + 1, dtype=float)
    rows = [speeds(served, c, batches, context) for c in contenders] + [np.ones_like(batches)] * with_plain
    table = np.stack(rows)  # [contenders, batches]
    found, now = [], None
    for i, winner in enumerate(table.argmax(0)):
        if now is None or table[winner, i] > table[now, i] * (1 + 1e-9):
            if winner != now:
                pair = [contenders[w] for w in (winner, now) if w is not None and w < len(contenders)]
                before = None if now is None else names[now]
                found.append({"batch": i + 1, "from": before, "to": names[winner], **_of(pair), "context": context})
            now = winner
    return found


def _of(pair: Sequence[Contender]) -> dict[str, Any]:
    """The k and alpha that a flip depends on: the newcomer's, or where it has none those of the one before."""
    k = next((c.k for c in pair if c.k is not None), None)
    return {"k": k, "alpha": next((c.alpha for c in pair if c.alpha is not None), None)}


def priced(
    served: Priced,
    contenders: Sequence[Contender],
    context: int = 0,
    batches: Sequence[int] = BATCHES,
    with_plain: bool = True,
) -> dict[str, Any]:
    """What any lab says of its drafters on a served model; the numbers of one contender, or of several by name.

    ``draft_cost`` is one drafted token (or tree level) in plain passes at batch 1; ``speedup_by_batch`` is ``None``
    where the batch does not fit; ``flips`` as in ``flips``, the first winner left out.
    """
    one = len(contenders) == 1
    bound = most_sequences(served, context)
    fits = [bound is None or batch <= bound for batch in batches]
    cost = {c.name: _draft_cost(served, c, context) for c in contenders}
    by_batch: Mapping[str, dict[str, float | None]] = {
        c.name: {
            str(batch): float(speeds(served, c, float(batch), context)) if ok else None
            for batch, ok in zip(batches, fits, strict=True)
        }
        for c in contenders
    }
    found = flips(served, contenders, context, with_plain=with_plain)
    return {
        "target": served.shape.name,
        "hardware": served.hardware.name,
        "profile": served.profile.name,
        "context": context,
        "draft_cost": next(iter(cost.values())) if one else cost,
        "speedup_by_batch": next(iter(by_batch.values())) if one else by_batch,
        "first": found[0]["to"] if found else None,
        "flips": found[1:],
    }


def _draft_cost(served: Priced, contender: Contender, context: int) -> float:
    drafter = contender.drafter
    return float(drafter.token_cost(served, 1, context)) if isinstance(drafter, Speculator) else float(drafter)
