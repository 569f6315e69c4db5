"""What a drafting head computes on its way to a guess: a norm and a short strip of each tensor, level by level."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from playground.engine.trace import step

NUM_SHOWN = 24  # channels of a strip
NUM_TOP = 3  # guesses per level


@dataclass(frozen=True)
class Wire:
    """One vector: its name, how many numbers it has, its Euclidean norm, and its first channels."""

    name: str
    size: int
    norm: float
    strip: tuple[float, ...]


@dataclass(frozen=True)
class Level:
    """One pass of the head: the token it read, its vectors in the order they came about, its likeliest guesses."""

    token: int
    wires: tuple[Wire, ...]
    top: tuple[tuple[int, float], ...]  # (token, probability)


@step
@dataclass(frozen=True)
class Wiring:
    """The levels of one chain, drafted by ``drafter`` after ``start`` tokens."""

    drafter: str
    start: int
    levels: tuple[Level, ...]

    def __getitem__(self, level: int) -> Level:
        return self.levels[level]


class Probe:
    """Collects what a head tells while it drafts a chain; of several rows the newest one counts."""

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self._token, self._wires = -1, []

    def restart(self) -> None:
        """A new chain begins."""
        self.levels, self._wires = [], []

    def read(self, token: int) -> None:
        """The token that this level reads."""
        self._token = token

    def tell(self, name: str, vector: Tensor) -> None:
        """``vector`` ``[size]``; one without numbers is none."""
        if vector.numel():
            values = vector.detach().float()
            strip = tuple(round(x, 3) for x in values[:NUM_SHOWN].tolist())
            self._wires.append(Wire(name, len(values), round(float(values.norm()), 3), strip))

    def guess(self, logits: Tensor) -> None:
        """The level's law ``[vocab]``, which ends it."""
        best = logits.float().softmax(-1).topk(min(NUM_TOP, len(logits)))
        top = tuple((token, round(p, 4)) for token, p in zip(best.indices.tolist(), best.values.tolist(), strict=True))
        self.levels.append(Level(self._token, tuple(self._wires), top))
        self._wires = []

    def wiring(self, drafter: str, start: int) -> Wiring:
        """What the newest chain told."""
        return Wiring(drafter, start, tuple(self.levels))
