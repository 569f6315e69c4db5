"""Draft lengths by batch in the form that serving engines read."""

from __future__ import annotations

import json
from collections.abc import Sequence

Bucket = tuple[int, int, int]  # (first batch, last batch, k)

# What each engine calls the drafter; a name that is missing is one it does not have, or not with a length per batch.
VLLM = {"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "mtp": "mtp", "ngram": "ngram"}
SGLANG = {"eagle": "EAGLE", "eagle3": "EAGLE3"}


def vllm(drafter: str, buckets: Sequence[Bucket]) -> str:
    """The value of ``--speculative-config``: rows of ``num_speculative_tokens_per_batch_size`` are first, last, k.

    ``model`` is left for the reader to fill in where a drafter has weights of its own.
    """
    method = VLLM.get(drafter, "draft_model")
    config: dict[str, object] = {"method": method}
    if method not in ("ngram", "mtp"):
        config["model"] = "YOUR_DRAFTER" if drafter in VLLM else drafter
    longest = max((k for *_, k in buckets), default=0)
    rows = ",\n    ".join(json.dumps(bucket) for bucket in buckets)
    head = json.dumps({**config, "num_speculative_tokens": longest}, indent=2)[:-2]
    return f'{head},\n  "num_speculative_tokens_per_batch_size": [\n    {rows}\n  ]\n}}'


def sglang(drafter: str, buckets: Sequence[Bucket]) -> str | None:
    """The file for ``--speculative-adaptive-config``: the first batch of a range to the lengths it may use.

    ``None`` for drafters with which SGLang has no length per batch.
    """
    if drafter not in SGLANG:
        return None
    rows = [f'  "{first}": {json.dumps({"candidate_steps": [k]})}' for first, _, k in buckets]
    return "{\n" + ",\n".join(rows) + "\n}"


def sglang_flags(drafter: str, buckets: Sequence[Bucket]) -> str:
    """The command-line flags beside that file."""
    k = next((k for *_, k in buckets if k), 1)
    flags = (
        f"--speculative-algorithm {SGLANG[drafter]}",
        "--speculative-draft-model-path YOUR_DRAFTER",
        "--speculative-eagle-topk 1",
        f"--speculative-num-steps {k}",
        f"--speculative-num-draft-tokens {k + 1}",
        "--speculative-adaptive",
        "--speculative-adaptive-config adaptive.json",
    )
    return " \\\n".join(flags)


def runs(buckets: Sequence[Bucket]) -> list[Bucket]:
    """``buckets`` without gaps: each range ends where the next one starts.

    >>> runs([(1, 4, 3), (8, 16, 1)])
    [(1, 7, 3), (8, 16, 1)]
    """
    ends = [first - 1 for first, *_ in buckets[1:]] + [last for _, last, _ in buckets[-1:]]
    return [(first, end, k) for (first, _, k), end in zip(buckets, ends, strict=True)]
