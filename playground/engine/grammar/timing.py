"""What a mask costs, measured here along one text: naive, precompiled, and xgrammar's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playground.engine.grammar.bitmask import Masks, allocate, naive_mask
from playground.engine.grammar.compiled import Compiled, Own
from playground.engine.grammar.matcher import Matcher, OwnMatcher
from playground.engine.trace import step

NUM_ROUNDS = 20  # fills of each position, once every mask has been made
NUM_NAIVE = 3  # positions that are walked naively


@step
@dataclass(frozen=True)
class MaskTimes:
    """Times of one grammar over one vocabulary. ``first_us``: mean fill of a position that was never visited.

    ``*_us_mean`` is the mean over the positions, once visited, of the median fill there (a busy machine interrupts now
    and then); ``*_us_p99`` is over all fills. ``None``: the engine cannot do it.
    """

    num_positions: int
    vocab_size: int
    naive_ms: float | None
    compile_ms: float | None
    first_us: float | None
    precompiled_us_mean: float | None
    precompiled_us_p99: float | None
    context_dependent_share: float | None
    xgrammar_compile_ms: float | None
    xgrammar_us_mean: float | None
    xgrammar_us_p99: float | None
    forward_ms: float | None
    naive_at_128k_ms: float | None = None  # priced: the naive walk is linear in the vocabulary


def measure(own: Own | None, production: Compiled | None, tokens: Sequence[int], forward_ms: float | None) -> MaskTimes:
    """Walk both engines along ``tokens``. ``own`` should be fresh, or its first visits are none."""
    naive, first, fast, share, vocab = None, None, [], None, 0
    if own:
        vocab = own.masks.trie.vocab_size
        first, fast = fill_times(own.matcher(), tokens, vocab)
        naive = 1e3 * float(np.mean(naive_times(own.masks, tokens)))
        share = context_dependent_share(own.masks, tokens)
    theirs: list[float] = []
    if production:
        vocab = production.grammar.tokenizer_info.vocab_size
        _, theirs = fill_times(production.matcher(), tokens, vocab)
    return MaskTimes(
        num_positions=len(tokens),
        vocab_size=vocab,
        naive_ms=naive,
        compile_ms=own.compile_ms if own else None,
        first_us=float(np.mean(first)) if first else None,
        precompiled_us_mean=typical(fast),
        precompiled_us_p99=float(np.percentile(fast, 99)) if fast else None,
        context_dependent_share=share,
        xgrammar_compile_ms=production.compile_ms if production else None,
        xgrammar_us_mean=typical(theirs),
        xgrammar_us_p99=float(np.percentile(theirs, 99)) if theirs else None,
        forward_ms=forward_ms,
        naive_at_128k_ms=naive * 128_256 / vocab if naive and vocab else None,
    )


def typical(times: Sequence[float]) -> float | None:
    """Mean over positions of the median of their ``NUM_ROUNDS`` fills."""
    return float(np.median(np.reshape(times, (-1, NUM_ROUNDS)), axis=1).mean()) if times else None


def fill_times(matcher: Matcher, tokens: Sequence[int], vocab_size: int) -> tuple[list[float], list[float]]:
    """Microseconds of the first fill at each position, and of ``NUM_ROUNDS`` further ones each."""
    mask, first, later = allocate(1, vocab_size), [], []
    for position, token in enumerate([*tokens, None]):
        first.append(timed_fill(matcher, mask))
        later += [timed_fill(matcher, mask) for _ in range(NUM_ROUNDS)]
        if token is None or not matcher.accept(token) or matcher.is_terminated:
            break
        assert position < len(tokens)
    return first, later


def timed_fill(matcher: Matcher, mask) -> float:
    began = time.perf_counter()
    matcher.fill(mask)
    return 1e6 * (time.perf_counter() - began)


def naive_times(masks: Masks, tokens: Sequence[int]) -> list[float]:
    """Seconds of the naive walk at the first, middle and last position of ``tokens``."""
    matcher, seconds = OwnMatcher(masks), []
    chosen = set(np.linspace(0, max(0, len(tokens) - 1), NUM_NAIVE).astype(int).tolist())
    for position, token in enumerate(tokens):
        if position in chosen:
            began = time.perf_counter()
            naive_mask(masks.automaton, masks.trie, matcher.config)
            seconds.append(time.perf_counter() - began)
        matcher.accept(token)
    return seconds or [0.0]


def context_dependent_share(masks: Masks, tokens: Sequence[int]) -> float:
    """Share of the vocabulary, mean over the positions, that the innermost states alone cannot decide."""
    matcher, counts = OwnMatcher(masks), []
    for token in tokens:
        counts.append(masks.context_dependent(matcher.config))
        if not matcher.accept(token) or matcher.is_terminated:
            break
    return float(np.mean(counts)) / masks.trie.vocab_size if counts else 0.0
