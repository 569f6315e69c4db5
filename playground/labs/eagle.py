"""EAGLE's head taken apart: what it reads, what each change towards EAGLE-3 brings, what it costs on a served model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.engine import drafter_cost
from playground.engine.cost import Priced, tensor_parallel
from playground.engine.decode import speculate
from playground.engine.drafters import Drafter
from playground.engine.face_to_face import SideBySide, Together, merge, side_by_side
from playground.engine.head_report import WITH, WITHOUT, effects, judged, most_telling, slim
from playground.engine.length import Fixed
from playground.engine.model import LanguageModel
from playground.engine.sampling import Temperature, coins
from playground.engine.serving import BATCHES, Contender, equal_alpha, speed_of, speeds, tokens_by_length
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.trace import Trace
from playground.engine.verify import verify_greedy
from playground.engine.wiring import Probe, Wiring
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, faceoff, heads, html, pricing, tokens, wiring

NAMES = (
    "eagle3", "eagle3_short", "eagle3_blind", "eagle", "mtp", "eagle3_noroll", "eagle3_top", "tiny",
)  # fmt: skip
PROBED = ("eagle3", "eagle3_short", "eagle", "mtp", "eagle3_top", "eagle3_noroll")  # the first of them that runs
GREEDY = (Temperature(0.0),)
MODELS = ("llama-3.3-70b", "llama-3.1-8b", "qwen3-8b", "deepseek-v3")
HEAD, HEAD_32K = "EAGLE head", "EAGLE head, 32k tokens"


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "The trained heads belong to default.", choices=("default",), free=True)
    prompt: str = control("Write a Python function that adds two numbers.", "Prompt", lines=3)
    variants: tuple[str, ...] = control(NAMES, "Variants", "Trained heads, and a small language model.", choices=NAMES)
    k: int = control(4, "Draft length k", "Tokens that each head drafts.", min=1, max=6, step=1)
    max_new_tokens: int = control(20, "New tokens", min=1, max=64, step=1)
    priced_target: str = control("llama-3.3-70b", "Priced model", choices=MODELS, free=True, group="Price")
    draft_model: str = control(
        "llama-3.1-8b", "Draft model", "What the head is set beside.", choices=("llama-3.1-8b", "llama-3.2-1b"),
        free=True, group="Price",
    )  # fmt: skip
    draft_alpha: float = control(0.8, "Its acceptance α", min=0.0, max=1.0, step=0.01, group="Price")
    priced_k: int = control(4, "Priced draft length", "The same for both.", min=1, max=16, step=1, group="Price")
    priced_context: int = control(0, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")
    seed: int = control(0, "Seed", "Greedy decoding draws nothing.", min=0, max=2**31 - 1, step=1, group="More")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")

    def __post_init__(self) -> None:
        if not self.variants:
            raise BadInput(f"variants is empty: name at least one of {', '.join(NAMES)}.")
        if len(set(self.variants)) < len(self.variants):
            twice = next(name for name in self.variants if self.variants.count(name) > 1)
            raise BadInput(f"variants names {twice} twice.")


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """Every head drafts after the same texts, and the target judges all drafts of a place in one pass."""
    price = priced(params, models)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = model.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
    ready, missing = yield from make_heads(params, models, model, prompt)
    about = {
        **model.provenance(),
        "missing": missing,
        "taps": {name: list(head.taps) for name, head in ready.items()},
        "records": {name: slim(models.record(name), name) for name in params.variants},
    }
    trace = Trace(texts=model.texts(prompt), provenance=about).open("priced").add("priced", price[0])
    trace = trace.open("speculators")
    for speculator in price[1:]:
        trace = trace.add("speculators", speculator)
    trace = trace.open("drafts").open("wiring")
    if ready:
        trace = yield from draft_all(params, model, prompt, ready, trace)
    yield trace.open("done")


def make_heads(params: Params, models: Models, model: LanguageModel, prompt: Sequence[int]) -> Iterator[Update]:
    """The heads that have weights for this target, and for each other one the sentence that says why not."""
    ready: dict[str, Drafter] = {}
    missing: dict[str, str] = {}
    for name in params.variants:
        try:
            ready[name] = yield from models.drafter(name, model, prompt, knobs=GREEDY)
        except ValueError as error:
            missing[name] = str(error)
    return ready, missing


def draft_all(
    params: Params, model: LanguageModel, prompt: Sequence[int], ready: Mapping[str, Drafter], trace: Trace
) -> Iterator[Update]:
    """A step per place: the chains of all heads, and the tensors behind the chain of one of them."""
    yield Progress("Reading the prompt")
    together, probed = Together(ready), next((name for name in PROBED if name in ready), None)
    probe = Probe()
    if probed:
        ready[probed].probe = probe  # type: ignore[attr-defined]
    passes = speculate(
        model.session(prompt, together.taps),
        together,
        rule=verify_greedy,
        length=Fixed(params.k),
        coin=coins(params.seed),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )
    for moment in side_by_side(passes, together, prompt):
        if not all(chain.tokens for chain in moment.chains):
            continue  # before the target's first states only the blind ones draft
        seen = probe.wiring(probed or "", moment.start)
        guessed = [token for level in seen.levels for token, _ in level.top]
        shown = [*moment.context, *(token for chain in moment.chains for token in chain.tokens), *guessed]
        trace = trace.add("drafts", moment, model.texts(shown)).add("wiring", seen)
        yield trace
    return trace


def priced(params: Params, models: Models) -> tuple[Any, ...]:
    """The served model, its EAGLE head with either vocabulary, and a draft model. Raises ``BadInput``."""
    try:
        pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
        shape, small = models.shape(params.priced_target), models.shape(params.draft_model)
    except ValueError as error:
        raise BadInput(str(error)) from None
    head, head_32k = drafter_cost.eagle(shape), drafter_cost.eagle3(shape)
    return (
        Priced(shape, pod),
        replace(head, name=HEAD),
        replace(head_32k, name=HEAD_32K),
        drafter_cost.draft_model(small),
    )


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Per variant what is on record and what was measured here; the feature's effect; the changes; the price."""
    about = trace.provenance
    moments: Sequence[SideBySide] = steps_of(trace, "drafts")
    asked = about.get("params", {}).get("variants", NAMES)
    records = about.get("records", {})
    variants = {name: variant(records.get(name), moments, name) for name in asked}
    with_it, without = (first_position(variants, name) for name in (WITH, WITHOUT))
    here = [first(variants.get(name, {}).get("here", {})) for name in (WITH, WITHOUT)]
    return {
        "variants": variants,
        "first_position_with_feature": with_it,
        "first_position_without_feature": without,
        "feature_effect": None if with_it is None or without is None else with_it - without,
        "first_position_with_feature_here": here[0],
        "first_position_without_feature_here": here[1],
        "changes": effects(variants),
        "contexts_here": len(moments),
        "missing": about.get("missing", {}),
        "priced": price(trace),
    }


def variant(record: Mapping[str, Any] | None, moments: Sequence[SideBySide], name: str) -> dict[str, Any]:
    """A variant's record over the held-out prompts, and ``here`` its counters on this prompt."""
    keys = (
        "acceptance_per_position", "conditional_per_position", "mean_acceptance_length", "passes", "token_visits",
        "parameters", "learning_curve",
    )  # fmt: skip
    found = judged(moments, name)
    here = {
        "num_drafts": found.num_drafts,
        "mean_acceptance_length": found.mean_acceptance_length,
        "acceptance_per_position": list(found.acceptance_per_position),
        "conditional_per_position": list(found.conditional_per_position),
    }
    return {**{key: (record or {}).get(key) for key in keys}, "here": here}


def first(side: Mapping[str, Any]) -> float | None:
    return next(iter(side.get("acceptance_per_position") or ()), None)


def first_position(variants: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    return first(variants.get(name, {}))


def price(trace: Trace) -> dict[str, Any] | None:
    """The head on the served model: parameters, draft costs, and the acceptance at which it equals the draft model."""
    served, params = next(iter(steps_of(trace, "priced")), None), trace.provenance.get("params", {})
    tags = steps_of(trace, "speculators")
    if served is None or len(tags) < 3 or "priced_k" not in params:
        return None
    head, head_32k, model = tags
    k, alpha, context = params["priced_k"], params["draft_alpha"], params["priced_context"]
    goal = float(speed_of(served, Contender("", model, tokens_by_length(alpha, k), k), k, 1.0, context))
    return {
        **price_of(served, contenders(trace), context),
        "parameters": head.stored_parameters,
        "parameters_with_head": head.parameters,
        "parts": dict(head.network.parts),
        "draft_cost": head.token_cost(served, 1, context),
        "draft_cost_32k": head_32k.token_cost(served, 1, context),
        "draft_model": model.name,
        "draft_model_parameters": model.parameters,
        "draft_model_cost": model.token_cost(served, 1, context),
        "draft_model_acceptance": alpha,
        "draft_model_speedup": goal,
        "k": k,
        "equal_acceptance": equal_alpha(served, head, k, goal, 1, context),
        "equal_acceptance_32k": equal_alpha(served, head_32k, k, goal, 1, context),
    }


def contenders(trace: Trace) -> list[Contender]:
    """The head with the small vocabulary and the draft model, at the same acceptance and length."""
    params, tags = trace.provenance["params"], steps_of(trace, "speculators")
    alpha, k = params["draft_alpha"], params["priced_k"]
    return [Contender(tag.name, tag, tokens_by_length(alpha, k), k, alpha) for tag in tags[1:]]


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    s, p = result, result["priced"] or {}

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.0f} %"

    cost, equal = p.get("draft_cost_32k"), p.get("equal_acceptance_32k")
    return (
        Figure(
            f"{share(s['first_position_with_feature'])} / {share(s['first_position_without_feature'])}",
            "first guess right, with the feature / without", "recorded",
        ),
        Figure(
            f"{share(s['first_position_with_feature_here'])} / {share(s['first_position_without_feature_here'])}",
            "the same on this prompt", "measured",
        ),
        Figure("–" if not p else f"{p['parameters'] / 1e9:.3f} B", f"parameters, head for {p.get('target')}", "priced"),
        Figure("–" if cost is None else f"{100 * cost:.2f} %", "of a pass per drafted token, 32k vocabulary", "priced"),
        Figure("–" if equal is None else f"{equal:.2f}", f"acceptance that equals {p.get('draft_model')}", "priced"),
    )  # fmt: skip


# --- Frames -----------------------------------------------------------------------------------------------------------


def closing(trace: Trace) -> list[Callable[[Trace], Frame]]:
    """The frames behind the last place, once the run is over."""
    if not any(lane.name == "done" for lane in trace.lanes):
        return []
    has_pair = {WITH, WITHOUT} <= set(trace.provenance.get("taps", {})) and steps_of(trace, "drafts")
    return [*([feature_frame] if has_pair else []), versions_frame, claim_frame]


def num_frames(trace: Trace) -> int:
    return len(steps_of(trace, "drafts")) + len(closing(trace))


def frame(trace: Trace, index: int) -> Frame:
    moments = steps_of(trace, "drafts")
    if index >= len(moments):
        return closing(trace)[index - len(moments)](trace)
    moment, seen = moments[index], steps_of(trace, "wiring")[index]
    body = html.frame(
        html.section("The text so far", tokens.context_strip(trace.texts, moment.context), f"token {moment.start:,}"),
        html.section(
            "What each head drafts after it", wiring.drafts(moment, trace.texts, heads.ABOUT),
            "judged by the target in one pass",
        ),
        html.detail(),
        *anatomy(trace, seen),
        tokens.legend(("accepted", "rejected", "unjudged")),
        missing_note(trace),
    )  # fmt: skip
    return Frame(f"After {moment.start:,} tokens: {heads.longest(moment)}", body)


def anatomy(trace: Trace, seen: Wiring) -> list[html.Text]:
    """The probed head's first two passes: from the target's states, then from its own output."""
    if not seen.levels:
        return []
    every = trace.provenance.get("taps", {})
    taps, top = every.get(seen.drafter, []), max((max(t, default=0) for t in every.values()), default=0)
    titles = ("First guess: from the target's states", "Second guess: from its own output")
    levels = [
        html.section(title, wiring.level(level, trace.texts)) for title, level in zip(titles, seen.levels, strict=False)
    ]
    ladder = html.section(f"What {seen.drafter} reads", wiring.ladder(taps, top), "states after the target's layers")
    return [ladder, html.columns(*levels), html.note(wiring.STRIPS)]


def missing_note(trace: Trace) -> html.Text | None:
    missing = trace.provenance.get("missing", {})
    why = next(iter(missing.values()), "")
    return html.note(f"Not drafting here: {', '.join(missing)}. {why}", "warn") if missing else None


def feature_frame(trace: Trace) -> Frame:
    """The same head with and without the target's states, after the text where it shows most."""
    result, moments = summary(trace), steps_of(trace, "drafts")
    moment = most_telling(moments, WITH, WITHOUT) or moments[0]
    pair = replace(moment, chains=tuple(c for c in moment.chains if c.name in (WITH, WITHOUT)))
    body = html.frame(
        html.note(heads.feature_says(result)),
        faceoff.duel(pair, trace.texts),
        html.detail(),
        html.section(
            "Conditional acceptance by position", heads.positions(result["variants"], (WITH, WITHOUT)),
            "recorded over held-out prompts; in brackets on this prompt",
        ),
        tokens.legend(("accepted", "rejected", "unjudged")),
    )  # fmt: skip
    return Frame("The same head with the target's states and without them.", body)


def versions_frame(trace: Trace) -> Frame:
    result = summary(trace)
    body = html.frame(
        html.section(
            "Every variant, by position", heads.positions(result["variants"], tuple(result["variants"])),
            "recorded over held-out prompts; in brackets on this prompt",
        ),
        html.section("From EAGLE to EAGLE-3, change by change", heads.changes(result["changes"]), "recorded"),
        html.section("Same data; budgets", heads.budgets(result["variants"]), "recorded"),
        missing_note(trace),
    )  # fmt: skip
    return Frame("EAGLE against EAGLE-3, and what each change brings here.", body)


def claim_frame(trace: Trace) -> Frame:
    result = summary(trace)
    body = html.frame(
        html.section("Small head or small model: here", heads.beside(result["variants"]), "recorded and measured"),
        html.section(
            f"On {result['priced']['target']}", heads.price(result["priced"]), heads.assumed(result["priced"])
        ),
        html.note(heads.claim(result)),
    )
    return Frame("What the head costs on a served model, and the acceptance that equals a draft model.", body)


# --- Charts -----------------------------------------------------------------------------------------------------------


def position_chart(trace: Trace) -> Any:
    found = {name: v["conditional_per_position"] for name, v in summary(trace)["variants"].items()}
    series = {name: list(enumerate(values, 1)) for name, values in found.items() if values}
    if not series:
        return None
    fig = charts.lines(series, "draft position", "accepted, of those that got there")
    return fig.update_yaxes(tickformat=".0%").update_xaxes(dtick=1)


def learning_chart(trace: Trace) -> Any:
    """First guesses that agree on the validation conversations, against token visits."""
    found = {name: v["learning_curve"] for name, v in summary(trace)["variants"].items() if v["learning_curve"]}
    series = {name: [(row["tokens"], row["validation"][0]) for row in curve] for name, curve in found.items()}
    if not series:
        return None
    return charts.lines(series, "token visits", "first guess right, validation").update_yaxes(tickformat=".0%")


def batch_chart(trace: Trace) -> Any:
    served, result = next(iter(steps_of(trace, "priced")), None), summary(trace)["priced"]
    if served is None or result is None:
        return None
    context = trace.provenance["params"]["priced_context"]
    fits = [b for b in BATCHES if result["speedup_by_batch"][HEAD_32K][str(b)] is not None]
    curves = {c.name: [(b, float(speeds(served, c, float(b), context))) for b in fits] for c in contenders(trace)}
    return pricing.over_batch(curves, result["flips"]) if fits else None


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**What it reads.** When the target has read a token, its last layers already hold most of what it will say next. A draft
model of its own must find that out again from the words alone. EAGLE's head is one layer that reads the target's state
of the last token together with the embedding of the token that was chosen after it. The second part matters: the state
alone does not say which of the likely tokens was taken. The head puts out the next state, the target's own LM head
turns it into a guess, and guess and state go back in for the next one.

**With and without.** `eagle3_short` and `eagle3_blind` are the same head, trained on the same conversations for the
same number of token visits; the blind one gets the token only. What the first one has more is what the feature gives.

**From EAGLE to EAGLE-3.** EAGLE learns to hit the target's next state (smooth L1) and, with a tenth of the weight, its
token. EAGLE-3 changes three things. It drops the loss on states, so the head is free to carry what helps guessing. It
goes on from its own output in training, as it must when drafting (training-time test). And it reads a low, a middle and
a high layer, fused into one, not the last layer alone. That more training data helps is a consequence: a head that is
made to copy states has little left to learn from more of them. Each change is measured by a pair of heads that differ
in it alone, at equal budgets; `eagle3` itself was trained longer and is not part of these pairs. The pair of the first
change also differs in a norm before the LM head.

**What is recorded, what is measured.** Positions, lengths and budgets come from the provenance of the weights: greedy
drafts of four along the target's replies to held-out prompts. The figures in brackets and the frames are this run: all
heads draft after the same text, the target judges the merged tree in one pass, and the longest draft that stands is
kept. A few dozen places are a demonstration, not an evaluation.

**The price.** One layer of the served model, the map that joins state and embedding, and the target's LM head, which is
read again for every guess and weighs more than the layer. EAGLE-3's smaller draft vocabulary saves most of that. The
head is small, so a lower acceptance than that of a draft model gives the same speed: the page computes which.
"""

QUESTIONS = (
    Question(
        ask="How can one layer draft better than a separate model that is many times larger?",
        answer=(
            "It does not start from words: it reads the target's own state, which already holds the coming token.",
            "It reads the token that was really chosen beside it, which the state cannot know.",
            "It was trained on this target's laws, for this target only.",
        ),
        follow_ups=(
            "Take the state away: what is left? (A one-layer language model; see the blind head.)",
            "What does that tie it to? (One target: new weights, new head.)",
        ),
        mistakes=("Calling the head a small language model.", "Comparing parameters and forgetting the LM head."),
        preset="feature",
    ),
    Question(
        ask="EAGLE's head is right at the first place and falls off later. What did EAGLE-3 do about it?",
        answer=(
            "When drafting, the second guess reads the head's own output; plain training never shows it that.",
            "Training-time test unrolls the head on its own outputs, so it learns from its own errors.",
            "Without the loss on states the output need not look like a state of the target.",
        ),
        follow_ups=("Where must the gain show? (At the second place and later, conditional on the first.)",),
        mistakes=("Judging by the mean acceptance length alone, which the first place dominates.",),
        preset="versions",
    ),
    Question(
        ask="The head accepts less often than an 8B draft model. When is it still faster?",
        answer=(
            "Speed is tokens per pass over one plus the cost of drafting; the head's cost is a few per cent of a pass.",
            "So there is an acceptance, below the model's, at which both are equally fast; above it the head wins.",
            "Four passes of the 8B model cost nearly half a pass of the 70B; four of the head about a tenth.",
        ),
        follow_ups=("Which part of the head costs most? (The LM head; hence the draft vocabulary of 32k.)",),
        mistakes=("Ranking drafters by acceptance.",),
        preset="price",
    ),
)

SOURCES = (
    ("Li et al. 2024: EAGLE", "https://arxiv.org/abs/2401.15077"),
    ("Li et al. 2025: EAGLE-3, training-time test", "https://arxiv.org/abs/2503.01840"),
    ("DeepSeek-AI 2024: DeepSeek-V3, multi-token prediction", "https://arxiv.org/abs/2412.19437"),
)


def code(params: Params) -> Sequence[Callable[..., Any]]:
    """The functions behind the comparison."""
    return (merge, judged, equal_alpha)


LAB = Lab(
    slug="eagle",
    title="EAGLE taken apart",
    question="Why can a head of one layer draft better than a separate model, and what did EAGLE-3 change?",
    group="draft",
    order=36,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Accepted by draft position", position_chart, "Recorded over held-out prompts."),
        Chart("Learning curves", learning_chart, "Recorded: agreement with the target's first choice."),
        Chart("Speed over batch: priced", batch_chart, "Priced: data-sheet roofline, the same acceptance for both."),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
