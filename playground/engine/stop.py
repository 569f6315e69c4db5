"""When a run ends: an end-of-sequence id, a stop string, or the token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """``eos_ids`` and ``strings`` that end the output; ``decode`` turns output ids into text for the strings.

    Raises ``ValueError`` for an empty string, and for strings without ``decode``.
    """

    eos_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        if "" in self.strings:
            raise ValueError("A stop string must not be empty.")
        if self.strings and self.decode is None:
            raise ValueError("Stop strings need a decoder from token ids to text.")

    def cut(self, output: Sequence[int], new: Sequence[int], limit: int) -> tuple[int, str | None]:
        """How many of the ``new`` tokens stay after ``output``, and why the run ends there (``None``: it goes on).

        The token that ends the run stays: ``eos``, ``stop_string`` or ``length``, in this order at one token.
        """
        for kept in range(1, len(new) + 1):
            if new[kept - 1] in self.eos_ids:
                return kept, "eos"
            if self.strings and self._completes([*output, *new[:kept]]):
                return kept, "stop_string"
            if len(output) + kept >= limit:
                return kept, "length"
        return len(new), None

    def _completes(self, tokens: Sequence[int]) -> bool:
        text = self.decode(tokens)
        return any(string in text for string in self.strings)
