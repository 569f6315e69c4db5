"""DeepSeek's multi-token prediction taken apart: the module's wiring, its loss by depth, the price of a draft step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.engine.cost import Priced, tensor_parallel
from playground.engine.decode import speculate
from playground.engine.drafter_cost import mtp as module_of
from playground.engine.drafters import Drafter
from playground.engine.head_report import slim
from playground.engine.length import Fixed
from playground.engine.metrics import count
from playground.engine.model import LanguageModel
from playground.engine.mtp import DepthLoss, active_parameters, depth_loss, objective, simple_speedup, terms
from playground.engine.sampling import Temperature, coins
from playground.engine.serving import Contender, speeds, tokens_by_length
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.trace import Trace
from playground.engine.tree import Draft
from playground.engine.verify import verify_greedy
from playground.engine.wiring import Probe
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, html, pricing, tokens, verification, wiring
from playground.views import mtp as views

GREEDY = (Temperature(0.0),)
PUBLISHED = (0.85, 0.90)  # acceptance of the second token, DeepSeek-V3 report, section 5.4.3
BATCHES = tuple(2**i for i in range(13))
READ = 256  # tokens of the text whose loss is computed
MODELS = ("deepseek-v3", "llama-3.3-70b", "llama-3.1-8b", "qwen3-8b")
DTYPES = {"fp8": 1.0, "bf16": 2.0}


@dataclass(frozen=True)
class Params:
    target: str = control(
        "default", "Target", "The trained module belongs to default.", choices=("default",), free=True
    )
    prompt: str = control("Explain why the sky is blue in two sentences.", "Prompt", lines=3)
    k: int = control(
        1, "Draft length k", "DeepSeek drafts one token; more runs the module again.", min=1, max=4, step=1
    )
    max_new_tokens: int = control(24, "New tokens", min=1, max=96, step=1)
    loss_weight: float = control(0.3, "Loss weight λ", "DeepSeek: .3, then .1.", min=0.0, max=1.0, step=0.05)
    priced_target: str = control("deepseek-v3", "Priced model", choices=MODELS, free=True, group="Price")
    acceptance: float = control(
        0.875, "Acceptance of the second token", "Published for DeepSeek V3: .85 to .90.", min=0.0, max=1.0, step=0.005,
        group="Price",
    )  # fmt: skip
    priced_context: int = control(4096, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    weights: str = control("fp8", "Numbers", "Of weights and KV.", choices=tuple(DTYPES), group="Price")
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(16, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")
    seed: int = control(0, "Seed", "Greedy decoding draws nothing.", min=0, max=2**31 - 1, step=1, group="More")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """Drafts of the module pass by pass; then its loss on the text; the price needs no model."""
    served = priced(params, models)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = model.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
    about = {**model.provenance(), "record": slim(models.record("mtp"), "mtp"), "missing": None}
    trace = Trace(texts=model.texts(prompt), provenance=about).open("priced").add("priced", served)
    trace = trace.open("mtp", prompt).open("wiring").open("losses")
    try:
        module = yield from models.drafter("mtp", model, prompt, knobs=GREEDY)
    except ValueError as error:
        yield without(trace, str(error)).open("done")
        return
    trace = without(trace, None, list(module.taps))
    trace = yield from draft(params, model, prompt, module, trace)
    yield Progress("Computing the loss of each depth on the text")
    text = [*prompt, *trace["mtp"].output_tokens][:READ]
    for loss in text_losses(model, module, text):
        trace = trace.add("losses", loss)
    yield trace.open("done")


def without(trace: Trace, why: str | None, taps: Sequence[int] = ()) -> Trace:
    """``trace`` with what the module reads, or the sentence that says why there is none."""
    return Trace(trace.lanes, trace.texts, {**trace.provenance, "missing": why, "taps": list(taps)})


def draft(
    params: Params, model: LanguageModel, prompt: Sequence[int], module: Drafter, trace: Trace
) -> Iterator[Update]:
    """A step per target pass, and the tensors behind its draft."""
    yield Progress("Reading the prompt")
    module.probe = probe = Probe()  # type: ignore[attr-defined]
    passes = speculate(
        model.session(prompt, module.taps),
        module,
        rule=verify_greedy,
        length=Fixed(params.k),
        coin=coins(params.seed),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )
    for judged in passes:
        seen = probe.wiring("mtp", judged.start)
        probe.restart()
        guessed = [token for level in seen.levels for token, _ in level.top]
        texts = model.texts([*judged.tokens, *guessed])
        trace = trace.add("mtp", judged, texts).add("wiring", seen)
        yield trace
    return trace


def text_losses(model: LanguageModel, module: Any, text: Sequence[int]) -> list[DepthLoss]:
    """The loss of the target and of the module on ``text``, from one pass of the target over it."""
    if len(text) < 3:
        return []
    scores = model.session(text[:1], module.taps).score(Draft.chain(text[1:]))
    deeper = module.read_through(text, scores.hidden)
    deeper = deeper.masked_fill(scores.logits[:1] == -math.inf, -math.inf)  # ids that are no tokens, as in the target
    return [depth_loss(scores.logits, text, 0), depth_loss(deeper, text, 1)]


def priced(params: Params, models: Models) -> Priced:
    """The served model; raises ``BadInput`` with the names there are."""
    size = DTYPES[params.weights]
    try:
        pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
        return Priced(models.shape(params.priced_target), pod, weight_bytes=size, kv_bytes=size)
    except ValueError as error:
        raise BadInput(str(error)) from None


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Acceptance and loss measured here, what is on record, and the price on the served model."""
    about, found = trace.provenance, count(steps_of(trace, "mtp"))
    record = about.get("record") or {}
    means = {loss.depth: loss.mean for loss in steps_of(trace, "losses")}
    weight = about.get("params", {}).get("loss_weight")
    has_all = 0 in means and 1 in means and weight is not None
    return {
        "second_token_acceptance": next(iter(found.acceptance_per_position), None),
        "acceptance_per_position": list(found.acceptance_per_position),
        "mean_acceptance_length": found.mean_acceptance_length,
        "num_drafts": found.num_drafts,
        "published_acceptance": list(PUBLISHED),
        "recorded": {
            "second_token_acceptance": next(iter(record.get("acceptance_per_position", ())), None),
            "mean_acceptance_length": record.get("mean_acceptance_length"),
            "token_visits": record.get("token_visits"),
            "parameters": record.get("parameters"),
        },
        "loss_depth_0": means.get(0),
        "loss_depth_1": means.get(1),
        "loss_weight": weight,
        "objective": objective(means[0], [means[1]], weight) if has_all else None,
        "missing": about.get("missing"),
        "priced": price(trace),
    }


def contender(trace: Trace, served: Priced) -> Contender:
    """The module with one draft at the stated acceptance."""
    acceptance = trace.provenance["params"]["acceptance"]
    return Contender("MTP, one draft", module_of(served.shape), tokens_by_length(acceptance, 1), 1, acceptance)


def price(trace: Trace) -> dict[str, Any] | None:
    """Parameters, the cost of a draft step, the simple speed-up, and both by batch with the pass that checks it."""
    served, params = next(iter(steps_of(trace, "priced")), None), trace.provenance.get("params", {})
    if served is None or "acceptance" not in params:
        return None
    shape, context = served.shape, params["priced_context"]
    module = module_of(shape)
    cost = module.parameter_share(shape)
    found = price_of(served, [contender(trace, served)], context, BATCHES)
    plain = {b: served.time(b, 1, context).total_s for b in BATCHES}
    return {
        **found,
        "active_parameters": shape.active_parameters,
        "total_parameters": shape.total_parameters,
        "mtp_active_parameters": active_parameters(shape),
        "mtp_active_parameters_with_head": module.parameters,
        "terms": dict(terms(shape)),
        "acceptance": params["acceptance"],
        "draft_cost": cost,
        "draft_cost_priced": found["draft_cost"],
        "speedup": simple_speedup(params["acceptance"], cost),
        "speedup_range": [simple_speedup(p, cost) for p in PUBLISHED],
        "verify_cost_by_batch": {str(b): served.time(b, 2, context).total_s / plain[b] for b in BATCHES},
        "experts_read_by_batch": experts_read(shape),
    }


def experts_read(shape: Any) -> dict[str, list[float]] | None:
    """Distinct experts of a layer that a plain pass and a pass of two tokens reach, by batch."""
    if shape.experts is None:
        return None
    return {str(b): [float(shape.experts.distinct(b)), float(shape.experts.distinct(2 * b))] for b in BATCHES}


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    s, p = result, result["priced"] or {}
    here, recorded = s["second_token_acceptance"], s["recorded"]["second_token_acceptance"]
    one = (p.get("speedup_by_batch") or {}).get("1")
    return (
        Figure("–" if here is None else f"{100 * here:.0f} %", "second token accepted here", "measured"),
        Figure("–" if recorded is None else f"{100 * recorded:.0f} %", "over held-out prompts", "recorded"),
        Figure(html.number(s["loss_depth_1"]), "loss at depth 1, nats per token", "measured"),
        Figure("–" if not p else f"{p['speedup']:.2f}×", f"(1 + p) / (1 + c) on {p.get('target', '–')}", "priced"),
        Figure("–" if one is None else f"{one:.2f}×", "at batch 1, the check paid for", "priced"),
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def closing(trace: Trace) -> list[Callable[[Trace], Frame]]:
    """The frames behind the last pass, once the run is over."""
    if not any(lane.name == "done" for lane in trace.lanes):
        return []
    return [*([loss_frame] if steps_of(trace, "losses") else []), price_frame, window_frame]


def num_frames(trace: Trace) -> int:
    return len(steps_of(trace, "mtp")) + len(closing(trace))


def frame(trace: Trace, index: int) -> Frame:
    passes = steps_of(trace, "mtp")
    if index >= len(passes):
        return closing(trace)[index - len(passes)](trace)
    judged, seen = passes[index], steps_of(trace, "wiring")[index]
    lane = trace["mtp"]
    before = [*lane.prompt, *(out.token for made in passes[:index] for out in made.outputs)]
    taps = trace.provenance.get("taps", [])
    body = html.frame(
        html.section("The text so far", tokens.context_strip(trace.texts, before), f"token {judged.start:,}"),
        html.section("The draft and its verdict", verification.table(judged, trace.texts), "one target pass"),
        html.detail(),
        html.section("What the module reads", wiring.ladder(taps, max(taps, default=0)), "the target's last state")
        if seen.levels
        else html.note("No draft yet: the module waits for the target's states of the prompt."),
        html.columns(
            *(
                html.section(title, wiring.level(level, trace.texts))
                for title, level in zip(("The module", "The module again"), seen.levels, strict=False)
            )
        ),
        html.note(wiring.STRIPS) if seen.levels else None,
        tokens.legend(("accepted", "rejected", "recovered", "bonus", "plain")),
    )
    return Frame(verification.says(judged), body)


def loss_frame(trace: Trace) -> Frame:
    result = summary(trace)
    main, deeper = steps_of(trace, "losses")[:2]
    body = html.frame(
        html.section("The loss, recomputed on this text", views.objective(result), "measured"),
        html.section("Token by token", views.losses(main, deeper, trace.texts), "nats; the last tokens of the text"),
        html.note(views.FROZEN),
    )
    said = f"Depth 0: {html.number(main.mean)} nats per token; depth 1: {html.number(deeper.mean)}."
    return Frame(said, body)


def price_frame(trace: Trace) -> Frame:
    result = summary(trace)
    missing = result["missing"]
    body = html.frame(
        html.note(f"Not drafting here: {missing}", "warn") if missing else None,
        html.section(
            f"What one draft step multiplies on {result['priced']['target']}", views.terms(result["priced"]), "priced"
        ),
        html.section("The second token: here and published", views.acceptance(result), "measured, recorded, published"),
    )
    cost = 100 * result["priced"]["draft_cost"]
    return Frame(f"A draft step costs {cost:.1f} % of a step of {result['priced']['target']}.", body)


def window_frame(trace: Trace) -> Frame:
    result = summary(trace)["priced"]
    body = html.frame(
        html.section("The check is not free: by batch", views.window(result), views.assumed(result)),
        html.note(views.window_says(result)),
    )
    return Frame("What checking the second token costs, and the speed that is left, by batch.", body)


# --- Charts -----------------------------------------------------------------------------------------------------------


def batch_chart(trace: Trace) -> Any:
    served, result = next(iter(steps_of(trace, "priced")), None), summary(trace)["priced"]
    if served is None or result is None:
        return None
    fits = [b for b in BATCHES if result["speedup_by_batch"][str(b)] is not None]
    one, context = contender(trace, served), trace.provenance["params"]["priced_context"]
    curves = {
        "one draft, checked": [(b, float(speeds(served, one, float(b), context))) for b in fits],
        "if checking were free": [(b, result["speedup"]) for b in fits],
    }
    return pricing.over_batch(curves, result["flips"]) if fits else None


def verify_chart(trace: Trace) -> Any:
    result = summary(trace)["priced"]
    if result is None:
        return None
    points = [(int(b), cost) for b, cost in result["verify_cost_by_batch"].items()]
    return charts.lines({"t(2) / t(1)": points}, "batch size", "t(2) / t(1)", log_x=True)


def loss_chart(trace: Trace) -> Any:
    found = steps_of(trace, "losses")
    series = {f"depth {loss.depth}": list(enumerate(loss.losses, 1 + loss.depth)) for loss in found}
    return charts.lines(series, "place in the text", "nats") if series else None


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**The module.** A language model guesses the next token from its last state. The module guesses the one after. It takes
the last state of token i, and the embedding of token i + 1, which is known by then; each goes through its own norm,
both are laid side by side and mapped back to the model's width, one block follows, and the model's own LM head turns
the result into a law of token i + 2. Embedding and head are the target's, so a module is one block and a map.

**The loss by depth.** In training, depth 1 is asked for token i + 2 at every place, and its cross-entropy is added with
a weight: `L = L(0) + λ · mean of L(1), ..., L(D)`. DeepSeek V3 has D = 1 and λ = .3 for most of the training, then .1.
Its aim is a better model; the draft comes as a gift. Here the loss of both depths is recomputed on the prompt and
the reply, over the target's whole vocabulary.

**What is different here.** DeepSeek trained module and model together, on 14.8 trillion tokens. This target is frozen:
the module was trained afterwards on what the target itself wrote, against its law over 8,192 frequent tokens, and its
drafts come from these. So its acceptance is not that of DeepSeek's module, and its loss pays for tokens outside.

**The simple price.** A draft step multiplies the module's parameters and the LM head: c of a step. With acceptance p,
a pass yields 1 + p tokens for 1 + c of the cost: `(1 + p) / (1 + c)`.

**What it hides.** The check has two tokens per sequence, and with routed experts each token picks its own. At a small
batch the second token brings nearly as many new experts into the pass as the first, and reading them is what a pass
waits for. At a large batch all experts are read anyway and the second token is free, until the products fill the
compute units. The gain has a window; the page assumes that tokens pick experts at random, which is the worst case.
"""

QUESTIONS = (
    Question(
        ask="What does DeepSeek's MTP module read, and what does it share with the model?",
        answer=(
            "The last state of a token and the embedding of the token after it, each through its own norm.",
            "Both are concatenated, projected to the model's width, and go through one block.",
            "Embedding and LM head are the model's own; only projection, norms and block are new.",
        ),
        follow_ups=(
            "How does it differ from EAGLE? (No loss on states, norms before the map, trained with the model.)",
            "How do you draft two tokens with one module? (Run it again on its own output; it was not trained for it.)",
        ),
        mistakes=("Describing it as a second head on the same state, as Medusa's are.",),
        preset="wiring",
    ),
    Question(
        ask="Acceptance is 85 to 90 %. Why does the server not become 1.8 times faster at batch 1?",
        answer=(
            "(1 + p) / (1 + c) takes the checking pass to cost as much as a plain one.",
            "With routed experts the second token picks its own: at batch 1 the pass reads half as much again.",
            "The gain of 1.8 is there once the batch reads all experts anyway, and until compute binds.",
        ),
        follow_ups=("What would help at batch 1? (Tokens in sequence that share experts; fewer, larger experts.)",),
        mistakes=("Taking the published speed-up for any load.", "Forgetting the LM head in the module's cost."),
        preset="window",
    ),
    Question(
        ask="Why is the loss at depth 1 higher than at depth 0, and what is λ for?",
        answer=(
            "Two tokens ahead is harder: part of what decides the second is only known with the first.",
            "The module is told the first, but has one block to use it.",
            "λ keeps the further depths from pulling the model off its main task; it is lowered late in training.",
        ),
        mistakes=("Comparing the two losses as if they had the same information.",),
        preset="loss",
    ),
)

SOURCES = (
    ("DeepSeek-AI 2024: DeepSeek-V3, sections 2.2 and 5.4.3", "https://arxiv.org/abs/2412.19437"),
    ("Gloeckle et al. 2024: Better and faster models by multi-token prediction", "https://arxiv.org/abs/2404.19737"),
    ("DeepSeek V3, config.json", "https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json"),
)

LAB = Lab(
    slug="mtp",
    title="Multi-token prediction",
    question="What does DeepSeek's module draft from, what does a draft step cost, and at which batch does it pay?",
    group="draft",
    order=37,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Speed over batch: priced", batch_chart, "Priced: data-sheet roofline, experts picked at random."),
        Chart("What the check costs: priced", verify_chart, "Priced: a pass of two tokens each against a plain one."),
        Chart("Loss along the text", loss_chart, "Measured: nats per token; prompt and template included."),
    ),
    how=HOW,
    code=lambda params: (depth_loss, objective, terms, simple_speedup),
    questions=QUESTIONS,
    sources=SOURCES,
)
