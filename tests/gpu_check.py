"""What only a GPU can show. Run it by hand on a CUDA machine: ``python tests/gpu_check.py``; exits with 1 on a failure.

It checks on the default model that trees are scored as their paths are, that greedy speculation in fp32 equals plain
decoding and transformers' own, and prints the time of a pass in each dtype.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.load import Models
from playground.bench import PROMPTS, finish, ours, theirs
from playground.engine.drafters import DraftModel, NGram, NoDrafter
from playground.engine.tree import ROOT, Draft

TREE = Draft((11, 12, 13, 14, 15), (ROOT, 0, 0, ROOT, 3))


def check_tree(model: object, tolerance: float) -> str | None:
    """Each node's logits against the same path scored alone."""
    prompt = model.chat(PROMPTS[0])
    whole = model.session(prompt).score(TREE).logits.double()
    for node in range(len(TREE)):
        alone = model.session([*prompt, *TREE.path_tokens(node)]).score(Draft()).logits[0].double()
        gap = (whole[node + 1] - alone).abs().max().item()
        if not gap <= tolerance:
            return f"node {node} is off by {gap:.2g} (allowed {tolerance:g})"
    return None


def check_greedy(model: object, num_tokens: int = 48) -> str | None:
    """Speculative output against plain output and transformers' own, in fp32."""
    for text in PROMPTS:
        prompt = model.chat(text)
        plain, _, _ = ours(model, NoDrafter(), prompt, num_tokens, 0)
        if plain != theirs(model, prompt, num_tokens, eos_token_id=sorted(model.eos_ids))[0]:
            return f"plain output differs from transformers on {text!r}"
        small = model.layer_skip(8).session(prompt)
        for drafter in (NGram(), DraftModel(small, ())):
            for k in (1, 4, 8):
                if ours(model, drafter, prompt, num_tokens, k)[0] != plain:
                    return f"{drafter.name} with k = {k} differs from plain on {text!r}"
    return None


def pass_ms(model: object, num_tokens: int, repeats: int = 20) -> float:
    """Median milliseconds of a pass over ``num_tokens`` tokens behind a prompt."""
    session = model.session(model.chat(PROMPTS[0]))
    draft = Draft.chain(range(100, 100 + num_tokens - 1))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        session.score(draft)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device here")
        return 1
    print(torch.cuda.get_device_name(), torch.__version__)
    torch.backends.cuda.matmul.allow_tf32 = False
    failures = 0
    for dtype, tolerance in (("fp32", 1e-2), ("bf16", 1.0)):
        model = finish(Models().load("default", dtype, "cuda"))
        checks = {"tree": check_tree(model, tolerance)}
        if dtype == "fp32":
            checks["greedy"] = check_greedy(model)
        for name, problem in checks.items():
            failures += problem is not None
            print(f"{dtype} {name}: {problem or 'ok'}")
        print(f"{dtype} pass:", ", ".join(f"{n} tokens {pass_ms(model, n):.2f} ms" for n in (1, 2, 5, 9, 17)))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
