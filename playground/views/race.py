"""A speculative lane beside the plain one: a picture of each target pass, and one of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from markupsafe import Markup

from playground.engine.divergence import Divergence, between
from playground.engine.trace import Lane, Pass, Trace
from playground.views import clock, html, kv, tokens, verification

STATES = ("accepted", "rejected", "recovered", "bonus", "unjudged")
WHY = {
    "near tie": "Rounding decides such a tie, and a pass over several positions rounds differently.",
    "bug": "Rounding does not reach that far: something is wrong.",
}


@dataclass(frozen=True)
class Race:
    """What is drawn: both lanes, the texts of their tokens, and the dtype that they were computed in."""

    ours: Lane
    plain: Lane
    texts: Mapping[int, str]
    dtype: str = "fp32"

    @staticmethod
    def of(trace: Trace) -> Race:
        """The lanes ``speculative`` and ``plain`` of a trace."""
        dtype = str(trace.provenance.get("dtype", "fp32"))
        return Race(trace["speculative"], trace["plain"], trace.texts, dtype)


def at_step(race: Race, index: int, drafter: str) -> Markup:
    """Text so far, the verification, KV rows, and both clocks at the end of this pass."""
    step = race.ours.steps[index]
    done = replace(race.ours, steps=race.ours.steps[: index + 1])
    before = [*race.ours.prompt, *(out.token for earlier in done.steps[:-1] for out in earlier.outputs)]
    text = tokens.context_strip(race.texts, before, verification.new_tokens(step, race.texts))
    judged = verification.table(step, race.texts) + html.detail()
    return html.frame(
        html.section("Text so far", text, f"{len(before):,} tokens, then {len(step.outputs)} new"),
        html.section("This step", judged, f"drafter {drafter}: {html.count(len(step.nodes), 'token')}"),
        html.section("KV rows", kv.strips(step.target_kv, step.drafter_kv)),
        clocks(race, step.ended_ms),
        difference(between(done, race.plain, race.dtype), race),
        tokens.legend((*STATES, *(["discarded"] if step.discarded else []))),
    )


def at_end(race: Race) -> Markup:
    """Both outputs, each token by how it came; where they part; both clocks to the end."""
    found = between(race.ours, race.plain, race.dtype)
    same = "Both lanes put out the same tokens." if race.plain.finish else "The plain lane is still under way."
    ends = [lane.steps[-1].ended_ms for lane in (race.ours, race.plain) if lane.steps]
    return html.frame(
        html.section("Speculative: each token by how it came", output(race.ours, race.texts), size(race.ours)),
        html.section("Plain: a pass for each token", output(race.plain, race.texts) + html.detail(), size(race.plain)),
        difference(found, race) or html.note(same, "good" if race.plain.finish else ""),
        clocks(race, max(ends, default=0.0)),
        tokens.legend(("accepted", "recovered", "bonus", "plain")),
    )


def size(lane: Lane) -> str:
    """How many tokens in how many passes."""
    passes = html.count(len(lane.steps), "pass", "passes")
    return f"{html.count(len(lane.output_tokens), 'token')}, {passes}"


def output(lane: Lane, texts: Mapping[int, str]) -> Markup:
    """The output of a lane as chips."""
    return tokens.context_strip(texts, (), [new for step in lane.steps for new in verification.new_tokens(step, texts)])


def clocks(race: Race, until_ms: float) -> Markup:
    """Both lanes up to one moment of the speculative lane's clock."""
    lanes = [clock.lane(race.ours, until_ms), clock.lane(race.plain, until_ms, is_plain=True)]
    return html.section("One clock, in ms, from the prompt on", clock.clock(lanes), clock.keys())


def difference(found: Divergence | None, race: Race) -> Markup | None:
    """Where the outputs part, by which margin, and what that means; ``None`` while they agree."""
    if found is None:
        return None
    plain, ours = (word(lane, found.index, race.texts) for lane in (race.plain, race.ours))
    margin = "unknown" if found.margin is None else html.number(found.margin, 4)
    text = f"The outputs part at output token {found.index + 1}: plain has {plain}, speculative {ours}. "
    text += f"Top-2 margin there: {margin} in log-probability. Verdict: {found.verdict}. {WHY[found.verdict]}"
    return html.note(text, "warn" if found.verdict == "near tie" else "bad")


def word(lane: Lane, index: int, texts: Mapping[int, str]) -> str:
    """Output token ``index`` of a lane, in quotes; or that it has ended."""
    out = lane.output_tokens
    return tokens.spoken(verification.text_of(texts, out[index])) if index < len(out) else "no more"


def says(race: Race, index: int) -> str:
    """The status line of a step, or of the whole behind the last one."""
    if index < len(race.ours.steps):
        step: Pass = race.ours.steps[index]
        return verification.says(step) + (f" {step.note}" if step.note else "")
    passes = html.count(len(race.ours.steps), "target pass", "target passes")
    alone = f"Plain decoding {'took' if race.plain.finish else 'has made'} {len(race.plain.steps):,}."
    return f"{html.count(len(race.ours.output_tokens), 'token')} in {passes}. {alone}"
