"""Draft length per batch: what a step costs on a served model, the best k at every load, the peak with and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from playground.engine import calibrate, engine_configs
from playground.engine.calibrate import FIT, JUDGE, TimedPass
from playground.engine.cost import PROFILES, Priced, pass_time, tensor_parallel
from playground.engine.decode import speculate
from playground.engine.drafter_cost import DRAFTERS, Speculator, speculator
from playground.engine.drafters import NoDrafter, Replay
from playground.engine.length import Fixed
from playground.engine.loads import assumptions, best_lengths, loads, spread
from playground.engine.model import LanguageModel, Session
from playground.engine.sampling import coins
from playground.engine.serving import Contender, buckets, grid, most_sequences, speeds, tokens_by_length
from playground.engine.trace import Trace, step
from playground.engine.tree import Draft
from playground.engine.verify import verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, brief, control
from playground.views import html, pricing

MACHINE = calibrate.NAME
MAX_POINTS = 40  # contexts or batches
CONTEXTS = (64, 512)  # of the measured passes: fitted at the first, judged at the second
LENGTHS = (0, 1, 3, 7)  # draft lengths that are run on this machine
NUM_TOKENS = 24  # put out by each of those runs
BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5, "fp32": 4.0}
TARGETS = (
    "llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m", "deepseek-v3",
)  # fmt: skip
FAR_OFF = 0.20
BUSY = "The fit is far off: other work disturbs the passes it was fitted on. Run it again when the machine is quiet."
TEXT = "A lighthouse keeper counts the ships that pass at night and writes their names into a long book. "


@dataclass(frozen=True)
class Params:
    priced_target: str = control(
        "llama-3.3-70b", "Priced model", "A name, or the text of a config.json.", choices=TARGETS, free=True
    )
    priced_drafter: str = control(
        "eagle",
        "Drafter",
        "Prices follow from shapes; a model of the list drafts as a whole.",
        choices=(*DRAFTERS, "llama-3.1-8b", "llama-3.2-1b"),
        free=True,
    )
    alpha: float = control(0.8, "Acceptance α", "Chance of each draft token to stand.", min=0, max=1, step=0.01)
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop", MACHINE), free=True, group="Machine"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Machine")
    profile: str = control(
        "data_sheet",
        "Profile",
        f"How far passes fall short of the data sheet. {MACHINE} is measured first, on the default model.",
        choices=(*PROFILES, MACHINE),
        group="Machine",
    )
    weight_dtype: str = control("bf16", "Weights", choices=tuple(BYTES), group="Machine")
    kv_dtype: str = control("bf16", "KV cache", choices=tuple(BYTES), group="Machine")
    contexts: tuple[int, ...] = control(
        (256, 1024, 4096, 16384), "Contexts", "The first one leads.", min=0, max=1_048_576, group="Loads"
    )
    batches: tuple[int, ...] = control(
        (1, 8, 32, 64, 128, 256, 512, 1024), "Batches", "From night to evening.", min=1, max=65_536, group="Loads"
    )
    max_k: int = control(16, "Longest draft", min=1, max=32, step=1, group="Loads")
    fixed_k: int = control(4, "Fixed k", "What a server that never adapts would use.", min=0, max=32, step=1)

    def __post_init__(self) -> None:
        for name in ("contexts", "batches"):
            values = getattr(self, name)
            if not 1 <= len(values) <= MAX_POINTS or len(set(values)) != len(values):
                raise BadInput(f"{name} takes one to {MAX_POINTS} different numbers, not {brief(values)}.")
        if self.fixed_k > self.max_k:
            raise BadInput(f"fixed_k is {self.fixed_k}; it must not exceed max_k, which is {self.max_k}.")

    @property
    def is_here(self) -> bool:
        """Whether this machine is what is priced: then it is measured first."""
        return MACHINE in (self.hardware, self.profile)


@step
@dataclass(frozen=True)
class Round:
    """The fastest times so far of all measured passes; the last round has predictions too."""

    passes: tuple[TimedPass, ...]


@step
@dataclass(frozen=True)
class SpeedHere:
    """Tokens per second with k drafts that all stand, against plain decoding: run here, and as the fit has it."""

    k: int
    measured: float
    predicted: float
    tokens_per_pass: float


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The map and every load in turn; on this machine after a measurement of its passes."""
    try:
        shape = models.shape(params.priced_target)
        drafter = speculator(params.priced_drafter, shape, models.shape)
        sizes = {"weight_bytes": BYTES[params.weight_dtype], "kv_bytes": BYTES[params.kv_dtype]}
        if params.is_here:
            served = None
        else:
            pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
            served = Priced(shape, pod, PROFILES[params.profile], **sizes)
    except ValueError as error:
        raise BadInput(str(error)) from None
    trace = Trace()
    if served is None:
        for update in measure(models, trace):
            trace = update if isinstance(update, Trace) else trace
            yield update
        fitted = steps_of(trace, "machine")[0]
        served = Priced(shape, fitted.hardware, fitted.profile, fitted.weight_bytes, fitted.kv_bytes)
    trace = trace.open("priced").add("priced", served).open("drafter").add("drafter", drafter)
    k = (params.max_k, params.fixed_k)
    first, night = params.contexts[0], min(params.batches)
    drawn = best_lengths(served, drafter, params.alpha, params.contexts, params.batches, params.max_k)
    trace = trace.open("map").add("map", drawn).open("loads")
    for load in loads(served, drafter, params.alpha, params.contexts, params.batches, *k):
        trace = trace.add("loads", load)
        yield trace
    trace = trace.open("outlook")
    for outlook in assumptions(served, drafter, params.alpha, first, night, *k):
        trace = trace.add("outlook", outlook)
        yield trace


def measure(models: Models, trace: Trace) -> Iterator[Update]:
    """Passes of the default target on this machine, the fit, and speculation runs that check it."""
    model = yield from models.load("default")
    shape = models.shape("smollm2-135m")
    tokens = model.encode(TEXT * 60)
    yield Progress("Reading two contexts to measure passes on")
    sessions = {c: prefilled(model, tokens[: c + 1]) for c in CONTEXTS}
    plan = [(n, CONTEXTS[0]) for n in FIT] + [(n, CONTEXTS[1]) for n in JUDGE]
    trace = trace.open("calibration")
    timed: list[TimedPass] = []
    yield Progress("Measuring passes of this machine")
    for timed in calibrate.measure(sessions, plan):
        trace = trace.add("calibration", Round(tuple(timed)))
        yield trace
    number_bytes = 4.0 if model.provenance().get("dtype") == "fp32" else 2.0
    fitted = calibrate.fit(shape, [p for p in timed if p.new_tokens in FIT], number_bytes)
    trace = trace.add("calibration", Round(tuple(calibrate.predict(fitted, timed)))).open("machine")
    trace = trace.add("machine", fitted).open("speculation")
    yield trace
    yield Progress("Running speculation on this machine to check the fit")
    for point in speeds_here(model, tokens[: CONTEXTS[0] + 1], fitted):
        trace = trace.add("speculation", point)
        yield trace


def prefilled(model: LanguageModel, tokens: Sequence[int]) -> Session:
    """A session that has read all of ``tokens`` but the last."""
    session = model.session(tokens[:-1])
    session.score(Draft())
    session.commit((), tokens[-1])
    return session


def speeds_here(model: LanguageModel, prompt: Sequence[int], fitted: Priced) -> Iterator[SpeedHere]:
    """Plain decoding first; its output is then drafted by a drafter that knows it, so that only passes cost time."""
    reply: tuple[int, ...] = ()
    plain_ms = 1.0
    for k in LENGTHS:
        drafter = Replay(reply) if k else NoDrafter()
        steps = list(
            speculate(
                prefilled(model, prompt), drafter, rule=verify_greedy, length=Fixed(k), coin=coins(0),
                max_new_tokens=NUM_TOKENS,
            )
        )  # fmt: skip
        output = tuple(out.token for made in steps for out in made.outputs)
        ms, per_pass = steps[-1].ended_ms / len(output), len(output) / len(steps)
        if k == 0:
            reply, plain_ms = output, ms
        predicted = calibrate.speed_against_plain(fitted, k, CONTEXTS[0], per_pass)
        yield SpeedHere(k, plain_ms / ms, float(predicted), per_pass)


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    """The steps of a lane; none while the trace has no such lane."""
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def asked(trace: Trace, name: str, default: Any) -> Any:
    return trace.provenance.get("params", {}).get(name, default)


def summary(trace: Trace) -> dict[str, Any]:
    """Best k and the speed of the fixed k by context and batch, peaks, memory, what binds, and how the fit did."""
    found = steps_of(trace, "loads")
    outlook = next(iter(steps_of(trace, "outlook")), None)
    served, drafter = (next(iter(steps_of(trace, name)), None) for name in ("priced", "drafter"))
    contexts = [row.context for row in found[0].rows] if found else []

    def by_context(pick: Any) -> dict[str, dict[str, Any]]:
        return {str(c): {str(load.batch): pick(load.rows[i]) for load in found} for i, c in enumerate(contexts)}

    ready = served is not None and drafter is not None
    return {
        "target": served.shape.name if ready else None,
        "drafter": drafter.name if ready else None,
        "hardware": served.hardware.name if ready else None,
        "profile": served.profile.name if ready else None,
        "draft_cost": float(drafter.token_cost(served, 1, contexts[0])) if ready and contexts else None,
        "drafter_parameters": drafter.parameters if ready else None,
        "best_k": by_context(lambda row: row.best_k),
        "speedup_fixed_k": by_context(lambda row: row.fixed_speed),
        "speedup_best_k": by_context(lambda row: row.best_speed),
        "plain_tokens_per_s": by_context(lambda row: row.plain_tokens_per_s),
        "binding_term": by_context(lambda row: row.binding),
        "max_batch": {str(c): most_sequences(served, c) for c in contexts},
        "peak_tokens_per_s": {
            "plain": outlook.peak_plain if outlook else None,
            "speculative": outlook.peak_fixed if outlook else None,
            "best_k": outlook.peak_best if outlook else None,
        },
        "peak_change": outlook.evening_change if outlook else None,
        "night_speedup": outlook.night_speed if outlook else None,
        "compute_bound_below_context": compute_bound_below(served, asked(trace, "fixed_k", 4)) if ready else None,
        "assumptions": {
            o.name: {"night_speedup": o.night_speed, "peak_change": o.evening_change}
            for o in steps_of(trace, "outlook")
        },
        "buckets": [list(bucket) for bucket in schedule(trace)],
        "calibration": calibration(trace),
    }


def compute_bound_below(served: Priced, k: int) -> float | None:
    """The context from which no batch makes a pass with k drafts compute-bound; ``None``: it always can."""
    far = [pass_time(served.shape, served.hardware, 1e12, k + 1, c, weight_bytes=served.weight_bytes,
                     kv_bytes=served.kv_bytes, profile=served.profile) for c in (0.0, 1.0)]  # fmt: skip
    gemm, kv, attention = far[0].gemm_s, far[1].kv_s, far[1].attention_s
    return float(gemm / (kv - attention)) if kv > attention else None


def schedule(trace: Trace) -> list[tuple[int, int, int]]:
    """Ranges of batches with one best k at the first context, up to the largest batch asked for or that fits."""
    found = steps_of(trace, "loads")
    served, drafter = (next(iter(steps_of(trace, name)), None) for name in ("priced", "drafter"))
    if not found or served is None:
        return []
    context, most = found[0].rows[0].context, max(asked(trace, "batches", (1024,)))
    bound = most_sequences(served, context)
    last = most if bound is None else min(bound, most)
    sizes = tuple(range(1, min(last, 4096) + 1)) or ()
    if last > 4096:
        sizes += tuple(b for b in spread(4097, last, 400) if b > 4096)
    if not sizes:
        return []
    table = grid(served, drafter, asked(trace, "alpha", 0.8), (context,), sizes, asked(trace, "max_k", 16))
    return engine_configs.runs(buckets(sizes, table.best_k[0].tolist()))


def calibration(trace: Trace) -> dict[str, Any] | None:
    """The fitted machine and its errors; ``None`` where nothing was measured."""
    rounds, machine = steps_of(trace, "calibration"), next(iter(steps_of(trace, "machine")), None)
    if machine is None:
        return None
    judged = [p for p in rounds[-1].passes if p.new_tokens in JUDGE]
    here = steps_of(trace, "speculation")
    return {
        "bandwidth": machine.hardware.bandwidth,
        "flops": machine.hardware.peak_flops,
        "wide_ms": 1e3 * machine.profile.wide_s,
        "worst_error": calibrate.worst_error(judged),
        "error_by_pass": {str(p.new_tokens): p.error for p in judged},
        "fit_error": calibrate.worst_error([p for p in rounds[-1].passes if p.new_tokens in FIT]),
        "measured_speed": {str(p.k): p.measured for p in here},
        "predicted_speed": {str(p.k): p.predicted for p in here},
    }


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    night, change, peak = (result[name] for name in ("night_speedup", "peak_change", "peak_tokens_per_s"))
    ranges, checked = result["buckets"], result["calibration"]
    off = next((first for first, _, k in ranges if k == 0), None)
    lengths = f"{ranges[0][2]} → {ranges[-1][2]}" if ranges else "–"
    last = (
        Figure(f"{off:,}" if off else "never", "batch from which drafting never pays", "priced")
        if checked is None
        else Figure(f"{100 * checked['worst_error']:.0f} %", "largest error on passes the fit has not seen", "measured")
    )
    return (
        Figure("–" if night is None else f"{night:.2f}×", "fixed k at the smallest batch", "priced"),
        Figure("–" if change is None else f"{100 * change:+.0f} %".replace("-", "−"), "fixed k at the peak", "priced"),
        Figure("–" if not peak["plain"] else f"{peak['plain']:,.0f}", "tokens/s, plain peak", "priced"),
        Figure(lengths, "best k, smallest to largest batch", "priced"),
        last,
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    return len(steps_of(trace, "calibration")) + len(steps_of(trace, "loads"))


def frame(trace: Trace, index: int) -> Frame:
    rounds = steps_of(trace, "calibration")
    return round_frame(rounds[index], index) if index < len(rounds) else load_frame(trace, index - len(rounds))


def round_frame(made: Round, index: int) -> Frame:
    """Measured passes after one round; in the last one the fit."""
    worst = calibrate.worst_error([p for p in made.passes if p.new_tokens in JUDGE])
    body = html.section("Passes of this machine", pricing.passes(made.passes, FIT), "the fastest of all rounds so far")
    warning = html.note(BUSY, "warn") if worst is not None and worst > FAR_OFF else None
    said = f"Round {index + 1}: every pass was timed."
    if worst is not None:
        said = f"The fit is off by at most {100 * worst:.0f} % on passes that it has not seen."
    return Frame(said, html.frame(body, warning))


def load_frame(trace: Trace, index: int) -> Frame:
    """One batch: where the time goes at the first context, and the best length at all of them."""
    load, k = steps_of(trace, "loads")[index], asked(trace, "fixed_k", 4)
    lead = load.rows[0]
    what = f"batch {load.batch:,}, context {lead.context:,}"
    body = html.frame(
        html.section("Where the time goes", pricing.terms(load, k), what),
        html.section("Every context", pricing.contexts(load, k), f"batch {load.batch:,}"),
        html.section("For a server", configs(trace), f"context {lead.context:,}"),
    )
    if lead.best_k is None:
        return Frame(f"Batch {load.batch:,}: {lead.context:,} tokens of context each do not fit in memory.", body)
    best = f"best k is {lead.best_k}, {lead.best_speed:.2f}×"
    fixed = "" if lead.fixed_speed is None else f"; k = {k} gives {lead.fixed_speed:.2f}×"
    return Frame(f"Batch {load.batch:,}: {best}{fixed}; a plain pass waits for {pricing.NAMES[lead.binding]}.", body)


def configs(trace: Trace) -> html.Text:
    """The draft length per batch as two engines read it."""
    ranges, drafter = schedule(trace), asked(trace, "priced_drafter", "eagle")
    if not ranges:
        return html.note("Nothing fits in memory, so there is nothing to configure.")
    shown = Markup('<pre class="copy" tabindex="0">{}</pre>')
    file = engine_configs.sglang(drafter, ranges)
    ours = html.join([html.note("vLLM: --speculative-config"), shown.format(engine_configs.vllm(drafter, ranges))])
    theirs = (
        html.note("SGLang has a length per batch for EAGLE and EAGLE-3 only; with this drafter the length is fixed.")
        if file is None
        else html.join(
            [
                html.note("SGLang: adaptive.json, and the flags below"),
                shown.format(file),
                shown.format(engine_configs.sglang_flags(drafter, ranges)),
            ]
        )
    )
    return html.columns(ours, theirs)


# --- Charts -----------------------------------------------------------------------------------------------------------


def map_chart(trace: Trace) -> Any:
    drawn = next(iter(steps_of(trace, "map")), None)
    return pricing.best_length_map(drawn) if drawn and len(drawn.batches) > 1 else None


def binding_chart(trace: Trace) -> Any:
    drawn = next(iter(steps_of(trace, "map")), None)
    return pricing.binding_map(drawn) if drawn and len(drawn.batches) > 1 else None


def batch_chart(trace: Trace) -> Any:
    found = steps_of(trace, "loads")
    if not found:
        return None
    served, drafter = steps_of(trace, "priced")[0], steps_of(trace, "drafter")[0]
    context, most = found[0].rows[0].context, max(load.batch for load in found)
    fixed, longest = asked(trace, "fixed_k", 4), asked(trace, "max_k", 16)
    tokens = tokens_by_length(asked(trace, "alpha", 0.8), longest)
    sizes = np.array(spread(1, max(most, 2), 80), float)
    lengths = sorted({k for k in (1, 2, fixed, 8) if 0 < k <= longest})
    curves = {f"k = {k}": Contender("", drafter, tokens, k) for k in lengths} | {
        "best k": Contender("", drafter, tokens)
    }
    lines = {name: list(zip(sizes, speeds(served, c, sizes, context), strict=True)) for name, c in curves.items()}
    return pricing.over_batch(lines, max_batch=most_sequences(served, context))


def outlook_chart(trace: Trace) -> Any:
    found = steps_of(trace, "outlook")
    return pricing.outlooks(found) if found else None


def passes_chart(trace: Trace) -> Any:
    rounds = steps_of(trace, "calibration")
    if not steps_of(trace, "machine"):
        return None
    judged = [p for p in rounds[-1].passes if p.new_tokens in JUDGE]
    measured = [(p.new_tokens, p.ms) for p in judged]
    fitted = [(p.new_tokens, p.predicted_ms) for p in judged]
    return pricing.predicted(measured, fitted, "tokens in a pass", "ms", log_x=True)


def speeds_chart(trace: Trace) -> Any:
    here = steps_of(trace, "speculation")
    if not here:
        return None
    measured, fitted = ([(p.k, getattr(p, name)) for p in here] for name in ("measured", "predicted"))
    return pricing.predicted(measured, fitted, "draft length k, every draft right", "speed against plain", log_x=False)


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**One step.** A pass over a batch streams the weights once and the KV of every sequence once, and multiplies every new
token with every weight. With k drafts there are k + 1 new tokens per sequence: the stream stays the same, the products
grow. While streaming is the slower side, drafts ride along free of charge; beyond that each of them is paid for,
accepted or not. A step puts out E(α, k) = (1 − α^(k+1)) / (1 − α) tokens per sequence and costs the pass plus k draft
steps. Speed is that against one token per plain pass.

**At night** few sequences run and the stream of weights binds: long drafts pay. **In the evening** the batch is large
and the products bind: a fixed k makes the server *slower* at its peak than plain decoding. The best k falls with the
batch, which is what a length per batch is for. A long context moves the fall upwards: every sequence adds KV to the
stream, and drafts add none, so above some context no batch is bound by products at all.

**Profiles.** *data_sheet* lets streaming and multiplying overlap over the whole pass and reaches every peak. *split*
lets matrix products and attention overlap only within themselves, which is nearer to how kernels run: the evening looks
less bad. *realistic* adds 80 % of bandwidth, 65 % of FLOP/s, fixed times per layer and pass, and the all-reduces of
tensor parallelism. *this_machine* is measured before it is used: three kinds of passes set its bandwidth, its FLOP/s
and what a pass wider than one token pays; four others at another context judge it. The page shows the error, and runs
speculation to compare its speed with the predicted one.

**Drafters** are priced from shapes. An EAGLE head is a fusion, one layer of the target and its LM head, per drafted
token. EAGLE-3 reads a wider input, chooses from 32,000 tokens, and fuses the target's features once per pass. Medusa
heads have an LM head each and run in one go. MTP is one block with a projection. A draft model is a whole pass per
token, and it reads a KV cache of its own. N-gram costs nothing.

**Experts.** Under uniform routing n tokens reach T · (1 − (1 − a/T)^n) of T experts when each picks a. At a small batch
every drafted token brings its own experts along, so verification is dear exactly where it is free for a dense model.

**What it leaves out.** Acceptance is the same at every position and for every request; prompts are not processed;
the drafter has no queue of its own. Times are floors, ratios are closer.
"""

QUESTIONS = (
    Question(
        ask="Speculation gave 3x in the demo and cost throughput in production. What happened?",
        answer=(
            "At batch 1 a pass waits for the weights: k drafts ride along, and E(α, k) tokens come out.",
            "At the evening's batch the products bind: k + 1 positions cost about k + 1 times as much, E is less.",
            "So the same k is a gain at night and a loss at the peak; capacity is planned for the peak.",
            "Choose k by batch, down to 0, or turn it off above a batch.",
        ),
        follow_ups=(
            "Where is the turning point? (Where batch · (k + 1) reaches the ridge, for a short context.)",
            "Which assumption moves the peak most? (See the chart: how much of a pass overlaps, then α.)",
        ),
        mistakes=("Quoting the speed at batch 1 for a server.", "Blaming the drafter: a free one loses there too."),
        preset="night_and_evening",
    ),
    Question(
        ask="The requests have 16,000 tokens of context. Does the advice change?",
        answer=(
            "Each sequence streams its own KV, and drafts add nothing to that stream.",
            "KV per sequence outgrows the products per sequence, so a larger batch no longer makes products bind.",
            "Memory bounds the batch earlier, too. Drafts stay worth it up to the largest batch that fits.",
        ),
        follow_ups=(
            "What does an 8B draft model do here? (It streams a KV cache of its own for every drafted token.)",
        ),
        mistakes=("Using one batch threshold for every context.",),
        preset="long_context",
    ),
    Question(
        ask="Why does multi-token prediction gain less on a mixture of experts at batch 1?",
        answer=(
            "A dense model streams the same weights for two tokens as for one.",
            "With experts the second token picks its own: nearly twice as many are streamed.",
            "At a batch of hundreds every expert is streamed anyway, and the second token is nearly free again.",
        ),
        mistakes=("Taking (1 + p) / (1 + c) as the speed: it assumes that verification costs one plain pass.",),
        preset="experts",
    ),
    Question(
        ask="How would you know that a cost model is right?",
        answer=(
            "Fit it on some passes and judge it on others: other widths, another context.",
            "Compare the quantity you will use, here the speed of speculation, and state the error.",
            "Distrust it outside what was measured.",
        ),
        mistakes=("Fitting and judging on the same points.",),
        preset="this_machine",
    ),
)

SOURCES = (
    ("Williams, Waterman, Patterson 2009: Roofline", "https://doi.org/10.1145/1498765.1498785"),
    ("Leviathan, Kalman, Matias 2023: Fast Inference via Speculative Decoding", "https://arxiv.org/abs/2211.17192"),
    ("Liu et al. 2024: Optimizing Speculative Decoding for Serving with Goodput", "https://arxiv.org/abs/2406.14066"),
    (
        "vLLM: dynamic speculative decoding",
        "https://github.com/vllm-project/vllm/blob/main/docs/features/speculative_decoding/dynamic_speculative_decoding.md",
    ),
    (
        "SGLang: adaptive speculative decoding",
        "https://docs.sglang.io/advanced_features/adaptive_speculative_decoding.html",
    ),
)

LAB = Lab(
    slug="draft_length_batch",
    title="Draft length per batch",
    question="How many tokens should a server draft at three in the morning, and how many at six in the evening?",
    group="serve",
    order=10,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Best draft length", map_chart, "Priced: every point tries all lengths; blank where it does not fit."),
        Chart("Speed over batch size", batch_chart, "Priced: fixed lengths and the best one, at the first context."),
        Chart("What a plain pass waits for", binding_chart, "Priced: the largest term that nothing else hides."),
        Chart("How the assumptions move it", outlook_chart, "Priced: one assumption changed at a time, fixed k."),
        Chart("Predicted against measured: passes", passes_chart, "Measured here at a context the fit has not seen."),
        Chart("Predicted against measured: speed", speeds_chart, "Measured here: drafts that are always right."),
    ),
    how=HOW,
    code=lambda params: (pass_time, Speculator.seconds, grid),
    questions=QUESTIONS,
    sources=SOURCES,
)
