"""N-gram drafts: copy what followed the same words before; several match lengths, and when to turn it off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from playground.engine.cost import Priced, cost_ratio, losing_batch, max_batch, tensor_parallel
from playground.engine.decode import speculate
from playground.engine.drafters import Match, NGram, find_match
from playground.engine.length import Fixed
from playground.engine.metrics import count, ratio
from playground.engine.model import LanguageModel, Session
from playground.engine.sampling import Context, coins
from playground.engine.serving import Contender, speeds
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.timing import pass_times
from playground.engine.trace import Lane, Pass, Trace, step
from playground.engine.tree import Draft
from playground.engine.verify import verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, brief, control
from playground.views import charts, html, lookup, pricing, tokens

LANE = "n = "
MAX_LANES = 4
MODELS = (
    "llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m", "deepseek-v3",
)  # fmt: skip
BATCHES = tuple(2**i for i in range(10))

TARGET = "default is SmolLM2-135M, table a toy language; a hub id or a folder works too."
PROMPT = """Rename db to store in this file. Reply with the whole file.

```python
def load_user(db, user_id):
    user = db.get(user_id)
    if user is None:
        raise KeyError(user_id)
    return user

def rename_user(db, user_id, name):
    user = load_user(db, user_id)
    user.name = name
    db.save(user)
    return user

def delete_user(db, user_id):
    user = load_user(db, user_id)
    db.delete(user)
    return user
```"""
REPLY = PROMPT.partition("\n\n")[2].replace("db", "store")


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", TARGET, choices=("default", "table"), free=True)
    prompt: str = control(PROMPT, "Prompt", lines=6)
    reply: str = control(REPLY, "Dictated reply", "Empty: the model replies freely.", lines=6)
    match_lengths: tuple[int, ...] = control((1, 2, 4), "Match lengths n", "At most four, a lane each.", min=1, max=16)
    k: int = control(8, "Draft length k", "Tokens copied at most.", min=1, max=16, step=1)
    max_new_tokens: int = control(64, "New tokens", min=1, max=160, step=1, group="Run")
    seed: int = control(0, "Seed", "Greedy: it changes nothing.", min=0, max=2**31 - 1, step=1, group="Run")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="Run")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="Run")
    priced_target: str = control("llama-3.3-70b", "Priced model", choices=MODELS, free=True, group="Price")
    priced_context: int = control(1024, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")

    def __post_init__(self) -> None:
        if not 1 <= len(self.match_lengths) <= MAX_LANES or len(set(self.match_lengths)) != len(self.match_lengths):
            raise BadInput(
                f"match_lengths takes one to {MAX_LANES} different lengths, not {brief(self.match_lengths)}."
            )


@step
@dataclass(frozen=True)
class LookUpPass(Pass):
    """A pass whose draft was copied from behind ``match``."""

    match: Match | None = None


@dataclass(frozen=True)
class Dictate:
    """Leaves only the next token of ``reply`` wherever the text so far is a beginning of it; other rows stay."""

    reply: tuple[int, ...]
    reads_context = True

    def __call__(self, logits: Any, contexts: Sequence[Context] | None) -> Any:
        logits = logits.clone()
        for row, context in zip(logits, contexts or (), strict=True):
            said = tuple(context.tokens[context.num_prompt :])
            if len(said) < len(self.reply) and said == self.reply[: len(said)]:
                token = self.reply[len(said)]
                own = float(row[token])
                row.fill_(-math.inf)[token] = own
        return logits


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """One lane per match length, step by step side by side; then the time of a pass is measured."""
    price = priced(params, models)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt, reply = read(model, params)
    about = {**model.provenance(), "k": params.k, "priced_context": params.priced_context, "num_dictated": len(reply)}
    trace = Trace(texts=model.texts(prompt), provenance=about).open("priced").add("priced", price)
    yield Progress("Reading the prompt")
    read_prompt = prefilled(model, prompt)
    lanes = {f"{LANE}{n}": look_up(model, read_prompt.fork(), n, reply, params) for n in params.match_lengths}
    for name in lanes:
        trace = trace.open(name, prompt)
    while lanes:
        for name, lane in list(lanes.items()):
            new = next(lane, None)
            if new is None:
                del lanes[name]
                continue
            trace = trace.add(name, new, model.texts(tokens_of(new)))
            yield trace
    trace = trace.open("pass time")
    for timed in pass_times(read_prompt, sorted({1, 1 + params.k // 2, 1 + params.k})):
        trace = trace.add("pass time", timed)
        yield trace


def priced(params: Params, models: Models) -> Priced:
    """The model and hardware of the price; raises ``BadInput`` with the names there are."""
    try:
        pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
        return Priced(models.shape(params.priced_target), pod)
    except ValueError as error:
        raise BadInput(str(error)) from None


def read(model: LanguageModel, params: Params) -> tuple[list[int], tuple[int, ...]]:
    """Prompt and dictated reply as tokens; the reply ends with an end-of-sequence id where the model has one."""
    try:
        prompt = model.chat(params.prompt)
        reply = [*model.encode(params.reply), *sorted(model.eos_ids)[:1]] if params.reply else []
    except ValueError as error:
        raise BadInput(str(error)) from None
    if not prompt:
        raise BadInput("The prompt is empty; write at least one word.")
    if len(prompt) >= model.max_tokens:
        raise BadInput(f"The prompt has {len(prompt):,} tokens; this model reads at most {model.max_tokens:,}.")
    return prompt, tuple(reply)


def prefilled(model: LanguageModel, prompt: Sequence[int]) -> Session:
    """A session that has read the prompt once, for every lane to fork."""
    if len(prompt) == 1:
        return model.session(prompt)
    session = model.session(prompt[:-1])
    session.score(Draft())
    session.commit((), prompt[-1])
    return session


def look_up(
    model: LanguageModel, session: Session, n: int, reply: tuple[int, ...], params: Params
) -> Iterator[LookUpPass]:
    """Greedy decoding with drafts copied from behind the last place where the same ``n`` tokens stood."""
    drafter = NGram(longest=n, shortest=n, eos_ids=model.eos_ids)
    passes = speculate(
        session,
        drafter,
        rule=verify_greedy,
        length=Fixed(params.k),
        coin=coins(params.seed),
        knobs=(Dictate(reply),) if reply else (),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )
    for made in passes:
        yield LookUpPass(**vars(made), match=drafter.match if made.nodes else None)


def tokens_of(made: Pass) -> list[int]:
    """Every token that a picture of the pass may show."""
    return sorted({n.token for n in made.nodes} | {o.token for o in made.outputs})


# --- Figures ----------------------------------------------------------------------------------------------------------


def lanes_of(trace: Trace) -> dict[int, Lane]:
    """The lanes of passes by match length."""
    return {int(lane.name[len(LANE) :]): lane for lane in trace.lanes if lane.name.startswith(LANE)}


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    """The steps of a lane; none while the trace has no such lane."""
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Drafted, accepted and put out by match length; what a pass costs here and on the priced model."""
    lanes = {str(n): lane for n, lane in lanes_of(trace).items()}
    counters = {n: count(lane.steps) for n, lane in lanes.items()}
    accepted = {n: c.accepted_tokens for n, c in counters.items()}
    per_step = {n: ratio(len(lane.output_tokens), len(lane.steps)) for n, lane in lanes.items()}
    drafted = {n: ratio(c.drafted_tokens, len(lanes[n].steps)) for n, c in counters.items()}
    outputs = [out for lane in lanes.values() for made in lane.steps for out in made.outputs]
    return {
        "drafted_by_length": {n: c.drafted_tokens for n, c in counters.items()},
        "accepted_by_length": accepted,
        "acceptance_rate_by_length": {n: c.acceptance_rate for n, c in counters.items()},
        "tokens_per_step_by_length": per_step,
        "target_passes_by_length": {n: len(lane.steps) for n, lane in lanes.items()},
        "most_accepted_length": max(accepted, key=accepted.get) if any(accepted.values()) else None,
        "output_tokens": max((len(lane.output_tokens) for lane in lanes.values()), default=0),
        "identical_output": len({lane.output_tokens for lane in lanes.values()}) == 1 if lanes else None,
        "finish_reason": next((lane.finish for lane in lanes.values()), None),
        "is_dictated": bool(trace.provenance.get("num_dictated")),
        "own_probability": ratio(sum(math.exp(out.logprob) for out in outputs), len(outputs)),
        "measured": measured(trace, lanes),
        "priced": price(trace, per_step, drafted, {n: c.acceptance_rate for n, c in counters.items()}),
    }


def measured(trace: Trace, lanes: Mapping[str, Lane]) -> dict[str, Any]:
    """t(k + 1) / t(1) on this machine, and each lane's speed against plain passes of the time measured here."""
    times = {timed.positions: timed.ms for timed in steps_of(trace, "pass time")}
    plain, wide = times.get(1), times.get(1 + trace.provenance.get("k", 0))
    speed = {
        n: ratio(len(lane.output_tokens) * plain, lane.steps[-1].ended_ms) if plain and lane.steps else None
        for n, lane in lanes.items()
    }
    return {"plain_pass_ms": plain, "cost_ratio": wide / plain if plain and wide else None, "speedup_by_length": speed}


Means = Mapping[str, "float | None"]


def price(trace: Trace, per_step: Means, drafted: Means, rates: Means) -> dict[str, Any] | None:
    """Where tokens per step fall below the priced cost of a step: with k drafts in each, and with those really made.

    Speed by batch and the changes of the winner charge every pass with k drafts.
    """
    made = next(iter(steps_of(trace, "priced")), None)
    if made is None:
        return None
    k, context, served = trace.provenance["k"], trace.provenance["priced_context"], (made.shape, made.hardware)
    wide = {n: 1 + k if mean else 1 for n, mean in drafted.items()}  # a lane that drafts nothing makes plain passes
    off = {n: mean and losing_batch(*served, mean, wide[n], context) for n, mean in per_step.items()}
    off_as_drafted = {n: mean and losing_batch(*served, mean, 1 + drafted[n], context) for n, mean in per_step.items()}
    return {
        **price_of(made, contenders(k, per_step, drafted, rates), context, BATCHES),
        "draft_cost": 0.0,
        "max_batch": max_batch(*served, context),
        "cost_ratio_by_batch": {str(b): cost_ratio(*served, b, k + 1, context) for b in BATCHES},
        "turn_off_at_batch_by_length": off,
        "turn_off_at_batch_as_drafted_by_length": off_as_drafted,
    }


def contenders(k: int, per_step: Means, drafted: Means, rates: Means) -> list[Contender]:
    """The lanes that draft anything, as free drafters that put out what was measured."""
    return [
        Contender(f"n = {n}", 0.0, (1.0,) * k + (mean,), k, rates[n])
        for n, mean in per_step.items()
        if mean and drafted[n]
    ]


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    lengths, priced_ = " / ".join(result["drafted_by_length"]), result["priced"] or {}

    def each(name: str, show: Callable[[Any], str]) -> str:
        return " / ".join("–" if v is None else show(v) for v in result[f"{name}_by_length"].values()) or "–"

    off = priced_.get("turn_off_at_batch_by_length", {}).values()
    cost = result["measured"]["cost_ratio"]
    same = {True: "yes", False: "no", None: "–"}[result["identical_output"]]
    return (
        Figure(each("tokens_per_step", lambda v: f"{v:.2f}"), f"tokens per pass, n = {lengths}", "measured"),
        Figure(each("acceptance_rate", lambda v: f"{100 * v:.0f} %"), "of the copied tokens accepted", "measured"),
        Figure("–" if cost is None else f"{cost:.2f}×", "a pass with k drafts here, in plain passes", "measured"),
        Figure(" / ".join(map(never, off)), f"loses from this batch on, {priced_.get('target', '–')}", "priced"),
        Figure(same, "same text in every lane", "measured"),
    )


def never(batch: int | None) -> str:
    return "never" if batch is None else f"{batch:,}"


# --- Frames -----------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """Rounds in which every lane that still runs has made its step."""
    lanes = lanes_of(trace).values()
    running = [len(lane.steps) for lane in lanes if lane.finish is None]
    return min(running) if running else max((len(lane.steps) for lane in lanes), default=0)


def frame(trace: Trace, index: int) -> Frame:
    lanes = lanes_of(trace)
    body = html.frame(
        *(lane_section(trace, n, lane, index) for n, lane in lanes.items()),
        html.detail(),
        html.join([lookup.keys(), tokens.legend(("accepted", "rejected", "unjudged", "recovered", "bonus", "plain"))]),
        html.note(DICTATED) if trace.provenance.get("num_dictated") else None,
    )
    return Frame("; ".join(f"n = {n}: {lane_says(lane, index)}" for n, lane in lanes.items()) + ".", body)


ENDS = {
    "eos": "Done: the reply has ended.",
    "length": "Done: the number of new tokens is reached.",
    "context": "Done: the model reads no further token.",
}


def lane_says(lane: Lane, index: int) -> str:
    if index >= len(lane.steps):
        return f"done after {html.count(len(lane.steps), 'pass', 'passes')}"
    return lookup.says(lane.steps[index], lane.steps[index].match)


def lane_section(trace: Trace, n: int, lane: Lane, index: int) -> html.Text:
    """One lane at one step: its figures so far, where it looked, and the copy with its verdict."""
    seen = lane.steps[: index + 1]
    num_out = sum(len(made.outputs) for made in seen)
    mean = html.number(ratio(num_out, len(seen)))
    aside = f"{html.count(num_out, 'token')} in {html.count(len(seen), 'pass', 'passes')}: {mean} per pass"
    if index >= len(lane.steps):
        return html.section(f"n = {n}", html.note(ENDS.get(str(lane.finish), f"Done: {lane.finish}.")), aside)
    made = seen[-1]
    context = [*lane.prompt, *(out.token for earlier in seen[:-1] for out in earlier.outputs)]
    parts = [
        lookup.place(context, len(lane.prompt), made, made.match),
        lookup.table(context, made, made.match, trace.texts),
        html.note(made.note, "warn") if made.note else "",
    ]
    return html.section(f"n = {n}", html.join(parts), aside)


# --- Charts -----------------------------------------------------------------------------------------------------------


def drafted_chart(trace: Trace) -> Any:
    result = summary(trace)
    if not result["output_tokens"]:
        return None
    rates = result["acceptance_rate_by_length"]
    names = {n: f"n = {n}" + ("" if rate is None else f" ({100 * rate:.0f} %)") for n, rate in rates.items()}
    keys = ("drafted", "accepted")
    series = {key: [(names[n], value) for n, value in result[f"{key}_by_length"].items()] for key in keys}
    return charts.bars(series, "match length, and the share accepted", "tokens")


def here_chart(trace: Trace) -> Any:
    times = steps_of(trace, "pass time")
    if len(times) < 2:
        return None
    cost = [(timed.positions, timed.ms / times[0].ms) for timed in times]
    levels = {f"tokens per pass, n = {n}": mean for n, mean in summary(trace)["tokens_per_step_by_length"].items()}
    return cost_and_levels("cost here: t(n) / t(1)", cost, levels, "positions in a pass")


def batch_chart(trace: Trace) -> Any:
    result, made = summary(trace), next(iter(steps_of(trace, "priced")), None)
    if made is None or not result["output_tokens"]:
        return None
    k, context = trace.provenance["k"], trace.provenance["priced_context"]
    batches = sorted({round(2 ** (i / 4)) for i in range(4 * len(BATCHES) - 3)})
    cost = [(b, cost_ratio(made.shape, made.hardware, b, k + 1, context)) for b in batches]
    off = result["priced"]["turn_off_at_batch_by_length"]
    means = result["tokens_per_step_by_length"].items()
    levels = {f"n = {n}: {f'loses from B = {off[n]}' if off[n] else 'never loses'}": mean for n, mean in means}
    crossings = [(off[n], mean) for n, mean in means]
    return cost_and_levels(f"cost: t({k + 1}) / t(1)", cost, levels, "batch size B", crossings, log_x=True)


def speed_chart(trace: Trace) -> Any:
    """Speed against plain decoding over the batch, lane by lane, with the batches at which the winner changes."""
    result, made = summary(trace), next(iter(steps_of(trace, "priced")), None)
    per_step, rates = result["tokens_per_step_by_length"], result["acceptance_rate_by_length"]
    lanes = contenders(trace.provenance.get("k", 0), per_step, result["drafted_by_length"], rates)
    if made is None or not lanes:
        return None
    sizes, context = np.array([2 ** (i / 4) for i in range(4 * len(BATCHES) - 3)]), trace.provenance["priced_context"]
    curves = {c.name: list(zip(sizes, speeds(made, c, sizes, context), strict=True)) for c in lanes}
    return pricing.over_batch(curves, result["priced"]["flips"], result["priced"]["max_batch"])


def cost_and_levels(
    name: str,
    cost: charts.Points,
    levels: Mapping[str, float | None],
    x_title: str,
    crossings: charts.Points = (),
    log_x: bool = False,
) -> Any:
    """A cost curve and the tokens per pass as level lines: where a level lies below the curve, drafting loses."""
    ends = (cost[0][0], cost[-1][0])
    lines = {name: cost} | {level: [(x, mean) for x in ends] for level, mean in levels.items()}
    fig = charts.lines(lines, x_title, "plain passes, tokens per pass", log_x=log_x)
    fig.update_traces(mode="lines")
    on = [(x, y) for x, y in crossings if x and x <= ends[1]]
    marker = {"size": 10, "symbol": "x", "color": charts.MUTED}
    fig.add_scatter(x=[x for x, _ in on], y=[y for _, y in on], mode="markers", marker=marker, showlegend=False)
    return fig


# --- Page -------------------------------------------------------------------------------------------------------------

DICTATED = (
    "The reply is dictated: where the text so far is a beginning of the reply, the target's choice is set to the "
    "reply's next token. The look-up, the comparison, every pass of the model and its time are real; so is the model's "
    "own probability, shown for each output token."
)

HOW = """
The drafter has no weights. It takes the last **n** tokens of the text, prompt included, finds the first earlier place
where the same n tokens stood, and copies up to **k** tokens from behind it. The target judges the copy in one pass,
as it would judge any draft, so the text is the one that plain decoding gives.

**Match length.** One token is found almost everywhere: many drafts, often from the wrong place. Four tokens are found
seldom, but then the copy is mostly right. In a rename the match also breaks at each new name: a long match holds
again only when all of its tokens have gone by, a single token at once. So the share accepted rises with n, and the
number of accepted tokens is often largest in the middle. Engines usually try a long match first and fall back to
shorter ones; here each lane has one length, so that they can be told apart.

**What is dictated.** A model of 135M parameters cannot rename reliably. With a reply given, one thing is fixed: where
the text so far is a beginning of the reply, the target's choice is the reply's next token. A draft that leaves the
reply is rejected at that token, whatever the rows behind it say. The model still runs every pass, so times are real,
and its own probability of each dictated token is shown. Leave the reply empty and the model writes freely.

**When to turn it off.** A pass with k drafts costs t(k + 1) instead of t(1). When tokens per pass fall below t(k + 1)
/ t(1), plain decoding is faster. Here the ratio is measured on a batch of one. For the priced model it is the
roofline's: 1 while the pass waits for weights and KV, then growing with the batch once batch · (k + 1) tokens fill
the compute units. That charges every pass with k drafts. A server that pays only for the tokens really drafted
compares with t(1 + mean drafted), which keeps a long match useful up to larger batches
(`turn_off_at_batch_as_drafted_by_length` in the summary). The look-up costs next to nothing: its time is in the run's
draft times.
"""

QUESTIONS = (
    Question(
        ask="For which requests would you switch n-gram drafts on, and how would you choose the match length?",
        answer=(
            "Where the reply repeats the prompt or itself: edits of code, renames, extraction, quotations, forms.",
            "A short match drafts often and is often wrong; a long one drafts seldom and is mostly right.",
            "What counts is tokens per pass against the cost of a pass, not drafts or the accepted share alone.",
            "The best length depends on how often the copy is interrupted: measure it on your own traffic.",
        ),
        follow_ups=(
            "Why does a long match wait after each changed name? (All n tokens must have stood together before.)",
            "What if it copied from the last place instead of the first? (It would follow the reply's own new names.)",
        ),
        mistakes=(
            "Judging by the share accepted: the longest match can win it and still give fewer tokens per pass.",
            "Expecting a changed text: greedy verification gives the plain output whatever was copied.",
        ),
        preset="rename",
    ),
    Question(
        ask="The drafts are free. Why can n-gram speculation still slow a server down?",
        answer=(
            "Verifying k drafts makes the pass k + 1 positions wide; past the ridge of the hardware that costs time.",
            "Where almost nothing is accepted, a pass still gives one token and costs t(k + 1).",
            "So compare tokens per pass with t(k + 1) / t(1) at the batch that is running; below it, turn it off.",
        ),
        follow_ups=("Where does a long context move it? (Upwards: KV reads grow with the batch, not with k.)",),
        mistakes=("Tuning at batch 1 on an idle GPU and keeping the setting at the evening peak.",),
        preset="open_chat",
    ),
    Question(
        ask="Every copied token is right. What limits the speed-up?",
        answer=(
            "A pass gives at most k + 1 tokens and costs t(k + 1), so at most (k + 1) · t(1) / t(k + 1).",
            "The copy must also be found first, and it ends where the copied place ends.",
            "A larger k helps here and costs more wherever the copy fails.",
        ),
        follow_ups=("What could choose k while it runs? (The match length: a longer match is more likely to go on.)",),
        mistakes=("Counting accepted drafts and forgetting the token that the target adds itself.",),
        preset="free_copy",
    ),
)

SOURCES = (
    ("Saxena 2023: Prompt lookup decoding", "https://github.com/apoorvumang/prompt-lookup-decoding"),
    ("Yang et al. 2023: Inference with Reference", "https://arxiv.org/abs/2304.04487"),
    ("Williams, Waterman, Patterson 2009: Roofline", "https://doi.org/10.1145/1498765.1498785"),
)

LAB = Lab(
    slug="ngram",
    title="N-gram drafts",
    question="How far does copying from the text so far get without any draft model, and when should it be off?",
    group="draft",
    order=30,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Drafted and accepted", drafted_chart, "Measured: tokens of the whole run by match length."),
        Chart("When to turn it off: here", here_chart, "Measured: passes of the target on this machine, batch 1."),
        Chart("Speed over batch: priced", speed_chart, "Priced: data-sheet roofline, this run's tokens per pass."),
        Chart("When to turn it off: priced", batch_chart, "Priced: data-sheet roofline, k drafts in every pass."),
    ),
    how=HOW,
    code=lambda params: (find_match, NGram.propose),
    questions=QUESTIONS,
    sources=SOURCES,
)
