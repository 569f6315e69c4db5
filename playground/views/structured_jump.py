"""Jump-forward: one pass with its forced text, the seams as pairs of token rows, and what each remedy costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.grammar.jumping import Repair, Seam
from playground.engine.grammar.remedies import DRAFT, PLAIN, Remedy
from playground.engine.trace import Pass, Trace
from playground.views import html, kv, tokens, verification
from playground.views.pricing import figures

NUM_SHOWN = 12  # seams or repairs
Texts = Mapping[int, str]


def at_step(trace: Trace, steps: Sequence[Pass], index: int, plain: Sequence[Pass]) -> Markup:
    """The text so far with what one pass added: forced tokens and the one that the model chose."""
    made, texts = steps[index], trace.texts
    before = [out.token for earlier in steps[:index] for out in earlier.outputs]
    new = [
        (out.token, "accepted" if i < made.num_verified else "plain", "forced" if i < made.num_verified else "chosen")
        for i, out in enumerate(made.outputs)
    ]
    slower = [out.token for each in plain if each.ended_ms <= made.ended_ms for out in each.outputs]
    forced = min(made.num_verified, len(made.outputs))
    said = f"{html.count(forced, 'forced token')}, {len(made.outputs) - forced} chosen by the model"
    return html.frame(
        html.section("Text so far, with jump-forward", tokens.context_strip(texts, before, new) + html.detail(), said),
        html.section("Without, at the same time", tokens.context_strip(texts, slower)) if slower else None,
        html.section("KV rows", Markup('<div class="kv">{}</div>').format(kv.strip("target", made.target_kv))),
        Markup('<p class="says">✓ forced by the grammar, appended unasked. The last one the model chose.</p>'),
    )


def remedy(trace: Trace, done: Remedy, repairs: Sequence[Repair], plain: Remedy) -> Markup:
    """One way of writing the document: its text, what it cost, its seams or repairs."""
    blocks = [html.section(f"The document: {done.name}", Markup("<pre>{}</pre>").format(done.text), _ends(done))]
    blocks.append(html.section("What it cost", costs([plain, done] if done.name != PLAIN else [done])))
    if done.name != PLAIN:
        blocks.append(html.note(*_change(done)))
    if repairs:
        rows = [_pair(r.old, r.new, trace.texts, ("was", "now")) for r in repairs[:NUM_SHOWN]]
        count = html.count(len(repairs), "repair")
        blocks.append(html.section("Tokens that were taken back", html.join(rows), count + _more(len(repairs))))
    elif done.seams:
        blocks.append(seams(done, trace.texts))
    return html.frame(*blocks)


def _ends(done: Remedy) -> str:
    finish = {"eos": "ended by the grammar", "length": "cut by the token limit"}.get(done.finish or "", "ended")
    return f"{html.count(done.num_tokens, 'token')}, {finish}"


def _change(done: Remedy) -> tuple[str, str]:
    if done.parts_at is None:
        return "The text is the same as without jumps, byte for byte.", "good"
    same = html.count(done.parts_at, "byte")
    return f"The text parts from the one without jumps after {same}: the model chose differently from there.", "warn"


def _more(count: int) -> str:
    return f", the first {NUM_SHOWN}" if count > NUM_SHOWN else ""


def seams(done: Remedy, texts: Texts) -> Markup:
    """The seams that the tokenizer would not have made, each as two rows of tokens."""
    bad = [seam for seam in done.seams if not seam.is_canonical]
    shown = list({(seam.written, seam.canonical): seam for seam in bad}.values())  # two seams may share their tokens
    said = f"{len(bad)} of {html.count(len(done.seams), 'seam')}"
    rows = [_seam(seam, texts) for seam in shown[:NUM_SHOWN]] or [
        html.note("The tokenizer cuts at every seam too.", "good")
    ]
    return html.section("Seams where the tokenizer would cut elsewhere", html.join(rows), said + _more(len(shown)))


def _seam(seam: Seam, texts: Texts) -> Markup:
    return _pair(seam.written, seam.canonical, texts, ("written", "canonical"))


def _pair(first: Sequence[int], second: Sequence[int], texts: Texts, names: tuple[str, str]) -> Markup:
    rows = [
        Markup("<div><span>{}</span>{}</div>").format(
            name, tokens.strip([tokens.chip(verification.text_of(texts, token)) for token in row])
        )
        for name, row in zip(names, (first, second), strict=True)
    ]
    return Markup('<div class="seam">{}</div>').format(html.join(rows))


def costs(ways: Sequence[Remedy]) -> Markup:
    """What each way cost, and whether the text is the one without jumps."""
    head = (
        "way", "sampled tokens", "forced bytes", "rejected", "KV rows written", "rolled back", "bad seams", "s",
        "same text",
    )  # fmt: skip
    rows = [
        (
            each.name,
            f"{each.sampled:,}",
            f"{100 * each.forced_bytes / each.num_bytes:.0f} %" if each.num_bytes else "–",
            f"{each.rejected:,}",
            f"{each.rows_written:,}",
            f"{each.rolled_back:,}",
            f"{each.bad_seams} of {len(each.seams)}" if each.seams else "–",
            html.number(each.ms / 1e3, 1),
            "yes" if each.parts_at is None else "no",
        )
        for each in ways
    ]
    return figures(head, rows, "What each way cost")


def whole(ways: Sequence[Remedy]) -> Markup:
    """All ways beside one another."""
    judged = next((each for each in ways if each.name == DRAFT), None)
    said = ""
    if judged is not None:
        said = (
            "Offered as a draft, the model judges every token: the text cannot change, and rejected tokens cost rows."
        )
    return html.frame(html.section("All ways", costs(ways)), html.note(said) if said else None)
