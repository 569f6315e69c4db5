"""Two runs, with and without speculation: whether they may be compared, and the speed-up with its interval."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from playground.engine.counters import Counts, figures
from playground.engine.metrics import ratio
from playground.engine.scrape import FIELDS, plain_name
from playground.engine.trace import step

LENGTH_TOLERANCE = 0.02  # output tokens per request may differ by this share
LEVEL = 0.95
FIGURES = ("wall_s", "generation_tokens", "requests", "prompt_tokens", "counters")
TELLING = ("load", "batch", "kv_budget", "stop", "prompts", "warmup_requests")
ALIASES = dict.fromkeys(("wall_time", "wall_time_s", "wall_seconds", "seconds", "duration_s"), "wall_s")
MAX_OTHERS = 20  # keys of the user's own that are compared too


@dataclass(frozen=True)
class Measured:
    """One side of the comparison: the same load served once or several times, and what is known of how."""

    seconds: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    requests: float | None = None
    prompt_tokens: float | None = None
    counts: Counts = field(default_factory=Counts)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each repeat."""
        tokens = self.tokens * len(self.seconds) if len(self.tokens) == 1 else self.tokens
        return [n / t for n, t in zip(tokens, self.seconds, strict=False)]

    @property
    def length(self) -> float | None:
        """Output tokens per request."""
        return ratio(sum(self.tokens) / len(self.tokens), self.requests) if self.tokens and self.requests else None


@step
@dataclass(frozen=True)
class Condition:
    """One condition for a fair comparison: ``holds``, ``differs`` or ``missing``, and what either run says."""

    name: str
    state: str
    with_: str
    without: str
    why: str


@step
@dataclass(frozen=True)
class Comparison:
    """The speed-up in output tokens per second, its interval and where that comes from; ``None`` where not known.

    ``step_cost`` is what a pass with a draft costs in plain passes: the mean emitted length over the speed-up.
    """

    tokens_per_s_with: float | None
    tokens_per_s_without: float | None
    speedup: float | None
    low: float | None
    high: float | None
    interval: str
    mean_emitted_length: float | None
    step_cost: float | None


def read_run(name: str, text: str) -> Measured:
    """A run from JSON. Raises ``ValueError`` with one sentence that names the key."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {str(error)[:80]}.") from None
    if not isinstance(data, dict):
        raise ValueError(f"{name} must be a JSON object with some of {', '.join((*FIGURES, *TELLING))}.")
    data = {ALIASES.get(key, key): value for key, value in data.items()}
    about = {key: value for key, value in data.items() if key not in FIGURES}
    if len(about) > len(TELLING) + MAX_OTHERS:
        raise ValueError(f"{name} has {len(data)} keys; at most {MAX_OTHERS} of your own are compared.")
    counts = _read_counts(name, data.get("counters") or {})
    tokens = _numbers(name, "generation_tokens", data.get("generation_tokens", counts.generation))
    seconds = _numbers(name, "wall_s", data.get("wall_s"))
    requests = _number(name, "requests", data.get("requests", counts.finished))
    if len(tokens) > 1 and len(tokens) != len(seconds):
        raise ValueError(f"{name} has {len(tokens)} generation_tokens for {len(seconds)} wall_s; give one for each.")
    if any(t < 1e-6 for t in seconds):
        raise ValueError(f"{name} has a wall_s of {min(seconds):g}; no run takes no time.")
    if counts.generation is None and len(tokens) == 1:
        counts = replace(counts, generation=tokens[0])
    if counts.first_tokens is None and counts.finished is None:
        counts = replace(counts, finished=requests)
    prompt = _number(name, "prompt_tokens", data.get("prompt_tokens", counts.prompt))
    return Measured(seconds, tokens, requests, prompt, counts, about)


def _read_counts(name: str, data: Any) -> Counts:
    """Counters by vLLM's or SGLang's names, or by the last part of them; accepted tokens per position as a list."""
    if not isinstance(data, dict):
        raise ValueError(f"{name}: counters must be an object of names and numbers.")
    found: dict[str, Any] = {}
    for key, value in data.items():
        if target := SHORT.get(_short(key)):  # a server has many more
            numbers = _numbers(name, key[:60], value)
            found[target] = numbers if target == "per_position" else sum(numbers)
    return Counts(**found)


def _short(name: str) -> str:
    return plain_name(name).split(":")[-1].removeprefix("spec_decode_").removeprefix("num_")


SHORT = {_short(name): target for name, target in FIELDS.items()}


def _numbers(name: str, key: str, value: Any) -> tuple[float, ...]:
    values = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_number(name, key, one) for one in values)


def _number(name: str, key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise ValueError(f"{name}: {key} must be a number of 0 or more, not {str(value)[:40]!r}.")
    return value


def conditions(a: Measured, b: Measured) -> list[Condition]:
    """What must be equal in both runs for their ratio to be speculation's doing (``a`` with it, ``b`` without)."""
    same = [
        (
            "offered load",
            "load",
            "The gain falls as the batch fills: an idle and a busy server are two different gains.",
        ),
        ("batch", "batch", "More sequences per pass leave less idle arithmetic for drafts."),
        ("KV budget", "kv_budget", "The drafter's weights and cache take memory from sequences in flight."),
        ("stop rules", "stop", "An ignored end of sequence makes long, predictable output."),
        ("prompts", "prompts", "Acceptance is a property of the text: code is not chat."),
        ("warm-up", "warmup_requests", "The first requests pay for compilation, graphs and cold caches."),
    ]
    found = [_same(name, a.about.get(key), b.about.get(key), why) for name, key, why in same]
    found.insert(5, _same("number of requests", a.requests, b.requests, "Another sample is another mixture of texts."))
    found.insert(6, _same("prompt tokens", a.prompt_tokens, b.prompt_tokens, "The same prompts have the same tokens."))
    others = [key for key in {**a.about, **b.about} if key not in TELLING]
    extra = [_same(key[:40], a.about.get(key), b.about.get(key), "Given by you.") for key in others]
    return [*found, _lengths(a, b), *extra]


def _same(name: str, a: Any, b: Any, why: str) -> Condition:
    state = "missing" if a is None or b is None else "holds" if a == b else "differs"
    return Condition(name, state, _said(a), _said(b), why)


def _said(value: Any) -> str:
    if value is None:
        return "not given"
    return (value if isinstance(value, str) else json.dumps(value))[:80]


def _lengths(a: Measured, b: Measured) -> Condition:
    """Lossless speculation keeps the law of the output, so lengths agree but for chance."""
    state = "missing"
    if a.length and b.length:
        state = "holds" if abs(a.length / b.length - 1) <= LENGTH_TOLERANCE else "differs"
    says = ["not given" if each.length is None else f"{each.length:.4g} tokens per request" for each in (a, b)]
    why = f"Lossless speculation keeps them; more than {LENGTH_TOLERANCE:.0%} apart says that something else changed."
    return Condition("output lengths", state, *says, why)


def compare(a: Measured, b: Measured) -> Comparison:
    """The speed-up of ``a`` over ``b``, geometric over repeats.

    With at least two repeats on both sides the interval is Welch's, on the logarithms. Else requests are taken for
    independent pieces of work whose cost varies as much as its mean: a wide guess, and named as one.
    """
    logs = [[math.log(rate) for rate in each.rates if rate > 0] for each in (a, b)]
    means = [sum(x) / len(x) if x else None for x in logs]
    length = figures([a.counts])["mean_emitted_length"]
    rates = [None if mean is None else math.exp(mean) for mean in means]
    if None in means:
        return Comparison(*rates, None, None, None, "no interval", length, None)
    gain, half, source = means[0] - means[1], None, "no interval: repeat both runs, or give their requests"
    if min(map(len, logs)) > 1:
        half, source = welch(*logs), f"from {len(logs[0])} and {len(logs[1])} repeats"
    elif a.requests and b.requests:
        half = normal_quantile() * math.sqrt(1 / a.requests + 1 / b.requests)
        source = "assumed: requests vary as much as their mean"
    low, high = (None, None) if half is None else (math.exp(gain - half), math.exp(gain + half))
    cost = None if length is None else length / math.exp(gain)
    return Comparison(*rates, math.exp(gain), low, high, source, length, cost)


def welch(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> float:
    """Half the width of Welch's interval for the difference of two means."""
    parts = [sum((v - sum(x) / len(x)) ** 2 for v in x) / (len(x) - 1) / len(x) for x in (a, b)]
    error = sum(parts)
    if error == 0:
        return 0.0
    freedom = error**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    return student_quantile(0.5 + level / 2, freedom) * math.sqrt(error)


def normal_quantile(level: float = LEVEL) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + level / 2)


def student_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's law for p above one half: its density integrated along t = sqrt(freedom) tan(angle).

    >>> round(student_quantile(0.975, 1), 3), round(student_quantile(0.975, 10), 3)
    (12.706, 2.228)
    """
    num = 20_000
    width = math.pi / 2 / num
    weights = [math.cos((i + 0.5) * width) ** (freedom - 1) for i in range(num)]
    left, whole = (p - 0.5) * 2, sum(weights)
    for i, weight in enumerate(weights):
        if left * whole <= weight:
            return math.sqrt(freedom) * math.tan((i + left * whole / weight) * width)
        left -= weight / whole
    return math.inf
