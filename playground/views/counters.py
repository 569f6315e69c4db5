"""Windows between scrapes: which count, what was counted, where the tokens went, and what is left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from playground.engine.counters import Account, Counts, account, figures, total
from playground.engine.definitions import Definition
from playground.engine.scrape import GAUGES
from playground.engine.windows import Window
from playground.views.html import Text, columns, count, join, note, number, percent, probability, scroll, section, table

ROWS = {
    "drafts": "drafts",
    "draft_tokens": "draft tokens",
    "accepted": "accepted tokens, before the stop",
    "generation": "generation tokens, after the stop",
    "first_tokens": "first tokens",
    "finished": "requests finished",
    "plain_passes": "passes without a draft",
    "prompt": "prompt tokens",
}
MAX_CELLS = 31
MAX_ENGINES = 20  # rows of the table of engines


def whole(value: float | None) -> str:
    """A count for people; ``–`` where there is none."""
    return number(value, 0 if value is None or value == int(value) else 1)


def cell(value: float | None) -> float | int | None:
    """A count as a table shows it: whole where it is whole."""
    return int(value) if value is not None and value == int(value) else value


def strip(windows: Sequence[Window], now: int | None) -> Markup:
    """One cell per window: kept, or rejected with a cross; the one now has a frame. Of very many, those around it."""
    first = max(0, min((now or 0) - MAX_CELLS // 2, len(windows) - MAX_CELLS))
    shown = list(enumerate(windows))[first : first + MAX_CELLS]
    cells = [
        Markup('<i class="{}"{} title="window {}">{}</i>').format(
            "back" if window.reason else "kept",
            Markup(' style="outline:2px solid var(--ink);outline-offset:1px"') if i == now else "",
            i + 1,
            "✕" if window.reason else "✓",
        )
        for i, window in shown
    ]
    num_rejected = sum(window.reason is not None for window in windows)
    says = f"{count(len(windows), 'window')}, {num_rejected or 'none'} rejected"
    if len(shown) < len(windows):
        says += f"; {first + 1} to {first + len(shown)} shown"
    return section("Windows between scrapes", Markup('<div class="cells">{}</div>').format(join(cells)), says)


def blocks(engines: Mapping[str, Counts], patched: Mapping[str, Counts], is_rejected: bool) -> list[Any]:
    """The parts that a window and the whole have in common."""
    if not engines:
        return [note("Nothing has been counted yet. Run any lab on a model, then scrape again.")]
    every = list(engines.values())
    raw = counted(total(every), total(patched.values()) if patched else None)
    if is_rejected:
        return [raw]
    sides = [part for part in (raw, balance(every)) if part is not None]
    return [columns(*sides), positions(figures(every)), by_engine(engines)]


def told(shown: Mapping[str, Any]) -> str:
    """The rate and both mean lengths as a sentence."""
    if shown["mean_acceptance_length"] is None and shown["mean_emitted_length"] is None:
        return "nothing was drafted, so there is no data"
    names = {"rate": "acceptance_rate", "mean length": "mean_acceptance_length", "as emitted": "mean_emitted_length"}
    return ", ".join(f"{name} {number(shown[key], 3)}" for name, key in names.items())


def said_steps(low: str, high: str) -> str:
    """The bracket of the steps: one figure, an open end, or two ends."""
    return low if low == high else f"≥ {low}" if high == "–" else f"{low} to {high}"


def counted(counts: Counts, patched: Counts | None) -> Markup:
    """What was counted, beside what PromQL's ``increase`` makes of the same samples."""
    rows = [
        [name, cell(getattr(counts, key)), cell(getattr(patched, key) if patched else None)]
        for key, name in ROWS.items()
        if getattr(counts, key) is not None or (patched and getattr(patched, key) is not None)
    ]
    body = table(["counter", "difference", "PromQL increase"], rows, "Counters")
    return section("Counted", body, "increase patches resets")


def positions(shown: Mapping[str, Any]) -> Markup | None:
    """Acceptance at each position of the draft, of all drafts and of those that reached it."""
    rates, given = shown["acceptance_per_position"], shown["conditional_per_position"]
    if not rates:
        return None
    rows = join([_position(i, *pair) for i, pair in enumerate(zip(rates, given, strict=True))])
    head = "".join(f'<th scope="col">{name}</th>' for name in ("position", "of all drafts", "of drafts that got there"))
    body = Markup(f'<table class="law"><thead><tr>{head}</tr></thead><tbody>{{}}</tbody></table>').format(rows)
    return section("Acceptance by position", scroll(body, "Acceptance by position"), f"sums to {number(sum(rates), 2)}")


def _position(index: int, rate: float | None, given: float | None) -> Markup:
    bar = (
        '<td><div class="bar"><span class="track"><i class="{}" style="width:{}%"></i></span><span>{}</span></div></td>'
    )
    cells = [
        Markup(bar).format(look, percent(value or 0, 1), "–" if value is None else probability(value))
        for look, value in (("c-0", rate), ("c-1", given))
    ]
    return Markup('<tr><th scope="row">{}</th>{}</tr>').format(index + 1, join(cells))


def balance(engines: Sequence[Counts]) -> Markup | None:
    """Where the output tokens came from, and the bracket that the unknown plain steps leave."""
    sums, accounts = total(engines), [account(each) for each in engines]
    if any(a.undrafted is None for a in accounts) or None in (sums.generation, sums.drafts):
        return None
    a = Account(*(None if None in column else sum(column) for column in zip(*accounts, strict=True)))
    is_exact = sums.plain_passes is not None
    least = "" if is_exact else ", at least"
    rows: list[list[Any]] = [
        ["without a draft: first tokens and plain steps" + least, cell(a.undrafted)],
        ["+ one of the target's own per draft", cell(sums.drafts)],
        ["+ accepted tokens", cell(sums.accepted)],
        [f"− discarded past the stop{least}", cell(a.discarded_low)],
        ["= generation tokens", cell(sums.generation)],
    ]
    body = table(["tokens", "count"], rows, "Where the output came from") + note(_bracket(a, is_exact))
    return section("Where the output came from", body)


def _bracket(a: Account, is_exact: bool) -> str:
    if a.steps_high is None:
        return f"At least {whole(a.steps_low)} steps; without accepted tokens nothing more can be said."
    if is_exact or a.steps_low == a.steps_high:
        return f"{whole(a.steps_low)} steps: passes without a draft are known."
    return (
        f"Between {whole(a.steps_low)} and {whole(a.steps_high)} steps after the prompts: a plain step more and a "
        f"discarded token more look the same. At most {whole(a.discarded_high)} tokens can have been discarded."
    )


def by_engine(engines: Mapping[str, Counts]) -> Markup | None:
    """A row per engine and their sum; the mean of the rates stands below, because people compute it."""
    if len(engines) < 2:
        return None
    found = {name: figures([counts]) for name, counts in engines.items()}
    summed = figures(list(engines.values()))
    names = [*list(found)[: MAX_ENGINES - 1], "all: sum, then divide"]
    rows = [_engine_row(name, found.get(name, summed)) for name in names]
    head = ["engine", "rate", "mean length", "as emitted", "discarded"]
    rates = [each["acceptance_rate"] for each in found.values() if each["acceptance_rate"] is not None]
    mean = f"the mean of the rates would be {number(sum(rates) / len(rates), 4)}" if len(rates) > 1 else ""
    return section("By engine", table(head, rows, "By engine"), mean)


def _engine_row(name: str, shown: Mapping[str, Any]) -> list[Text]:
    digits = {"acceptance_rate": 4, "mean_acceptance_length": 3, "mean_emitted_length": 3, "discarded_tokens": 0}
    return [name, *(number(shown[key], n) for key, n in digits.items())]


def gauges(found: Sequence[tuple[str, str, float]]) -> Markup | None:
    """SGLang's gauges, and why they are no part of the window's figures."""
    if not found:
        return None
    rows = [[name, engine, number(value, 3), GAUGES[name]] for engine, name, value in found[:MAX_ENGINES]]
    why = (
        "A gauge holds the last interval's value: two of them have no difference, and what lay between is not in them."
    )
    return section("Gauges at the end", table(["gauge", "engine", "value", "what it is"], rows, "Gauges") + note(why))


def definitions(found: Sequence[Definition], has_trace: bool, has_counters: bool) -> Markup:
    """Every definition of acceptance, with its value from one trace and from the counters."""
    columns = [
        ("one trace", has_trace, lambda d: d.from_trace),
        ("the counters", has_counters, lambda d: d.from_counters),
    ]
    used = [(name, value) for name, is_there, value in columns if is_there]
    rows = [[d.name, *(number(value(d), 3) for _, value in used), d.formula, d.users] for d in found]
    head = ["definition", *(name for name, _ in used), "formula", "who says so"]
    body = table(head, rows, "Definitions of acceptance")
    return section("Every definition of acceptance in use", wide(body))


def wide(body: Markup) -> Markup:
    """A table with sentences in it, which scrolls on a phone instead of becoming a column of words."""
    return Markup('<div class="wide">{}</div>').format(body)
