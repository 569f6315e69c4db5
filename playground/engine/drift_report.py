"""What a comparison of numerics came to, read from the lanes of its trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from playground.engine.drift import Drift, Tried
from playground.engine.metrics import count
from playground.engine.trace import Lane, Trace

# Two shapes of a pass count as the same where the mean total variation stays below this: sums in another order flip a
# few codes of 8 bits, and each flip is far larger than fp32's own rounding.
REPEATABLE_TV = 0.01


def steps(trace: Trace, kind: str, name: str = "") -> Sequence[Any]:
    """The steps of the lane ``kind name``; none where there is no such lane."""
    wanted = f"{kind} {name}".strip()
    return next((lane.steps for lane in trace.lanes if lane.name == wanted), ())


def last(trace: Trace, kind: str, name: str) -> Any:
    """The newest step of that lane, or ``None``."""
    found = steps(trace, kind, name)
    return found[-1] if found else None


def tried(trace: Trace) -> dict[str, Tried]:
    return {each.name: each for each in steps(trace, "numerics")}


def running(trace: Trace) -> list[str]:
    """The numerics that run here, in the order of the run."""
    return [name for name, each in tried(trace).items() if not each.reason]


def reference(trace: Trace) -> str:
    return str(trace.provenance.get("reference", ""))


def text(trace: Trace) -> list[int]:
    """The reference's greedy output, which all read."""
    return [each.text_token for each in steps(trace, "law", reference(trace))]


def place(trace: Trace, index: int) -> dict[str, Drift]:
    """All laws at one place of the text."""
    found = {name: steps(trace, "law", name) for name in running(trace)}
    return {name: laws[index] for name, laws in found.items() if index < len(laws)}


def num_places(trace: Trace) -> int:
    """Places that every numerics has read."""
    return min((len(steps(trace, "law", name)) for name in running(trace)), default=0)


def output(trace: Trace, kind: str, name: str) -> tuple[int, ...] | None:
    """The tokens of a lane of passes that has ended."""
    lane = next((lane for lane in trace.lanes if lane.name == f"{kind} {name}"), Lane(""))
    return lane.output_tokens if lane.finish else None


def plain(trace: Trace, name: str) -> tuple[int, ...] | None:
    """The numerics' own plain output, once it is known."""
    own = last(trace, "own", name)
    return own.tokens if own else None


def summarise(trace: Trace, name: str) -> dict[str, Any]:
    """The figures of one numerics; ``None`` for what was not measured, all of them where it does not run here.

    ``mean_tv``, ``max_tv``, ``mean_kl`` and ``top1_agreement`` are over the places of the text, against the reference.
    ``first_divergence`` is the place where it first prefers another token, ``divergence_margin`` the reference's lead
    there. ``shape_noise_tv`` is a mean, ``later_draft_tv`` and ``trace_after_rejection_tv`` are the largest found.
    ``acceptance_as_draft`` is the mean of sum min(p, q): the rate of the rejection rule, were this the drafter.
    """
    about, laws = tried(trace)[name], steps(trace, "law", name)
    parted = next((i for i, each in enumerate(laws) if not each.is_same), None)
    shapes, moved = last(trace, "shapes", name), last(trace, "drafts", name)
    noise = mean(shapes.tv) if shapes else None
    later, after = (max(found) if found else None for found in (moved.later, moved.after)) if moved else (None, None)
    drafted = count(steps(trace, "as drafter", name))
    as_drafter, as_target = output(trace, "as drafter", name), output(trace, "as target", name)
    return {
        "runs": not about.reason,
        "reason": about.reason or None,
        "mean_tv": mean([each.tv for each in laws]),
        "max_tv": max((each.tv for each in laws), default=None),
        "mean_kl": mean([each.kl for each in laws]),
        "top1_agreement": mean([float(each.is_same) for each in laws]),
        "first_divergence": parted,
        "divergence_margin": None if parted is None else laws[parted].lead,
        "divergence_shift": None if parted is None else laws[parted].shift,
        "is_causal": None if later is None else later == 0,
        "is_repeatable": None if noise is None else noise < REPEATABLE_TV,
        "is_traceless": None if after is None else after == 0,
        "later_draft_tv": later,
        "shape_noise_tv": noise,
        "shape_noise_max_tv": max(shapes.tv) if shapes else None,
        "trace_after_rejection_tv": after,
        "weight_bytes": about.weight_bytes,
        "kv_bytes": about.kv_bytes,
        "acceptance_as_draft": mean([each.overlap for each in laws]),
        "accepted_as_drafter": drafted.acceptance_rate,
        "same_output_as_drafter": None if as_drafter is None else list(as_drafter) == text(trace),
        "target_follows_itself": None if as_target is None else as_target == plain(trace, name),
        "target_follows_reference": None if as_target is None else list(as_target) == text(trace),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
