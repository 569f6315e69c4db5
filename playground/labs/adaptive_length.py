"""Adaptive draft length: what a k per class or per request gains, in closed form, simulated, and on a real model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from playground.engine.adaptive import (
    CHAT,
    CODE,
    MAX_K,
    Controller,
    Costs,
    Estimate,
    Mix,
    best_length,
    estimate,
    gain,
    linear_costs,
    simulate,
)
from playground.engine.decode import speculate
from playground.engine.length import Fixed, Length
from playground.engine.metrics import count, ratio
from playground.engine.model import LanguageModel
from playground.engine.sampling import coins
from playground.engine.stop import Stop
from playground.engine.timing import PassTime, pass_times
from playground.engine.trace import Pass, Trace, step
from playground.engine.verify import verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import adapting, html, tokens, verification

BATCHES = (1, 2, 4, 8, 16, 32)
COSTS = (0.02, 0.04, 0.08, 0.12, 0.19, 0.3, 0.5)
NONE = "none"
WIDTHS = (1, 2, 4, 8, 12)  # positions of the passes that are timed for the real controller
LONGEST = 11  # draft of the real controller
FIXED, ADAPTED = "fixed", "controller"
REAL = tuple(f"{kind}, {policy}" for kind in (CODE, CHAT) for policy in (FIXED, ADAPTED))

CODE_PROMPT = """Copy this code exactly.

```python
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)
```"""
CHAT_PROMPT = "Tell me something about your day."


@dataclass(frozen=True)
class Params:
    alpha_code: float = control(0.77, "Acceptance on code", "Chance of a draft to stand.", min=0, max=0.99, step=0.01)
    alpha_chat: float = control(0.35, "Acceptance in chat", min=0, max=0.99, step=0.01)
    cost: float = control(
        0.19, "Cost of a drafted token c", "In plain passes: .04 is a good head, .19 an expensive drafter.",
        min=0.0, max=1.0, step=0.01,
    )  # fmt: skip
    fixed_k: int = control(4, "Fixed k", "Left over from another drafter.", min=0, max=MAX_K, step=1)
    share_code: float = control(0.5, "Share of code", "Of the output tokens.", min=0, max=1, step=0.05)
    batch: int = control(1, "Batch", "Sequences in lock-step.", min=1, max=32, step=1)
    arrivals: str = control(
        "in turn", "Arrivals", "Code and chat evenly mixed, or by chance.", choices=("in turn", "at random")
    )
    seed: int = control(0, "Seed", min=0, max=2**31 - 1, step=1)
    target: str = control(
        NONE, "Real lane", "Then the controller drives this model: default, table, a hub id or a folder.",
        choices=(NONE, "default", "table"), free=True, group="Real lane",
    )  # fmt: skip
    drafter: str = control(
        "ngram", "Drafter", choices=("ngram", "layer_skip", "medusa", "eagle3", "eagle", "mtp", "tiny"), free=True,
        group="Real lane",
    )  # fmt: skip
    code_prompt: str = control(CODE_PROMPT, "Code prompt", lines=4, group="Real lane")
    chat_prompt: str = control(CHAT_PROMPT, "Chat prompt", lines=2, group="Real lane")
    max_new_tokens: int = control(32, "New tokens", "Of each prompt.", min=1, max=128, step=1, group="Real lane")

    @property
    def mix(self) -> Mix:
        return Mix(self.alpha_code, self.alpha_chat, self.share_code)

    @property
    def is_in_turn(self) -> bool:
        return self.arrivals == "in turn"


@step
@dataclass(frozen=True)
class Adapted(Pass):
    """A pass whose draft length a controller chose at this estimate of alpha; both are ``None`` for a fixed length."""

    alpha: float | None = None
    k: int | None = None


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The simulation block by block; then, if asked for, the controller on a real model."""
    costs = linear_costs(params.cost)
    trace = Trace().open("simulation")
    for block in simulate(params.mix, costs, params.fixed_k, params.batch, params.seed, params.is_in_turn):
        trace = trace.add("simulation", block)
        yield trace
    if params.target != NONE:
        yield from run_real(params, models, trace)


def run_real(params: Params, models: Models, trace: Trace) -> Iterator[Update]:
    """Both prompts, each with the fixed length and with the controller; its costs are measured first."""
    model = yield from models.load(params.target)
    prompts = {CODE: read(model, params.code_prompt, "code"), CHAT: read(model, params.chat_prompt, "chat")}
    yield Progress("Timing passes: what a draft of each length costs here")
    timed = list(pass_times(model.session(prompts[CHAT]), WIDTHS))
    trace = trace.open("pass time")
    for each in timed:
        trace = trace.add("pass time", each)
    prior = params.mix.share_code * params.alpha_code + (1 - params.mix.share_code) * params.alpha_chat
    lengths: dict[str, Length] = {
        FIXED: Fixed(params.fixed_k),
        ADAPTED: Controller(measured_costs(timed, params.cost * (params.drafter != "ngram")), prior),
    }
    for kind, prompt in prompts.items():
        for policy, length in lengths.items():
            name = f"{kind}, {policy}"
            yield Progress(f"Decoding: {name}")
            drafter = yield from models.drafter(params.drafter, model, prompt)
            trace = trace.open(name, prompt)
            trace = Trace(trace.lanes, {**trace.texts, **model.texts(prompt)}, trace.provenance)
            for made in decode(params, model, prompt, drafter, length):
                trace = trace.add(name, made, model.texts(made.tokens))
                yield trace


def read(model: LanguageModel, text: str, what: str) -> list[int]:
    try:
        prompt = model.chat(text)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if not prompt:
        raise BadInput(f"The {what} prompt is empty; write at least one word.")
    return prompt


def measured_costs(timed: Sequence[PassTime], draft_cost: float) -> Costs:
    """What a step with k drafts costs here in plain passes, by straight lines between the passes that were timed."""
    known = {t.positions - 1: t.ms / timed[0].ms for t in timed}
    costs = []
    for k in range(LONGEST + 1):
        low = max(i for i in known if i <= k)
        high = min((i for i in known if i >= k), default=low)
        part = (k - low) / (high - low) if high > low else 0.0
        costs.append(max(1.0, known[low] + part * (known[high] - known[low])) + draft_cost * k)
    return tuple(costs)


def decode(
    params: Params, model: LanguageModel, prompt: Sequence[int], drafter: Any, length: Length
) -> Iterator[Adapted]:
    """Greedy decoding under a policy; the policy's state is followed to show its estimate at every pass."""
    passes = speculate(
        model.session(prompt, drafter.taps),
        drafter,
        rule=verify_greedy,
        length=length,
        coin=coins(params.seed),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )
    now = length
    for made in passes:
        yield Adapted(**vars(made), alpha=getattr(now, "alpha", None), k=now.k)
        now = now.after(len(made.nodes), made.num_verified)


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    """The steps of a lane; none while the trace has no such lane."""
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def params_of(trace: Trace) -> Params:
    """The parameters of a run, as far as its provenance has them."""
    known = Params.__dataclass_fields__
    return Params(**{name: value for name, value in trace.provenance.get("params", {}).items() if name in known})


def summary(trace: Trace) -> dict[str, Any]:
    """Closed-form gains, the simulated ones with intervals, and the real lane."""
    params = params_of(trace)
    mix, costs, k = params.mix, linear_costs(params.cost), params.fixed_k
    blocks, best_fixed = steps_of(trace, "simulation"), mix.best_fixed(costs)
    batches = sorted({*BATCHES, params.batch})
    simulated = {name: estimate(blocks, name) for name in adapting.TELLS}
    return {
        "gain_vs_fixed": gain(mix, costs, k),
        "gain_vs_best_fixed": gain(mix, costs, best_fixed),
        "best_k_per_class": mix.best_lengths(costs),
        "best_fixed_k": best_fixed,
        "gain_by_batch": {str(b): gain(mix, costs, k, b, params.is_in_turn) for b in batches},
        "gain_by_cost": {f"{c:g}": gain(mix, linear_costs(c), k) for c in COSTS},
        "gain_vs_best_fixed_by_cost": {
            f"{c:g}": gain(mix, table, mix.best_fixed(table)) for c, table in ((c, linear_costs(c)) for c in COSTS)
        },
        "batch": params.batch,
        "simulated_gain": _interval(simulated["per class"], gain(mix, costs, k, params.batch, params.is_in_turn)),
        "simulated_gain_by_policy": {name: _interval(found) for name, found in simulated.items() if name != "fixed"},
        "simulated_tokens": sum(block.policies[0].tokens for block in blocks),
        "real": real(trace),
    }


def _interval(found: Estimate | None, exact: float | None = None) -> dict[str, Any] | None:
    """Mean and 99 % interval; with the closed form, whether the interval covers it."""
    if found is None:
        return None
    covers = {}
    if exact is not None:
        is_in = found.low is not None and found.high is not None and found.low <= exact <= found.high
        covers = {"closed_form": exact, "covers": is_in}
    return {**asdict(found), "level": 0.99, **covers}


def real(trace: Trace) -> dict[str, Any] | None:
    """Counters of each real lane; ``None`` when nothing ran."""
    lanes = {lane.name: lane for lane in trace.lanes if lane.name in REAL and lane.steps}
    if not lanes:
        return None
    timed = steps_of(trace, "pass time")
    return {
        "cost_by_length": {str(t.positions - 1): t.ms / timed[0].ms for t in timed},
        "lanes": {
            name: {
                "output_tokens": len(lane.output_tokens),
                "tokens_per_pass": ratio(len(lane.output_tokens), len(lane.steps)),
                "acceptance_rate": count(lane.steps).acceptance_rate,
                "mean_k": ratio(sum(made.k or 0 for made in lane.steps), len(lane.steps)),
                "drafted_tokens": count(lane.steps).drafted_tokens,
                "tokens_per_second": ratio(1e3 * len(lane.output_tokens), lane.steps[-1].ended_ms),
            }
            for name, lane in lanes.items()
        },
        "identical_output": all(
            lanes[f"{kind}, {FIXED}"].output_tokens == lanes[f"{kind}, {ADAPTED}"].output_tokens
            for kind in (CODE, CHAT)
            if f"{kind}, {FIXED}" in lanes and f"{kind}, {ADAPTED}" in lanes
        ),
    }


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    best, batch = result["best_k_per_class"], result["batch"]
    simulated = result["simulated_gain"]
    reach = (
        f", ± {50 * (simulated['high'] - simulated['low']):.1f}" if simulated and simulated["low"] is not None else ""
    )
    last = str(max(map(int, result["gain_by_batch"])))
    return (
        Figure(f"{best[CODE]} / {best[CHAT]}", "best k, code / chat", "exact"),
        Figure(adapting.percent(result["gain_vs_fixed"]), "a k per class against the fixed k", "exact"),
        Figure(
            adapting.percent(result["gain_vs_best_fixed"]),
            f"against the best fixed k, {result['best_fixed_k']}",
            "exact",
        ),
        Figure(adapting.percent(simulated and simulated["mean"]), f"simulated, batch {batch}{reach}", "measured"),
        Figure(adapting.percent(result["gain_by_batch"][last]), f"in lock-step at batch {last}", "exact"),
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def real_steps(trace: Trace) -> list[tuple[str, int]]:
    """(lane, index) of every real pass in the order in which they ran."""
    return [(name, i) for name in REAL for i in range(len(steps_of(trace, name)))]


def num_frames(trace: Trace) -> int:
    return len(steps_of(trace, "simulation")) + len(real_steps(trace))


def frame(trace: Trace, index: int) -> Frame:
    blocks = steps_of(trace, "simulation")
    return block_frame(trace, index) if index < len(blocks) else pass_frame(trace, index - len(blocks))


def block_frame(trace: Trace, index: int) -> Frame:
    """All policies after so many blocks."""
    params, blocks = params_of(trace), steps_of(trace, "simulation")[: index + 1]
    gains = {name: estimate(blocks, name) for name in adapting.TELLS}
    exact = gain(params.mix, linear_costs(params.cost), params.fixed_k, params.batch, params.is_in_turn)
    num_tokens = sum(block.policies[0].tokens for block in blocks)
    body = html.frame(
        html.section(
            "Policies on the same requests and the same coins",
            adapting.policies(blocks, gains),
            f"{num_tokens:,} tokens, batch {params.batch}",
        ),
        html.note(
            f"Closed form for a length per class at this batch: {adapting.percent(exact)}. A step lasts as long as the "
            "longest draft in the batch."
        ),
    )
    now = gains["per class"]
    said = f"{num_tokens:,} tokens: a length per class gains {adapting.percent(now.mean if now else None)}"
    return Frame(f"{said} over k = {params.fixed_k}; the closed form says {adapting.percent(exact)}.", body)


def pass_frame(trace: Trace, index: int) -> Frame:
    """One pass of a real lane: the estimate, the draft and what became of it."""
    name, i = real_steps(trace)[index]
    lane = next(lane for lane in trace.lanes if lane.name == name)
    made = lane.steps[i]
    before = [*lane.prompt, *(out.token for earlier in lane.steps[:i] for out in earlier.outputs)]
    draft = [
        tokens.chip(
            trace.texts.get(n.token, ""), n.state, verification.node_detail(made, j, trace.texts), with_mark=True
        )
        for j, n in enumerate(made.nodes)
    ]
    guess = "fixed" if made.alpha is None else f"estimate of α {made.alpha:.2f}"
    text = tokens.context_strip(trace.texts, before, verification.new_tokens(made, trace.texts))
    body = html.frame(
        html.section(name.capitalize(), text, html.count(i + 1, "pass", "passes")),
        html.section("Draft", tokens.strip(draft), f"k = {made.k}, {guess}")
        if draft
        else html.note(f"No draft at k = {made.k} ({guess})."),
        html.detail(),
        html.section("Lengths so far", lengths(lane.steps[: i + 1]), "accepted of drafted, pass by pass"),
    )
    return Frame(f"{name.capitalize()}: k = {made.k}, {guess}; {made.num_verified} of {len(draft)} drafts stand.", body)


def lengths(steps: Sequence[Adapted], shown: int = 24) -> Markup:
    """The last passes as accepted / k."""
    cells = [tokens.chip(f"{made.num_verified}/{len(made.nodes)}") for made in steps[-shown:]]
    return Markup('<div class="strip">{}</div>').format(html.join(cells, " "))


# --- Charts -----------------------------------------------------------------------------------------------------------


def running_chart(trace: Trace) -> Any:
    params, blocks = params_of(trace), steps_of(trace, "simulation")
    if len(blocks) < 2:
        return None
    points, num_tokens = [], 0
    for i, block in enumerate(blocks):
        num_tokens += block.policies[0].tokens
        found = estimate(blocks[: i + 1], "per class")
        if i > 1 and found:
            points.append((num_tokens, found))
    exact = gain(params.mix, linear_costs(params.cost), params.fixed_k, params.batch, params.is_in_turn)
    return adapting.over_tokens(points, exact)


def batch_chart(trace: Trace) -> Any:
    params, costs = params_of(trace), linear_costs(params_of(trace).cost)
    curves = [{b: gain(params.mix, costs, params.fixed_k, b, in_turn) for b in BATCHES} for in_turn in (True, False)]
    return adapting.over_batch(*curves, estimate(steps_of(trace, "simulation"), "per class"), params.batch)


def cost_chart(trace: Trace) -> Any:
    params = params_of(trace)
    return adapting.over_cost(params.mix, params.fixed_k, params.cost)


def length_chart(trace: Trace) -> Any:
    params = params_of(trace)
    costs = linear_costs(params.cost)
    return adapting.over_length(params.mix, costs, params.mix.best_lengths(costs))


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**One request.** Each draft token stands with chance α. A step with k drafts puts out E(α, k) tokens and takes 1 + c · k
plain passes, if verification is free, as it is while the target waits for its weights. The best k grows with α and
falls with c: code that copies itself wants a long draft, chat a short one.

**The mix.** Half of the output tokens are code and half chat. Time per token is the mean of the two classes' own, so
the slower class weighs more in steps than in tokens. The gain of a k per class has two yardsticks. Against a *fixed k
left over from a cheaper drafter* it can be large, and most of it is the cure of a wrong k. Against the *best* fixed k
it is what adapting itself brings, and that is several times less: the best fixed k is a compromise that loses little on
either side.

**The controller** sees no class. It counts, for each request, drafts that stood and drafts that fell, beside a prior
worth four drafts, and takes the best k for its estimate. Old counts fade, so it follows a request that turns from
prose to code. Drafts behind the first one that fell were never judged and say nothing. The **oracle** knows which
drafts will stand: no policy can beat it on one sequence.

**Lock-step.** Sequences of a batch step together, and the draft phase lasts as long as the longest draft. One request
that wants eight drafts makes everybody wait for eight: from a batch of a few on, a k per class is *slower* than one k.
Even the oracle is one only for itself: each long run that it foresees is paid for by the whole batch. Servers that
adapt choose one k for the batch, or group requests of a kind.

**The simulation** serves a stream of requests of equal length with every policy. A coin belongs to a request and a
position, so all policies meet the same luck and their difference is known far better than either. The interval comes
from a jackknife over the blocks.

**The real lane** lets the controller drive a model. The cost of each length is measured on this machine first; the
prior is the mix of the two α. The text is the same under every policy: only the number of passes changes.
"""

QUESTIONS = (
    Question(
        ask="A colleague reports 19 % from adaptive draft lengths. What do you ask first?",
        answer=(
            "Against what: a k left over from another drafter, or the best fixed k for this one?",
            "Against the best fixed k the ceiling is five to ten per cent, whatever the drafter costs.",
            "At which batch: in lock-step the gain goes as soon as a few sequences share a step.",
            "What mix: with one class, or two alike, there is nothing to gain.",
        ),
        follow_ups=("How would you measure it? (Same requests, same coins; the paired difference has a small error.)",),
        mistakes=("Tuning the baseline less than the new policy.",),
        preset="expensive_drafter",
    ),
    Question(
        ask="Why does adapting per request lose in a batch?",
        answer=(
            "The draft phase is shared: it lasts as long as the longest draft.",
            "With B sequences, somebody almost always wants the long draft; the others wait and gain nothing.",
            "One length for the batch, or batches of one kind, keep the gain.",
        ),
        follow_ups=(
            "What would change that? (Drafting that is not in step, or a drafter that is free, as n-gram is.)",
        ),
        mistakes=("Scaling the gain of a single sequence up to a server.",),
        preset="lock_step",
    ),
    Question(
        ask="How would you estimate α for a request while it runs?",
        answer=(
            "Count judged drafts only: those that stood, and the first one that fell.",
            "Start from a prior, or the first few passes swing the length wildly.",
            "Let old evidence fade; requests change from prose to code.",
            "Keep drafting a little: with k = 0 nothing is learnt.",
        ),
        mistakes=(
            "Accepted / drafted: it depends on k itself, since drafts behind the first rejection count as misses.",
        ),
        preset="cheap_drafter",
    ),
)

SOURCES = (
    ("Leviathan, Kalman, Matias 2023: Fast Inference via Speculative Decoding", "https://arxiv.org/abs/2211.17192"),
    ("Liu et al. 2024: Optimizing Speculative Decoding for Serving with Goodput", "https://arxiv.org/abs/2406.14066"),
    ("Huang et al. 2024: SpecDec++, adaptive candidate lengths", "https://arxiv.org/abs/2405.19715"),
    (
        "SGLang: adaptive speculative decoding",
        "https://docs.sglang.io/advanced_features/adaptive_speculative_decoding.html",
    ),
)

LAB = Lab(
    slug="adaptive_length",
    title="Adaptive draft length",
    question="What does a draft length per request gain over one well-chosen number, and does a batch let you keep it?",
    group="serve",
    order=20,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("The gain while it is simulated", running_chart, "Simulated: a length per class against the fixed k."),
        Chart("In lock-step", batch_chart, "Computed; the diamond is the simulation at your batch."),
        Chart("Over the drafter's cost", cost_chart, "Computed for one sequence at a time."),
        Chart("Tokens per plain pass over k", length_chart, "Computed: E(α, k) / (1 + c k)."),
    ),
    how=HOW,
    code=lambda params: (best_length, Controller.after, gain),
    questions=QUESTIONS,
    sources=SOURCES,
)
