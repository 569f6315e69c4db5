"""Drafters side by side: lanes on one clock, a table of their figures, blind against conditional drafting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from playground.engine.face_to_face import DraftedChain, SideBySide
from playground.engine.trace import Lane
from playground.views import clock, html, tokens, verification
from playground.views.html import Text, join, number, probability, scroll

NUM_SHOWN = 14  # last tokens of a lane
Texts = Mapping[int, str]
ABOUT = {
    "medusa": "four heads on the target's last state, blind to each other",
    "eagle3": "one layer over the target's low, middle and high states, fed its own drafts",
    "tiny": "a two-layer language model of its own",
    "ngram": "copies what followed the same words before",
    "combination": "n-gram where two tokens match, else eagle3",
    "layer_skip": "the target's first layers",
    "eagle": "one layer over the target's last state, trained to hit the next one",
    "mtp": "DeepSeek's module: one layer over the target's last state, trained for one token",
}


def entrants(sizes: Mapping[str, int | None]) -> Markup:
    """Each drafter of the race: what it guesses from, and its own parameters."""
    rows: list[list[Text]] = [[name, ABOUT[name], _millions(size)] for name, size in sizes.items()]
    return html.table(["drafter", "what it is", "parameters"], rows, "Drafters of this run")


def lanes(trace_lanes: Sequence[Lane], texts: Texts, until_ms: float) -> Markup:
    """Each lane's newest tokens at one moment of the common clock."""
    blocks = []
    for lane in trace_lanes:
        done = [step for step in lane.steps if step.ended_ms <= until_ms]
        new = [item for step in done for item in verification.new_tokens(step, texts)]
        said = f"{html.count(len(new), 'token')}, {html.count(len(done), 'pass', 'passes')}"
        blocks.append(html.section(lane.name, strip(new, texts) if new else Markup("<p>–</p>"), said))
    return join(blocks)


def strip(new: Sequence[tuple[int, str, str]], texts: Texts) -> Markup:
    """The last tokens of a lane by how they came, marks without their figures."""
    shown = new[-NUM_SHOWN:]
    chips = [tokens.chip(verification.text_of(texts, token), kind, with_mark=True) for token, kind, _ in shown]
    earlier = len(new) - len(shown)
    return tokens.strip(chips, f"… {earlier:,} earlier" if earlier else "")


def clocks(trace_lanes: Sequence[Lane], until_ms: float) -> Markup:
    drawn = [clock.lane(lane, until_ms, is_plain=lane.name == "plain") for lane in trace_lanes]
    return html.section("One clock, in ms, from the prompt on", clock.clock(drawn), clock.keys())


def figures(drafters: Mapping[str, Mapping[str, Any]]) -> Markup:
    """A line per drafter: acceptance, milliseconds per pass, speed, parameters."""
    rows: list[list[Text | float | int | None]] = []
    for name, s in drafters.items():
        passes = s["target_passes"] or None
        same = {True: "yes", False: "no", None: "–"}[s["identical_to_plain"]]
        speed = "–" if s["measured_speedup"] is None else f"{s['measured_speedup']:.2f}×"
        rows.append(
            [name, s["mean_acceptance_length"], _per(s["draft_ms"], passes), _per(s["verify_ms"], passes),
             s["tokens_per_second"], speed, same, _millions(s["parameters"])]
        )  # fmt: skip
    head = [
        "drafter", "tokens per pass", "draft ms per pass", "verify ms per pass", "tokens/s", "speed", "same text",
        "parameters",
    ]  # fmt: skip
    return html.table(head, rows, "Figures of each drafter")


def _per(ms: float | None, passes: int | None) -> float | None:
    return ms / passes if ms is not None and passes else None


def _millions(n: int | None) -> str:
    return "–" if n is None else "none" if n == 0 else f"{n / 1e6:.1f} M"


def by_class(drafters: Mapping[str, Mapping[str, Any]], key: str = "mean_acceptance_length") -> Markup:
    """Mean acceptance length of each drafter on held-out prompts, by class; in brackets the figure on record."""
    kinds = list(dict.fromkeys(kind for s in drafters.values() for kind in s["by_class"]))
    rows: list[list[Text]] = []
    for name, s in drafters.items():
        rows.append([name, *(_class_cell(s["by_class"].get(kind), key) for kind in kinds)])
    return html.table(["drafter", *kinds], rows, "Mean acceptance length by class")


def _class_cell(found: Mapping[str, Any] | None, key: str) -> str:
    if not found:
        return "–"
    recorded = found.get("recorded")
    return number(found[key]) + (f" ({number(recorded)})" if recorded is not None else "")


# --- Blind against conditional ----------------------------------------------------------------------------------------


def duel(moment: SideBySide, texts: Texts) -> Markup:
    """Two drafts after the same text; under each token the target's probability given the draft's own words."""
    text = tokens.context_strip(texts, moment.context)
    parts = [html.section("The text so far", text, f"… up to token {moment.start:,}")]
    for chain in moment.chains:
        about = ABOUT.get(chain.name, "")
        parts.append(html.section(chain.name, _chain(chain, texts), about))
    return join(parts)


def _chain(chain: DraftedChain, texts: Texts) -> Markup:
    chips = []
    for i, (token, p) in enumerate(zip(chain.tokens, chain.p, strict=True)):
        text = verification.text_of(texts, token)
        state = "accepted" if i < chain.num_accepted else "rejected" if i == chain.num_accepted else "unjudged"
        detail = f"{tokens.spoken(text)}, {tokens.name(state)}: target p = {probability(p)} after the draft so far"
        chips.append(tokens.chip(text, state, detail, with_mark=True))
    heads = join([Markup('<th scope="col">+{}</th>').format(i + 1) for i in range(len(chips))])
    body = join([Markup("<td>{}</td>").format(chip) for chip in chips])
    probabilities = join([Markup("<td>{}</td>").format(probability(p)) for p in chain.p])
    table = Markup(
        '<table class="verify"><thead><tr><td></td>{}</tr></thead><tbody><tr><th scope="row">draft</th>{}</tr>'
        '<tr><th scope="row">target p</th>{}</tr></tbody></table>'
    )
    return scroll(table.format(heads, body, probabilities), f"Draft of {chain.name}")
