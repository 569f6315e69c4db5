"""Greedy verification: which drafted tokens may stay, beside plain greedy decoding on one clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.engine import decode
from playground.engine.divergence import between
from playground.engine.drafters import Drafter, NoDrafter, Replay, never_right
from playground.engine.length import Fixed
from playground.engine.metrics import ratio, summarise
from playground.engine.model import LanguageModel
from playground.engine.sampling import Temperature, coins
from playground.engine.stop import Stop
from playground.engine.timing import pass_times
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.verify import verify_greedy
from playground.lab import Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, html, race

PASS_SIZES = (1, 16, 8, 4, 2, 12, 6, 3, 5, 10, 14)  # positions, so that few of them already show the shape
MIN_SIZES, PASS_TIME_S = 4, 2.0  # at least so many are measured; after so long no further one
FORESIGHT = ("oracle", "always_wrong")  # drafters made from the plain run
TRAINED = ("medusa", "eagle3", "eagle", "mtp", "tiny", "combination")
DRAFTERS = ("none", "ngram", "layer_skip", *TRAINED, "model", *FORESIGHT)
TARGET = "Decides. default is SmolLM2-135M, table a toy language; a hub id or a folder works too."
GUESSES = (
    "ngram copies from the text, layer_skip runs the first layers; medusa, eagle3, eagle, mtp and tiny were "
    "trained for the default target, combination is ngram, else eagle3; model is a named pair's; a hub id or folder "
    "works; oracle and always_wrong know the plain run."
)
PROMPT = (
    "Repeat after me exactly: the quick brown fox jumps over the lazy dog, the quick brown fox jumps over the lazy dog."
)


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", TARGET, choices=("default", "table"), free=True)
    prompt: str = control(PROMPT, "Prompt", lines=3)
    drafter: str = control("ngram", "Drafter", GUESSES, choices=DRAFTERS, free=True)
    draft_layers: int = control(
        26, "Draft layers", "Layers of the target that layer_skip runs; default has 30.", min=1, max=64, step=1
    )
    k: int = control(4, "Draft length k", "Tokens guessed per pass.", min=1, max=16, step=1)
    max_new_tokens: int = control(32, "New tokens", "At most.", min=1, max=128, step=1)
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")
    seed: int = control(0, "Seed", "Greedy decoding draws nothing.", min=0, max=2**31 - 1, step=1, group="More")


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The speculative and the plain lane on one clock; then the time of a pass by its positions."""
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = model.chat(params.prompt)
    about = {**model.provenance(), "drafter": params.drafter, "k": params.k}
    trace = Trace(texts=model.texts(prompt), provenance=about)
    trace = trace.open("speculative", prompt).open("plain", prompt).open("pass time")
    yield Progress("Warming up")
    next(greedy(model, prompt[:2], Replay(tuple(prompt)), params), None)  # the first pass of a process is slow

    plain = greedy(model, prompt, NoDrafter(), params)
    if params.drafter in FORESIGHT:
        yield Progress("Running the target alone first: this drafter is made from its output")
        for step in plain:
            trace = trace.add("plain", step, model.texts(step.tokens))
        reply = trace["plain"].output_tokens
        drafter: Drafter = Replay(reply if params.drafter == "oracle" else never_right(reply, prompt), params.drafter)
        events = (("speculative", step) for step in greedy(model, prompt, drafter, params))
    else:
        drafter = yield from models.drafter(
            params.drafter, model, prompt, knobs=(Temperature(0.0),), draft_layers=params.draft_layers
        )
        events = decode.race({"speculative": greedy(model, prompt, drafter, params), "plain": plain})
    for name, step in events:
        trace = trace.add(name, step, model.texts(step.tokens))
        yield trace

    yield Progress("Measuring a pass by its positions")
    began, session = time.perf_counter(), model.session([*prompt, *trace["plain"].output_tokens[:1]])
    for timed in pass_times(session, PASS_SIZES):
        trace = trace.add("pass time", timed)
        yield trace
        if time.perf_counter() - began > PASS_TIME_S and len(trace["pass time"].steps) >= MIN_SIZES:
            break


def greedy(model: LanguageModel, prompt: Sequence[int], drafter: Drafter, params: Params) -> Iterator[Pass]:
    """Greedy decoding with ``drafter``; its first pass reads the prompt."""
    return decode.speculate(
        model.session(prompt, drafter.taps),
        drafter,
        rule=verify_greedy,
        length=Fixed(params.k),
        coin=coins(params.seed),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )


# --- Figures ----------------------------------------------------------------------------------------------------------


def summary(trace: Trace) -> dict[str, Any]:
    """Headline figures; also of a run that was stopped. ``identical_to_plain`` is ``None`` while nobody can know."""
    lanes = {lane.name: lane for lane in trace.lanes}
    speculative, plain = lanes.get("speculative", Lane("")), lanes.get("plain", Lane(""))
    figures, alone = summarise(speculative), summarise(plain)
    found = between(speculative, plain, str(trace.provenance.get("dtype", "fp32")))
    both_ended = bool(speculative.finish and plain.finish)
    fast, slow = figures["tokens_per_second"], alone["tokens_per_second"]
    return {
        **{name: value for name, value in figures.items() if name not in ("num_drafts", "mean_emitted_length")},
        "plain_tokens_per_second": slow,
        "measured_speedup": ratio(fast, slow) if fast and slow else None,
        "identical_to_plain": False if found else True if both_ended else None,
        "first_divergence": found.index if found else None,
        "divergence_margin": found.margin if found else None,
    }


def figures(summary: Mapping[str, Any]) -> Sequence[Figure]:
    """The figures row."""
    s = summary
    same, label = {True: "yes", False: "no", None: "–"}[s["identical_to_plain"]], "same text as plain"
    if s["first_divergence"] is not None:
        label += f" (up to token {s['first_divergence']})"
    rate, speedup = s["acceptance_rate"], s["measured_speedup"]
    return (
        Figure(html.number(ratio(s["output_tokens"], s["target_passes"])), "tokens per target pass", "measured"),
        Figure("–" if rate is None else f"{100 * rate:.0f} %", "of drafted tokens accepted", "measured"),
        Figure("–" if speedup is None else f"{speedup:.2f}×", "the speed of plain decoding", "measured"),
        Figure(same, label, "measured"),
    )


# --- Pictures ---------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """One frame per pass of the speculative lane, and one of the whole once it has ended."""
    lane = trace.lanes[0] if trace.lanes else Lane("")
    return len(lane.steps) + bool(lane.finish)


def frame(trace: Trace, index: int) -> Frame:
    """One target pass, or, behind the last one, both outputs."""
    both = race.Race.of(trace)
    at_end = index >= len(both.ours.steps)
    html = race.at_end(both) if at_end else race.at_step(both, index, str(trace.provenance.get("drafter", "")))
    return Frame(race.says(both, index), html)


def pass_time_chart(trace: Trace) -> Any:
    """Measured time of a pass against what the same positions would take one by one."""
    timed = next((lane.steps for lane in trace.lanes if lane.name == "pass time"), ())
    if len(timed) < 2:
        return None
    points = sorted((t.positions, t.ms) for t in timed)
    one_by_one = [(n, n * points[0][1]) for n, _ in points]
    return charts.lines({"one pass": points, "one by one": one_by_one}, "positions in the pass", "ms")


def position_chart(trace: Trace) -> Any:
    """Share accepted at each draft position: of all drafts, and of those that got that far."""
    s = summarise(trace.lanes[0]) if trace.lanes else {}
    if not s.get("num_drafts"):
        return None
    names = {"of all drafts": "acceptance_per_position", "of drafts that got there": "conditional_per_position"}
    series = {name: list(enumerate(s[key], start=1)) for name, key in names.items()}
    fig = charts.bars(series, "draft position", "accepted")
    return fig.update_yaxes(range=[0, 1.05], tickformat=".0%").update_xaxes(dtick=1)


HOW = """
**One step.** The drafter guesses `k` tokens. The target reads the last committed token and the `k` guesses in *one*
pass and gives `k + 1` rows of logits: row 0 says what follows the committed text, row `i` what follows guess `i`,
given that all guesses up to there are right. Row 0 judges guess 1, row 1 judges guess 2, and so on.

**Verification.** Guesses stand up to the first that is not the target's argmax. Rows behind it were computed on a
wrong text and are worthless. One more token is free: the row behind the last accepted guess was computed on the right
text, so its argmax is what the target would have said. After a rejection it is called *recovered*, after full
acceptance *bonus*. So a pass puts out `accepted + 1` tokens, at least one: a bad drafter costs time, never text.

**KV rows.** The pass wrote `1 + k` rows, one for each token that it read. Kept are `1 + accepted`, rolled back `k -
accepted`. The token that follows has no row yet; the next pass reads it. After full acceptance the drafter's cache is
one row short: it proposed its last token but never read it. It must read that token before it drafts again; a drafter
that forgets this drafts from a text with a hole.

**Why it pays.** A pass over a few positions reads the same weights as a pass over one, and reading the weights is
most of the work while the batch is small. The chart of pass times measures it on this machine: where the line of one
pass runs below *one by one*, checking guesses is cheaper than decoding them.

**Why the text can still differ.** Greedy verification is exact: same logits, same text. But a pass over five
positions sums in another order than a pass over one, and in bf16 two logits that differ by less than a rounding step
can change places. Then the outputs part at a near tie, and from there on they are different texts. The page shows the
top-2 margin at the first difference: a few rounding steps mean a near tie; a large margin means a bug. In fp32 the
two lanes agree.

**What is measured.** Both lanes run here, in turns, each on its own clock. The first pass of each reads the prompt.
Drafting, verifying (the target's pass) and everything else are timed apart. The *oracle* and *always_wrong* drafters
are made from the plain run, which goes first; the cost of knowing it is **not counted**: the oracle is the ceiling of
what any drafter could reach at this `k`, not a method.
"""

LAB = Lab(
    slug="greedy_verification",
    title="Greedy verification",
    question="Which drafted tokens may stay, and why can the result still differ from plain greedy decoding?",
    group="verify",
    order=10,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart(
            "What a pass costs by its positions",
            pass_time_chart,
            (
                "Measured on the target of this run, behind its prompt. The distance between the lines is what "
                "verification saves."
            ),
        ),
        Chart(
            "Accepted by draft position",
            position_chart,
            (
                "Later positions count only when all earlier ones stood, so the bars over all drafts fall; the others "
                "need not."
            ),
        ),
    ),
    how=HOW,
    code=lambda params: (verify_greedy,),
    questions=(
        Question(
            (
                "Derive greedy verification: given k draft tokens and one target pass, which tokens are put out, and "
                "which KV rows stay?"
            ),
            (
                (
                    "The pass reads the last committed token and the k drafts and gives k + 1 rows; row i judges draft "
                    "i + 1."
                ),
                (
                    "Drafts stand up to the first that differs from the argmax of its row; the argmax of that row "
                    "follows, or the bonus when all stood."
                ),
                "1 to k + 1 tokens per pass, and exactly those of plain greedy decoding.",
                (
                    "1 + k rows written, 1 + accepted kept, k - accepted rolled back; the token that follows has no "
                    "row yet."
                ),
            ),
            (
                "How does the drafter's cache differ from the target's after full acceptance?",
                "What changes when an end-of-sequence token stands inside the draft?",
                "Which part of this survives when the draft is a tree?",
            ),
            (
                "Shifting by one: judging draft i with the row behind it.",
                "Using argmaxes behind the first mismatch, which were computed on a wrong text.",
                "Keeping the row of a rejected draft, or giving the bonus token a row that it does not have.",
            ),
            "code",
        ),
        Question(
            "A drafter is wrong every time. What does the user lose?",
            (
                "Not one token: every pass still puts out the target's own choice.",
                "Time: drafting, and a pass over k + 1 positions instead of one.",
            ),
            ("From which acceptance on does a draft of k pay, given the times on this page?",),
            ("Saying that quality drops, or that the output becomes a mixture of both models.",),
            "always_wrong",
        ),
        Question(
            "In bf16 the speculative output differs from the plain one. Is that a bug?",
            (
                (
                    "Look at the top-2 margin where they first differ: within a few rounding steps of bf16 it is a "
                    "near tie, otherwise a bug."
                ),
                "Passes of different shapes sum in different orders; neither output is the right one.",
                "Everything behind the first difference is a different text and says nothing.",
            ),
            (
                "How would you test an engine for equality, then?",
                "Why does batching other requests alongside have the same effect?",
            ),
            ("Counting differing tokens behind the first difference.", "Expecting bit equality from a GPU in bf16."),
            "bf16_near_tie",
        ),
    ),
    sources=(
        (
            "Leviathan, Kalman, Matias 2023: Fast inference from transformers via speculative decoding",
            "https://arxiv.org/abs/2211.17192",
        ),
        (
            "Chen et al. 2023: Accelerating large language model decoding with speculative sampling",
            "https://arxiv.org/abs/2302.01318",
        ),
        ("Stern, Shazeer, Uszkoreit 2018: Blockwise parallel decoding", "https://arxiv.org/abs/1811.03115"),
        ("vLLM: speculative decoding", "https://docs.vllm.ai/en/latest/features/spec_decode.html"),
        ("Transformers: assisted decoding", "https://huggingface.co/docs/transformers/main/en/assisted_decoding"),
    ),
)
