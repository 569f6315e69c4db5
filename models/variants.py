"""The targets in other numerics that stay in memory: converted once, and the least recently used goes at a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import NamedTuple

from models.hf import HFModel
from models.precision import CONVERT, convert, derive, held_bytes, probe
from playground.engine.precision import NUMERICS, Numerics, Variant
from playground.engine.progress import Progress

LIMIT_BYTES = 3 * 2**30  # of tensors that converted targets hold beside those they share with the target as loaded
Load = Callable[[str], Generator[Progress, None, HFModel]]


class Held(NamedTuple):
    """A converted target, what it was made from, and the bytes it holds for itself."""

    base: HFModel
    made: HFModel
    own_bytes: int


class Variants:
    """Converted targets by name and format; variants that share a format share its weights."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._held: OrderedDict[tuple[str, str, str], Held] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, base: HFModel, name: str, load: Load) -> Generator[Progress, None, Variant]:
        """``base`` in the numerics ``name``; ``load`` gives the target in another dtype."""
        numerics = NUMERICS[name]
        yield Progress(f"Trying {numerics.title}")
        if reason := probe(name, str(base.device)):
            return Variant(numerics, None, reason)
        if numerics.weights in CONVERT:
            base = yield from self._converted(base, numerics)
        elif numerics.weights not in ("", base.dtype_name):
            base = yield from load(numerics.weights)
        return derive(base, numerics)

    @property
    def held(self) -> list[str]:
        """The formats in memory, the one used longest ago first."""
        return [weights for _, _, weights in self._held]

    def _converted(self, base: HFModel, numerics: Numerics) -> Generator[Progress, None, HFModel]:
        key = (base.source, f"{base.dtype_name} {base.device}", numerics.weights)
        with self._guard:
            found = self._held.get(key)
            if found is not None and found.base is base:
                self._held.move_to_end(key)
                return found.made
        made = yield from convert(base, numerics.weights)
        with self._guard:
            self._held[key] = Held(base, made, held_bytes(made, base))
            self._held.move_to_end(key)
            while len(self._held) > 1 and sum(each.own_bytes for each in self._held.values()) > self.limit_bytes:
                self._held.popitem(last=False)  # never the one just asked for
        return made
