"""What people mean by acceptance: every definition in use, from the passes of one trace and from counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from playground.engine.counters import Counts, account
from playground.engine.metrics import ratio
from playground.engine.trace import Pass, step


class Passed(NamedTuple):
    """One target pass: tokens drafted, accepted of them, and tokens put out after any stop rule.

    ``levels`` is the depth of the draft: of a chain, the tokens drafted.
    """

    drafted: int
    accepted: int
    emitted: int
    levels: int

    @staticmethod
    def of(each: Pass) -> Passed:
        depth = max((node.depth for node in each.nodes), default=0)
        return Passed(len(each.nodes), each.num_verified, len(each.outputs), depth)


Requests = Sequence[Sequence[Passed]]


@step
@dataclass(frozen=True)
class Definition:
    """One definition with its value from one trace and from counters; ``None`` where it cannot be had from them."""

    key: str
    name: str
    formula: str
    users: str
    from_trace: float | None
    from_counters: float | None


def read_passes(text: str) -> list[list[Passed]]:
    """Requests from text: passes ``drafted/accepted`` or ``drafted/accepted/put out`` apart by commas or spaces.

    A fourth number is the depth of a draft tree. A semicolon or a new line begins the next request. Raises
    ``ValueError`` with the pass that cannot be.

    >>> read_passes("4/4/3 0/0")
    [[Passed(drafted=4, accepted=4, emitted=3, levels=4), Passed(drafted=0, accepted=0, emitted=1, levels=0)]]
    """
    lines = [line.replace(",", " ").split() for line in text.replace(";", "\n").splitlines()]
    return [[_read_pass(part) for part in line] for line in lines if line]


def _read_pass(text: str) -> Passed:
    parts = text.split("/")
    if not 2 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise ValueError(
            f"A pass reads drafted/accepted or drafted/accepted/put out, as in 4/2 or 4/4/3; not {text[:20]!r}."
        )
    drafted, accepted, *rest = map(int, parts)
    emitted, levels = rest[0] if rest else accepted + 1, rest[1] if len(rest) > 1 else drafted
    if accepted > levels or levels > drafted or not 1 <= emitted <= accepted + 1:
        raise ValueError(
            f"{text[:20]!r} cannot be: of {drafted} drafted tokens at most {drafted} are accepted, and a pass puts out "
            "one token more than it accepted, or fewer, but one at least."
        )
    return Passed(drafted, accepted, emitted, levels)


def write_passes(requests: Requests) -> str:
    """The text that ``read_passes`` reads."""
    return "\n".join(" ".join(map(_write_pass, request)) for request in requests)


def _write_pass(p: Passed) -> str:
    levels = f"/{p.levels}" if p.levels != p.drafted else ""
    return f"{p.drafted}/{p.accepted}/{p.emitted}{levels}"


class Sums(NamedTuple):
    """The sums that the definitions divide; ``None`` where the source does not say."""

    passes: float | None
    drafts: float | None
    drafted: float | None
    accepted: float | None
    emitted: float | None  # in passes with a draft
    output: float | None
    judged: float | None  # accepted tokens, and the one rejection that ends a draft
    first: float | None  # drafts whose first level stood
    full: float | None  # drafts accepted to their last level
    kept: float | None  # accepted tokens left after the stop
    rates: tuple[float, ...] | None = None  # accepted / drafted of each request


def sums_of(requests: Requests) -> Sums:
    """The sums over the passes of several requests."""
    passes = [each for request in requests for each in request]
    drafts = [each for each in passes if each.drafted]
    full = sum(each.accepted == each.levels for each in drafts)
    accepted = sum(each.accepted for each in drafts)
    pairs = [(sum(p.accepted for p in request), sum(p.drafted for p in request)) for request in requests]
    return Sums(
        passes=len(passes),
        drafts=len(drafts),
        drafted=sum(each.drafted for each in drafts),
        accepted=accepted,
        emitted=sum(each.emitted for each in drafts),
        output=sum(each.emitted for each in passes),
        judged=accepted + len(drafts) - full,
        first=sum(each.accepted > 0 for each in drafts),
        full=full,
        kept=sum(min(each.accepted, each.emitted) for each in drafts),
        rates=tuple(part / whole for part, whole in pairs if whole),
    )


def sums_of_counts(engines: Sequence[Counts]) -> Sums | None:
    """What counters give of the same sums; ``None`` without engines."""
    if not engines:
        return None
    c, accounts = engines[0], [account(each) for each in engines]
    for other in engines[1:]:
        c = c + other
    undrafted = None if any(a.undrafted is None for a in accounts) else sum(a.undrafted for a in accounts)
    emitted = None if None in (c.generation, undrafted) else c.generation - undrafted
    first = c.per_position[0] if c.per_position and c.has_positions else None
    passes = None if None in (c.plain_passes, c.drafts) else c.plain_passes + c.drafts
    return Sums(passes, c.drafts, c.draft_tokens, c.accepted, emitted, c.generation, None, first, None, None)


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else ratio(a, b)


def _one_more(value: float | None) -> float | None:
    return None if value is None else 1 + value


def _mean(rates: tuple[float, ...] | None) -> float | None:
    return sum(rates) / len(rates) if rates else None


Rule = Callable[[Sums], float | None]

# key, name, formula, who uses it, rule
DEFINITIONS: tuple[tuple[str, str, str, str, Rule], ...] = (
    ("rate", "draft acceptance rate", "accepted / drafted", "vLLM's log; SGLang's spec_accept_rate today",
     lambda s: _over(s.accepted, s.drafted)),
    ("mean_of_rates", "mean of the requests' rates", "mean of accepted / drafted", "dashboards that average averages",
     lambda s: _mean(s.rates)),
    ("judged", "rate per judged token", "accepted / (accepted + rejected)", "alpha of Leviathan et al., estimated",
     lambda s: _over(s.accepted, s.judged)),
    ("first", "first-position acceptance", "drafts with their first token accepted / drafts", "vLLM's position 0",
     lambda s: _over(s.first, s.drafts)),
    ("full", "full acceptance", "drafts wholly accepted / drafts", "how often the bonus token comes",
     lambda s: _over(s.full, s.drafts)),
    ("accepted_per_draft", "accepted length", "accepted / drafts", "papers that leave the target's own token out",
     lambda s: _over(s.accepted, s.drafts)),
    ("mean_length", "mean acceptance length", "1 + accepted / drafts", "vLLM; SGLang's spec_accept_length; EAGLE's tau",
     lambda s: _one_more(_over(s.accepted, s.drafts))),
    ("emitted_length", "mean emitted length", "tokens put out by drafted passes / drafts", "what a user receives",
     lambda s: _over(s.emitted, s.drafts)),
    ("per_pass", "tokens per target pass", "output tokens / all passes", "step compression; the bound on the speed-up",
     lambda s: _over(s.output, s.passes)),
    ("efficiency", "system efficiency", "(accepted + drafts) / (drafted + drafts)", "vLLM's first engine; older SGLang",
     lambda s: _over(_plus(s.accepted, s.drafts), _plus(s.drafted, s.drafts))),
    ("share", "share of the output", "accepted tokens put out / output tokens", "desktop apps",
     lambda s: _over(s.kept, s.output)),
)  # fmt: skip


def define(requests: Requests, engines: Sequence[Counts]) -> list[Definition]:
    """Every definition, from the passes of ``requests`` (may be empty) and from counters (may be none)."""
    traced, counted = sums_of(requests) if requests else None, sums_of_counts(engines)
    return [
        Definition(key, name, formula, users, traced and rule(traced), counted and rule(counted))
        for key, name, formula, users, rule in DEFINITIONS
    ]
