"""Variants of a drafting head held against each other: after the same texts here, and by their records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.engine.face_to_face import SideBySide
from playground.engine.metrics import Counters

WITH, WITHOUT = "eagle3_short", "eagle3_blind"  # the same head and budget, with the target's states and without
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One step from EAGLE to EAGLE-3: the variants without and with it, and the position at which it should show."""

    name: str
    before: str
    after: str
    position: int


CHANGES = (
    Change("the loss on features goes", "eagle", "mtp", 1),
    Change("training-time test", "eagle3_noroll", "eagle3_short", 2),
    Change("low, middle and high layers fused", "eagle3_top", "eagle3_short", 1),
)


def slim(record: Record | None, name: str) -> dict[str, Any] | None:
    """What a variant's provenance says of its budget and of its held-out acceptance; ``None`` without a record."""
    if not record or name not in record.get("heldout", {}):
        return None
    found = record["heldout"][name]
    keys = ("mean_acceptance_length", "acceptance_per_position", "conditional_per_position", "passes")
    budget = ("token_visits", "parameters", "steps", "training_cpu_seconds", "learning_curve")
    return {**{key: found[key] for key in keys}, **{key: record.get(key) for key in budget}}


def common(moments: Sequence[SideBySide]) -> list[SideBySide]:
    """The contexts after which every variant drafted."""
    return [moment for moment in moments if all(chain.tokens for chain in moment.chains)]


def judged(moments: Sequence[SideBySide], name: str) -> Counters:
    """A variant's counters over the contexts that all of them met: accepted when the target, greedy, agrees."""
    chains = [chain for moment in common(moments) for chain in moment.chains if chain.name == name]
    depth = max((len(chain.tokens) for chain in chains), default=0)
    return Counters(
        num_drafts=len(chains),
        drafted_tokens=sum(len(chain.tokens) for chain in chains),
        accepted_tokens=sum(chain.num_accepted for chain in chains),
        accepted_per_position=tuple(sum(chain.num_accepted > i for chain in chains) for i in range(depth)),
    )


def effects(variants: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each change of ``CHANGES`` on record: conditional acceptance at its position and mean length, before and after.

    ``noise`` is two standard errors of the gain; ``shows``: the gain is larger. ``None`` where a record is missing.
    """
    found = []
    for change in CHANGES:
        sides = [variants.get(name, {}) for name in (change.before, change.after)]
        at = [_at(side.get("conditional_per_position"), change.position) for side in sides]
        length = [side.get("mean_acceptance_length") for side in sides]
        gain = None if None in at else at[1] - at[0]
        noise = math.inf if gain is None else 2 * math.sqrt(sum(_variance(side, change.position) for side in sides))
        found.append(
            {
                "change": change.name,
                "before": change.before,
                "after": change.after,
                "position": change.position,
                "acceptance_before": at[0],
                "acceptance_after": at[1],
                "gain": gain,
                "noise": noise if math.isfinite(noise) else None,
                "mean_length_gain": None if None in length else length[1] - length[0],
                "shows": None if gain is None or not math.isfinite(noise) else gain > noise,
            }
        )
    return found


def _at(values: Sequence[float] | None, position: int) -> float | None:
    return values[position - 1] if values and len(values) >= position else None


def _variance(side: Mapping[str, Any], position: int) -> float:
    """Of a conditional acceptance, from the number of drafts that got to its position."""
    reached = 1.0 if position == 1 else _at(side["acceptance_per_position"], position - 1) or 0.0
    drafts, p = side["passes"] * reached, side["conditional_per_position"][position - 1]
    return p * (1 - p) / drafts if drafts else math.inf


def most_telling(moments: Sequence[SideBySide], one: str, other: str) -> SideBySide | None:
    """The context after which ``one`` stood longest beyond ``other``; the earliest of equals."""

    def lead(moment: SideBySide) -> int:
        stood = {chain.name: chain.num_accepted for chain in moment.chains}
        return stood.get(one, 0) - stood.get(other, 0)

    return max(common(moments), key=lead, default=None)
