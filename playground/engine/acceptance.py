"""How often a draft stands on real contexts, and how that moves with temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.model import Session
from playground.engine.sampling import Knob, apply, softmax
from playground.engine.trace import step
from playground.engine.tree import Draft

# From greedy to nearly uniform, denser where people sample.
TEMPERATURES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)


@step
@dataclass(frozen=True)
class TemperaturePoint:
    """Acceptance at one ``temperature``, the mean over ``num_contexts`` contexts.

    ``rejection`` is the mean of sum min(p, q); ``match`` that of sum p q, where the target draws its own token and the
    draft stands while it is the same one; ``argmax`` that of min(1, p / q) at the drafter's likeliest token, and
    ``argmax_error`` the mean total variation between p and the law that comes out when that token is judged so.
    """

    temperature: float
    num_contexts: int
    rejection: float
    match: float
    argmax: float
    argmax_error: float


def context_logits(session: Session, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """Raw logits ``[len(output), vocab]`` after the prompt and after each output token but the last, in one pass.

    Leaves ``session`` at ``prompt``.
    """
    session.sync(prompt)
    logits = session.score(Draft.chain(output[:-1])).logits
    session.sync(prompt)
    return logits


def temperature_point(temperature: float, target: Tensor, drafter: Tensor, knobs: Sequence[Knob]) -> TemperaturePoint:
    """The point from raw logits of both models in the same contexts, ``[contexts, vocab]`` each.

    ``knobs`` set this temperature; they shape both laws.
    """
    p = softmax(apply(knobs, target))
    q = softmax(apply(knobs, drafter))
    best = q.argmax(-1, keepdim=True)
    stands = (p.gather(-1, best) / q.gather(-1, best)).clamp(max=1)  # [contexts, 1]
    left = (p - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    out = (torch.where(mass > 0, left / mass, p) * (1 - stands)).scatter_add(-1, best, stands)
    return TemperaturePoint(
        temperature=temperature,
        num_contexts=len(p),
        rejection=float(torch.minimum(p, q).sum(-1).mean()),
        match=float((p * q).sum(-1).mean()),
        argmax=float(stands.mean()),
        argmax_error=float(0.5 * (out - p).abs().sum(-1).mean()),
    )


def over_temperature(
    target: Tensor, drafter: Tensor, knobs: Callable[[float], Sequence[Knob]], first: float
) -> Iterator[TemperaturePoint]:
    """A point at ``first``, then one at each other of ``TEMPERATURES``; ``knobs(t)`` set temperature t."""
    for temperature in (first, *(t for t in TEMPERATURES if t != first)):
        yield temperature_point(temperature, target, drafter, knobs(temperature))
