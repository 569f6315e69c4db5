"""A constrained run: one target pass with its mask, the two outputs side by side, the audit and the times."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from playground.engine.grammar.drawn import DrawnAutomaton, Place
from playground.engine.grammar.timing import MaskTimes
from playground.engine.trace import Lane, Pass, RowMask, Trace
from playground.views import automaton as drawing
from playground.views import bitmask, html, kv, tokens, verification

VERDICTS = {
    "enforced": "enforced",
    "ignored": "ignored",
    "refused": "refused",
    "over_restricted": "over-restricted",
    None: "not told",
}
NUM_ROWS = 8  # tokens of a law


def lane(trace: Trace, name: str) -> Lane:
    return next((lane for lane in trace.lanes if lane.name == name), Lane(name))


def at_step(trace: Trace, index: int) -> Markup:
    """One pass: text so far, the draft, the mask of the last row that was used, and where the text stands."""
    ours, texts = lane(trace, "constrained"), trace.texts
    step: Pass = ours.steps[index]
    before = [*ours.prompt, *(out.token for earlier in ours.steps[:index] for out in earlier.outputs)]
    row, report, chosen = used_row(step)
    free = lane(trace, "free")
    free_tokens = free.output_tokens[: len(before) - len(ours.prompt) + len(step.outputs)]
    blocks = [
        html.section(
            "Text so far, under the grammar",
            tokens.context_strip(texts, before[len(ours.prompt) :], verification.new_tokens(step, texts)),
            html.count(len(before) - len(ours.prompt) + len(step.outputs), "token"),
        ),
        html.section("The same prompt, free", tokens.context_strip(texts, free_tokens)) if free_tokens else None,
    ]
    if step.nodes:
        judged = verification.table(step, texts) + html.detail()
        blocks.append(html.section("The draft", judged, says_draft(step)))
        blocks.append(html.section("KV rows", kv.strips(step.target_kv, step.drafter_kv)))
    places = lane(trace, "places").steps
    machine = next(iter(lane(trace, "automaton").steps), None)
    if machine is not None and index < len(places):
        blocks.append(where(machine, places[index]))
    if report is not None:
        vocab = int(trace.provenance.get("vocab_size") or 32 * len(bitmask.legal_bits(report)))
        blocks.append(html.columns(mask_section(report, vocab), law_section(step, row, report, chosen, trace)))
    if step.nodes:
        states = dict.fromkeys([*(node.state for node in step.nodes), *(out.kind for out in step.outputs)])
        blocks.append(tokens.legend(list(states)))
    return html.frame(*blocks)


def used_row(step: Pass) -> tuple[int, RowMask | None, int]:
    """The row that gave the last output token of a pass, its mask, and that token."""
    accepted = [i for i, node in enumerate(step.nodes) if node.state == "accepted"]
    rows = [0, *(i + 1 for i in accepted)]
    row = rows[min(len(step.outputs), len(rows)) - 1]
    return row, step.masks[row] if row < len(step.masks) else None, step.outputs[-1].token


def says_draft(step: Pass) -> str:
    blocked = sum(node.state == "blocked" for node in step.nodes)
    said = f"{html.count(len(step.nodes), 'token')}, {step.num_verified} accepted"
    return f"{said}, {blocked} blocked by the grammar" if blocked else said


def where(machine: DrawnAutomaton, place: Place) -> Markup:
    """The rule in which the text stands after the pass, its state lit, and the rules around it."""
    stack = next((stack for stack in sorted(place.after, key=len, reverse=True) if stack), ())
    names = [machine.states[state].rule for state in stack]
    crumbs = html.join([*names[:-1], *(Markup("<b>{}</b>").format(name) for name in names[-1:])], " › ")
    line = Markup('<p class="crumbs">{}</p>').format(crumbs or "The text has ended.")
    notes = []
    if () in place.after:
        notes.append("The text may end here.")
    if len([s for s in place.after if s]) > 1:
        notes.append(f"{len(place.after)} places are possible at once; the innermost is drawn.")
    if place.forced:
        notes.append(f"Only one continuation is legal: {tokens.spoken(place.forced)}.")
    said = Markup('<p class="says">{}</p>').format(" ".join(notes)) if notes else ""
    return html.section("The automaton after this step", line + drawing.picture(machine, stack) + said, "rule by rule")


def mask_section(report: RowMask, vocab_size: int) -> Markup:
    words = -(-vocab_size // 32)
    line = '<p class="says"><b>{}</b> of {} tokens are legal. Packed: {} words of 32 bits, <b>{} bytes</b>.</p>'
    said = Markup(line).format(f"{report.num_legal:,}", f"{vocab_size:,}", f"{words:,}", f"{4 * words:,}")
    place = Markup('<p class="crumbs">{}</p>').format(report.place)
    return html.section("The bitmask, one dot per token", bitmask.picture(report, vocab_size) + said + place)


def law_section(step: Pass, row: int, report: RowMask, chosen: int, trace: Trace) -> Markup:
    mass = Markup('<p class="says">The model itself gave <b>{}</b> to legal tokens: the feasible mass.</p>').format(
        html.probability(report.feasible_mass)
    )
    table = bitmask.laws(report, step.rows[row], trace.texts, chosen, NUM_ROWS)
    return html.section("The law before and after the mask", table + mass)


def at_end(trace: Trace) -> Markup:
    """Both outputs whole, whether the document is valid, the times of the mask, and the audit."""
    about, texts = trace.provenance, trace.texts
    blocks = []
    for name, title in (("constrained", "Under the grammar"), ("free", "Free, same prompt")):
        each = lane(trace, name)
        if each.steps:
            new = [new for step in each.steps for new in verification.new_tokens(step, texts)]
            strip = tokens.context_strip(texts, (), new, shown=200)
            blocks.append(html.section(title, strip, html.count(len(new), "token")))
    if about.get("refusal"):
        blocks.append(html.note(str(about["refusal"]), "warn"))
    elif about.get("valid_json"):
        blocks.append(html.note("The document is valid: jsonschema says so.", "good"))
    elif about.get("why_invalid"):
        blocks.append(html.note(str(about["why_invalid"]), "warn"))
    timed = next(iter(lane(trace, "mask times").steps), None)
    if timed is not None:
        blocks.append(times(timed))
    findings = lane(trace, "audit").steps
    if findings:
        blocks.append(audit(findings, str(about.get("engine", ""))))
    return html.frame(*blocks)


def times(timed: MaskTimes) -> Markup:
    """Time per mask of each way, and what was paid ahead."""

    def us(value: float | None) -> str:
        return "–" if value is None else f"{value:,.1f} µs"

    def ms(value: float | None) -> str:
        return "–" if value is None else f"{value:,.2f} ms"

    own = (us(timed.precompiled_us_mean), us(timed.precompiled_us_p99), us(timed.first_us), ms(timed.compile_ms))
    theirs = (us(timed.xgrammar_us_mean), us(timed.xgrammar_us_p99), "–", ms(timed.xgrammar_compile_ms))
    rows = [
        ("naive, in Python", ms(timed.naive_ms), "–", "–", "–"),
        ("precompiled, this app", *own),
        ("xgrammar", *theirs),
        ("one pass of this model", ms(timed.forward_ms), "–", "–", "–"),
    ]
    table = html.table(("time of one mask", "mean", "p99", "first visit", "compiled ahead in"), rows, "Mask times")
    priced = ""
    if timed.naive_at_128k_ms is not None:
        line = '<p class="says">Naive at 128,256 tokens: {} (priced: it is linear in the vocabulary).</p>'
        priced = Markup(line).format(ms(timed.naive_at_128k_ms))
    return html.section("What a mask costs", table + priced, f"measured here at {timed.num_positions} positions")


def audit(findings: Sequence, engine: str) -> Markup:
    """The verdict on each keyword of the schema."""
    verdicts = [VERDICTS.get(f.verdict, str(f.verdict)) for f in findings]
    whys = [
        Markup('<span class="crumbs">{}</span> {}').format(tokens.spoken(f.counterexample), f.reason)
        if f.counterexample
        else f.reason
        for f in findings
    ]
    rows = [(f.keyword, verdict, why) for f, verdict, why in zip(findings, verdicts, whys, strict=True)]
    table = html.table(("keyword", "verdict", "why, with the smallest document that shows it"), rows, "Schema audit")
    return html.section("Schema audit", table, f"engine {engine}; jsonschema is the judge")
