"""Speculative sampling: the rejection rule on a real pair of models, and on any two laws typed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from playground.engine.acceptance import context_logits, over_temperature
from playground.engine.cost import Priced, break_even_batch, expected_tokens, spare_batch, speedup, tensor_parallel
from playground.engine.decode import speculate
from playground.engine.drafter_cost import DRAFTERS as PRICED_DRAFTERS
from playground.engine.drafter_cost import speculator
from playground.engine.drafters import Drafter, DraftModel, NoDrafter, Replay, never_right
from playground.engine.length import Fixed
from playground.engine.metrics import summarise
from playground.engine.model import LanguageModel
from playground.engine.rules import SCHEMES, RuleLaw, rising_sizes, rule_law, shaped, simulate
from playground.engine.sampling import chain, coins
from playground.engine.serving import Contender, tokens_by_length
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.verify import residual, verify_match_keep, verify_sampling
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import html, judging, rules, speculation, tokens, verification

MAX_TYPED = 8  # tokens of a typed-in law
NUM_DRAWS = 4000  # of the simulation
MAX_CONTEXTS = 32  # of the sweep over temperature
NAMES = "ABCDEFGH"
MODELS = (
    "llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m", "deepseek-v3",
)  # fmt: skip
LARGE_BATCH = 4096  # far in the compute-bound part
DRAFTERS = (
    "none", "ngram", "layer_skip", "medusa", "eagle3", "eagle", "mtp", "tiny", "combination", "model", "oracle",
    "always_wrong",
)  # fmt: skip
YOURS = "Your own law"
TARGET = "Decides. default is SmolLM2-135M, table a toy language; a hub id or a folder works too."
GUESSES = (
    "ngram copies from the text, layer_skip runs the first layers; medusa, eagle3, eagle, mtp and tiny were "
    "trained for the default target, combination is ngram, else eagle3; model is a named pair's; a hub id or folder "
    "works; oracle and always_wrong know the plain run."
)
FORESIGHT = ("oracle", "always_wrong")  # drafters made from the plain run at the same seed


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", TARGET, choices=("default", "table"), free=True)
    prompt: str = control("Tell me a short story about a lighthouse keeper.", "Prompt", lines=3)
    drafter: str = control("layer_skip", "Drafter", GUESSES, choices=DRAFTERS, free=True)
    draft_layers: int = control(
        24, "Draft layers", "Layers of the target that layer_skip keeps.", min=1, max=64, step=1
    )
    k: int = control(4, "Draft length k", min=1, max=16, step=1)
    rule: str = control("rejection", "Rule", "How the target judges a draft token.", choices=tuple(SCHEMES))
    temperature: float = control(
        1.0, "Temperature", "Shapes p and q alike; 0 is greedy.", min=0, max=5, step=0.05, group="Knobs"
    )
    top_k: int = control(0, "Top-k", "0 and -1 keep all.", min=-1, max=200, step=1, group="Knobs")
    top_p: float = control(1.0, "Top-p", min=0, max=1, step=0.01, group="Knobs")
    min_p: float = control(0.0, "Min-p", min=0, max=1, step=0.01, group="Knobs")
    p: tuple[float, ...] | None = control(
        None, "Target law p", "Up to eight numbers, separated by commas.", group=YOURS
    )
    q: tuple[float, ...] | None = control(None, "Draft law q", "With p and q given, no model runs.", group=YOURS)
    priced_target: str = control("llama-3.3-70b", "Priced model", choices=MODELS, free=True, group="Price")
    priced_drafter: str = control(
        "eagle",
        "Its drafter",
        "Prices follow from shapes; a model of the list drafts as a whole.",
        choices=(*PRICED_DRAFTERS, "llama-3.1-8b", "llama-3.2-1b"),
        free=True,
        group="Price",
    )
    priced_context: int = control(0, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")
    max_new_tokens: int = control(32, "New tokens", min=1, max=256, step=1, group="Run")
    seed: int = control(0, "Seed", min=0, max=2**31 - 1, step=1, group="Run")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="Run")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="Run")

    def __post_init__(self) -> None:
        if bool(self.p) != bool(self.q):
            raise BadInput(f"{'p' if self.q else 'q'} is missing: a run on typed-in laws needs both p and q.")
        if not self.p:
            return
        for name, law in (("p", self.p), ("q", self.q)):
            if not 2 <= len(law) <= MAX_TYPED:
                raise BadInput(f"{name} has {html.count(len(law), 'token')}; a law has 2 to {MAX_TYPED}.")
            if any(not x >= 0 for x in law):
                raise BadInput(f"{name} has the entry {min(law):g}; probabilities are 0 or more.")
            if not abs(sum(law) - 1) <= 1e-6:
                raise BadInput(f"{name} sums to {sum(law):.9g}; it must sum to 1.")
        if len(self.p) != len(self.q):
            raise BadInput(f"p has {len(self.p)} tokens and q has {len(self.q)}; both need the same ones.")

    def knobs(self, temperature: float | None = None) -> tuple[Any, ...]:
        """The knobs of both models, at another ``temperature`` if one is given."""
        heat = self.temperature if temperature is None else temperature
        return chain(heat, self.top_k, self.top_p, self.min_p)


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    yield from run_typed(params, models) if params.p else run_pair(params, models)


def run_typed(params: Params, models: Models) -> Iterator[Trace]:
    """Exact laws of all rules, the chosen one first; then a simulation of the chosen one."""
    p, q = (shaped(law, params.knobs()) for law in (params.p, params.q))
    about = {"drafter": "typed-in law", "target": "typed-in law", "k": params.k}
    trace = price_tag(Trace(texts=dict(enumerate(NAMES[: len(p)])), provenance=about), params, models).open("law")
    for name in (params.rule, *(name for name in SCHEMES if name != params.rule)):
        trace = trace.add("law", rule_law(name, p, q))
    yield trace  # all at once: each picture compares the four
    trace = trace.open("simulation")
    for draws in simulate(params.rule, p, q, params.seed, rising_sizes(NUM_DRAWS)):
        trace = trace.add("simulation", draws)
        yield trace


def run_pair(params: Params, models: Models) -> Iterator[Update]:
    """Speculative sampling on two models; then both score the contexts of this run again, at every temperature."""
    target = yield from models.load(params.target, params.dtype, params.device)
    prompt = target.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
    if params.drafter in FORESIGHT:
        yield Progress("Running the target alone first: this drafter is made from its output")
        reply = [o.token for step in decode(params, target, prompt, NoDrafter()) for o in step.outputs]
        drafter = Replay(tuple(reply) if params.drafter == "oracle" else never_right(reply, prompt), params.drafter)
    else:
        drafter = yield from models.drafter(
            params.drafter, target, prompt, knobs=params.knobs(), draft_layers=params.draft_layers
        )
    if params.rule == "argmax_soft_q":
        if not isinstance(drafter, DraftModel):
            raise BadInput(
                f"argmax_soft_q needs a draft model that reports q, such as layer_skip or tiny; {drafter.name} is none."
            )
        drafter.pick = SCHEMES[params.rule].pick
    about = {**target.provenance(), "drafter": drafter.name, "k": params.k}
    trace = Trace(texts=target.texts(prompt), provenance=about).open("speculative", prompt)
    trace = price_tag(trace, params, models)
    for step in decode(params, target, prompt, drafter):
        trace = trace.add("speculative", step, target.texts(step.tokens))
        yield trace
    if isinstance(drafter, DraftModel):
        output = trace["speculative"].output_tokens[:MAX_CONTEXTS]
        yield Progress("Scoring the contexts of this run at other temperatures")
        laws = [context_logits(session, prompt, output) for session in (target.session(prompt), drafter.session.fork())]
        trace = trace.open("temperature")
        for point in over_temperature(*laws, params.knobs, first=params.temperature):
            trace = trace.add("temperature", point)
            yield trace


def decode(params: Params, target: LanguageModel, prompt: Sequence[int], drafter: Drafter) -> Iterator[Pass]:
    """The one loop with this run's rule, knobs and coins."""
    return speculate(
        target.session(prompt, drafter.taps),
        drafter,
        rule=SCHEMES[params.rule].verify,
        length=Fixed(params.k),
        coin=coins(params.seed),
        knobs=params.knobs(),
        stop=Stop(target.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )


# --- Figures ----------------------------------------------------------------------------------------------------------


def lane(trace: Trace, name: str) -> Sequence[Any]:
    """The steps of a lane; none when the run has no such lane."""
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Acceptance, laws and their errors, the counters of a run on models, and what a batch of it would gain, priced."""
    laws = {law.rule: law for law in lane(trace, "law")}
    draws, points, passes = lane(trace, "simulation"), lane(trace, "temperature"), lane(trace, "speculative")
    chosen = lane(trace, "law")[0] if laws else None
    point = points[0] if points else None
    counters = summarise(Lane("speculative", (), passes)) if passes else dict.fromkeys(summarise(Lane("none")))
    by_rule = {name: law.alpha for name, law in laws.items()} or None
    if point:
        by_rule = {
            "rejection": point.rejection,
            "match_keep": point.match,
            "match_redraw": point.match,
            "argmax_soft_q": point.argmax,
        }
    rule = str(trace.provenance.get("params", {}).get("rule", chosen.rule if chosen else "rejection"))
    alpha = by_rule.get(rule) if by_rule else None
    return {
        "alpha": alpha,
        "alpha_by_rule": by_rule,
        "law": chosen.law if chosen else None,
        "law_by_rule": {name: law.law for name, law in laws.items()} or None,
        "law_error": chosen.error if chosen else None,
        "law_error_by_rule": {name: law.error for name, law in laws.items()} or None,
        "num_draws": draws[-1].num_draws if draws else None,
        "simulated_law": draws[-1].frequencies if draws else None,
        "simulated_error": draws[-1].distance if draws else None,
        "simulated_error_by_chance": draws[-1].chance if draws else None,
        **counters,
        "num_contexts": point.num_contexts if point else None,
        "argmax_soft_q_error": point.argmax_error if point else None,
        "acceptance_by_temperature": {f"{t.temperature:g}": t.rejection for t in sorted(points, key=heat)} or None,
        "match_by_temperature": {f"{t.temperature:g}": t.match for t in sorted(points, key=heat)} or None,
        **price(trace, alpha),
        "priced": priced(trace, alpha),
    }


def heat(point: Any) -> float:
    return point.temperature


def price(trace: Trace, alpha: float | None) -> dict[str, float | None]:
    """What a free drafter with this ``alpha`` gives on the priced model over the batch, at context 0."""
    names = ("expected_tokens_per_pass", "priced_spare_batch", "priced_break_even_batch", "priced_large_batch_speedup")
    k, tags = trace.provenance.get("k"), lane(trace, "priced")
    if alpha is None or not k or not tags:
        return dict.fromkeys(names)
    tag, tokens_per_pass = tags[0], expected_tokens(alpha, k)
    even = break_even_batch(tag.hardware, k, tokens_per_pass)
    values = (
        tokens_per_pass,
        spare_batch(tag.hardware, k),
        even if math.isfinite(even) else None,
        speedup(tag.shape, tag.hardware, LARGE_BATCH, k, tokens_per_pass),
    )
    return dict(zip(names, values, strict=True))


def price_tag(trace: Trace, params: Params, models: Models) -> Trace:
    """``trace`` with lanes that say what its priced figures stand for; raises ``BadInput`` with the names there are."""
    try:
        shape = models.shape(params.priced_target)
        served = Priced(shape, tensor_parallel(models.hardware(params.hardware), params.tensor_parallel))
        drafter = speculator(params.priced_drafter, shape, models.shape)
    except ValueError as error:
        raise BadInput(str(error)) from None
    return trace.open("priced").add("priced", served).open("priced drafter").add("priced drafter", drafter)


def priced(trace: Trace, alpha: float | None) -> dict[str, Any] | None:
    """Cost, speed by batch and the batch at which plain decoding wins, for the priced drafter at this run's alpha."""
    found, drafter = next(iter(contenders(trace, alpha)), None), next(iter(lane(trace, "priced drafter")), None)
    if found is None or drafter is None:
        return None
    return {"drafter": drafter.name, **price_of(lane(trace, "priced")[0], [found], context_of(trace))}


def contenders(trace: Trace, alpha: float | None) -> list[Contender]:
    """The priced drafter at the run's k and ``alpha``, then the same free of charge; none before alpha is known."""
    k, drafters = trace.provenance.get("k"), lane(trace, "priced drafter")
    if alpha is None or not k or not drafters:
        return []
    both = {drafters[0].name: drafters[0], "a free drafter": 0.0}
    return [Contender(name, drafter, tokens_by_length(alpha, k), k, alpha) for name, drafter in both.items()]


def context_of(trace: Trace) -> int:
    return trace.provenance.get("params", {}).get("priced_context", 0)


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    def percent(value: float | None) -> str:
        return "no data" if value is None else f"{100 * value:.1f} %"

    batch = result["priced_break_even_batch"]
    even = Figure(
        "no limit" if batch is None else f"{int(batch):,}", "largest batch at which a free drafter pays", "priced"
    )
    if result["law_error"] is not None:
        error = result["law_error"]
        return (
            Figure(percent(result["alpha"]), "of drafts accepted", "exact"),
            Figure("0" if error < rules.ROUNDING else f"{error:.3f}", "distance of the output law to p", "exact"),
            Figure(
                html.number(result["simulated_error"], 3),
                f"distance after {result['num_draws'] or 0:,} draws",
                "measured",
            ),
            Figure(html.number(result["expected_tokens_per_pass"]), "tokens per pass at this α and k", "exact"),
            even,
        )
    length = result["mean_acceptance_length"]
    return (
        Figure("no data" if length is None else f"{length:.2f}", "tokens per pass with a draft", "measured"),
        Figure(percent(result["acceptance_rate"]), "of drafted tokens accepted", "measured"),
        Figure(percent(result["alpha"]), "chance of a draft to stand, mean over contexts", "measured"),
        Figure(
            "no data" if not result["tokens_per_second"] else f"{result['tokens_per_second']:.1f}",
            "tokens per second",
            "measured",
        ),
        even if result["alpha"] is not None else Figure("no data", even.label, "priced"),
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    return sum(len(lane(trace, name)) for name in ("law", "simulation", "speculative"))


def frame(trace: Trace, index: int) -> Frame:
    laws = lane(trace, "law")
    if not laws:
        return pass_frame(trace, index)
    return law_frame(trace, index) if index < len(laws) else simulation_frame(trace, index - len(laws))


def pass_frame(trace: Trace, index: int) -> Frame:
    steps = lane(trace, "speculative")
    step, rule = steps[index], trace.provenance.get("params", {}).get("rule", "rejection")
    before = [*trace.lanes[0].prompt, *(o.token for s in steps[:index] for o in s.outputs)]
    draft = [
        tokens.chip(
            trace.texts.get(n.token, ""), n.state, verification.node_detail(step, i, trace.texts), with_mark=True
        )
        for i, n in enumerate(step.nodes)
    ]
    text = tokens.context_strip(trace.texts, before, verification.new_tokens(step, trace.texts))
    key = judging.KEY if step.nodes and rule not in judging.SAYS else ""
    body = html.frame(
        html.section("Text so far", text, html.count(len(before) + len(step.outputs), "token")),
        html.section("Draft", tokens.strip(draft), f"{step.num_verified} of {len(draft)} stand") if draft else None,
        html.detail(),
        html.section("Token by token", html.columns(*judging.judged(step, trace.texts, rule)), key),
        html.note(step.note, "warn") if step.note else None,
    )
    return Frame(says(step, rule), body)


def says(step: Pass, rule: str) -> str:
    """One pass as a sentence."""
    if not step.nodes:
        return "No draft: the target draws its own token."
    replaced = "the target's own draw" if rule in judging.SAYS else "a token of the residual"
    redrawn = f"{replaced} replaces the next"
    follows = {"recovered": redrawn, "bonus": "p gives a bonus token"}.get(
        step.outputs[-1].kind, "the output ends here"
    )
    return f"{step.num_verified} of {html.count(len(step.nodes), 'draft')} accepted; {follows}."


def law_frame(trace: Trace, index: int) -> Frame:
    laws, names = lane(trace, "law"), list(trace.texts.values())
    law: RuleLaw = laws[index]
    out = Markup('<p class="says">{}</p>{}').format(rules.TELLS[law.rule], rules.output_law(law, names))
    body = html.frame(
        html.section(f"What {law.rule} puts out", out, "exact; the line on a bar is p"),
        html.section("All output", rules.both_parts(law), "exact"),
        html.section("The four rules on these laws", rules.compared(laws, law.rule), "exact"),
    )
    verdict = "its output law is p" if law.error < rules.ROUNDING else f"its output law is {law.error:.3f} away from p"
    return Frame(f"{law.rule} accepts {100 * law.alpha:.1f} % of the drafts; {verdict}.", body)


def simulation_frame(trace: Trace, index: int) -> Frame:
    draws, law = lane(trace, "simulation")[: index + 1], lane(trace, "law")[0]
    now, names = draws[-1], list(trace.texts.values())
    curve = rules.convergence(draws, law.error, NUM_DRAWS)
    body = html.frame(
        html.section(
            html.count(now.num_draws, "draw") + f" with {now.rule}",
            rules.frequencies(now, law, names),
            "the line on a bar is p",
        ),
        html.section("Distance to p", curve, rules.curve_key(law.error)),
    )
    draws_so_far = html.count(now.num_draws, "draw")
    said = f"{draws_so_far}: the output is {now.distance:.4f} away from p; chance alone would leave {now.chance:.4f}."
    return Frame(said, body)


# --- Charts -----------------------------------------------------------------------------------------------------------


def temperature_chart(trace: Trace) -> Any:
    points = lane(trace, "temperature")
    return speculation.over_temperature(points, points[0].temperature) if points else None


def tokens_chart(trace: Trace) -> Any:
    result = summary(trace)
    if result["alpha"] is None:
        return None
    return speculation.tokens_per_pass(result["alpha"], trace.provenance["k"], result["mean_acceptance_length"])


def priced_chart(trace: Trace) -> Any:
    """The priced drafter against plain decoding and against one that is free."""
    alpha, tags = summary(trace)["alpha"], lane(trace, "priced")
    found = contenders(trace, alpha)
    if not found:
        return None
    flips = priced(trace, alpha)["flips"]
    return speculation.contenders_over_batch(tags[0], found, context_of(trace), flips)


def batch_chart(trace: Trace) -> Any:
    alpha, tags = summary(trace)["alpha"], lane(trace, "priced")
    return speculation.over_batch(tags[0], alpha, trace.provenance["k"]) if tags and alpha is not None else None


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
The drafter draws a token x from its law **q** and reports q. The target's pass gives its own law **p** for the same
position; both laws have been through the same knobs. A coin u is tossed on [0, 1), and x stands if **u · q(x) <
p(x)**. That is the famous ratio min(1, p/q) without a division, so q(x) = 0 needs no special case. If x falls, the
next token is drawn from the **residual**: max(p − q, 0), normalised. If every draft stands, p of the last row gives
one more token free of charge, the **bonus**.

**Why the output has law p, in two parts.** A token x can come out in two ways. It is drafted and stands with
probability q(x) · min(1, p(x)/q(x)) = min(p(x), q(x)). Or some draft falls, which happens with probability 1 − Σ
min(p, q), and x is drawn from the residual; the residual's normaliser is that same number, so this part is max(p(x) −
q(x), 0). The two parts add up to p(x), whatever q was. A poor q costs acceptance, never correctness. Type in your own
p and q to see both parts as one bar; the figures come from running the shipped rule over every coin it asks for, not
from this formula.

**Rules compared.** `match_keep` lets the target draw its own token and keeps the draft while it is the same: the
output *is* the target's own sample, so this is lossless too, but a draft stands only with Σ p · q. `match_redraw`
throws the mismatch away and draws again: drafts get a second chance, the output leans towards q. `argmax_soft_q`
drafts its likeliest token and reports the soft q: the coin and the residual are computed for a token that was never
drawn from q.

**Three sentences that need a qualifier.**

- *"Comparing with the target's own sample is biased."* Only if the sample is thrown away. Kept, it is exact, and
  accepts less.
- *"A higher temperature lowers acceptance."* At first. As both laws become uniform, acceptance rises again: the chart
  over temperature measures it on the contexts of your run. With top-k or top-p on, the two supports can differ at
  every temperature, and the rise may stop short of 1.
- *"A free drafter cannot hurt."* It can: once the batch fills the compute units, each drafted position is paid for,
  accepted or not. The batch charts price that: for a free drafter at an empty context,
  and for a drafter that costs at a context of your choice.

Temperature 0 needs no other rule: p and q become one-hot, and u · q < p is true exactly when both choose the same
token.
"""

QUESTIONS = (
    Question(
        ask="Why does speculative sampling keep the target's distribution exactly, however poor the drafter is?",
        answer=(
            "A token comes out as an accepted draft with probability min(p, q).",
            "It comes out after a rejection with probability max(p − q, 0): the chance of a rejection is also the "
            "number that normalises the residual, so the two cancel.",
            "The two add up to p for every q; the drafter decides only how often the first part is used.",
            "The next position starts from the token that came out, so the argument repeats along the text.",
        ),
        follow_ups=(
            "What is the acceptance rate in p and q? (Σ min(p, q), one minus their total variation.)",
            "What happens when q gives 0 to a token that p likes? (It comes from the residual.)",
        ),
        mistakes=(
            "Drawing the replacement from p instead of the residual: tokens that q overrates come out too often.",
            "Saying that the text is the same as without speculation. The law is the same; the sample is another one.",
        ),
        preset="reference_law",
    ),
    Question(
        ask="The drafter always proposes its likeliest token, and verification uses its softmax as q. What breaks?",
        answer=(
            "The token was not drawn from that q: its true law is one-hot.",
            "The coin accepts the favourite with p/q instead of p, and the residual subtracts what was never proposed.",
            "Draw the draft from q, or report q as one-hot: accept with p(x), and after a rejection take x out of p.",
        ),
        follow_ups=("What does the one-hot repair cost? (Acceptance: p at the favourite instead of Σ min(p, q).)",),
        mistakes=("Judging it by its acceptance rate: the wrong rule can accept more than the right one.",),
        preset="rule_argmax_soft_q",
    ),
    Question(
        ask="Let the target sample and compare, instead of tossing coins. Lossless? And why is it not the usual rule?",
        answer=(
            "Lossless, if a mismatch puts out the target's own sample: the output is always that sample.",
            "It accepts Σ p · q, which is never more than Σ min(p, q).",
            "Drawing a second time after the mismatch is what biases it.",
        ),
        follow_ups=("Where do both rules accept alike? (Where a law is one-hot: greedy decoding, n-gram drafts.)",),
        mistakes=("Calling every exact-match check biased.",),
        preset="rule_match_keep",
    ),
    Question(
        ask="A user sets top-k on the request. Which q belongs in the ratio?",
        answer=(
            "The law that the draft token was really drawn from, so q after the knobs, normalised again.",
            "p takes the same knobs, on every row, bonus row included.",
        ),
        mistakes=("Reporting the raw law: acceptance looks better, and the output leans towards the draft.",),
        preset="processed_q",
    ),
    Question(
        ask="How does acceptance move with temperature?",
        answer=(
            "At 0 a draft stands if both models have the same favourite.",
            "As it rises, the laws spread over tokens that the models rank differently, and the overlap shrinks.",
            "At high temperature both approach the uniform law, and the overlap grows towards 1.",
        ),
        follow_ups=(
            "What does exact match do there? (It falls and stays down: two samples of a flat law rarely agree.)",
        ),
        mistakes=("Extrapolating the falling part.",),
        preset="pair",
    ),
    Question(
        ask="Your drafter is free and accepts 80 % at k = 4. At which batch size would you turn it off?",
        answer=(
            "Until batch · (k + 1) reaches the ridge, streaming the weights bounds a pass: drafts ride along.",
            "Beyond, every drafted position costs time; speculation pays until that has eaten the tokens gained.",
            "Far beyond, the factor is E(α, k)/(k + 1), below 1 whenever anything is rejected.",
        ),
        follow_ups=(
            "What does a long context change? (KV reads grow with the batch, not with k: memory binds longer.)",
        ),
        mistakes=("Blaming the drafter: at a large batch verification is the bill.",),
        preset="rule_rejection",
    ),
)

SOURCES = (
    (
        "Leviathan, Kalman, Matias 2023: Fast Inference from Transformers via Speculative Decoding",
        "https://arxiv.org/abs/2211.17192",
    ),
    (
        "Chen et al. 2023: Accelerating Large Language Model Decoding with Speculative Sampling",
        "https://arxiv.org/abs/2302.01318",
    ),
    ("Miao et al. 2023: SpecInfer, several drafts judged one after another", "https://arxiv.org/abs/2305.09781"),
)


def code(params: Params) -> Sequence[Callable[..., Any]]:
    """The functions that judged the drafts."""
    scheme = SCHEMES[params.rule]
    if scheme.verify is verify_sampling:
        picks = () if params.rule == "rejection" else (scheme.pick,)
        return (*picks, verify_sampling, residual)
    return (scheme.verify,) if scheme.verify is verify_match_keep else (scheme.verify, verify_match_keep)


LAB = Lab(
    slug="speculative_sampling",
    title="Speculative sampling",
    question="How can a small model choose the words and the text still have exactly the large model's law?",
    group="verify",
    order=20,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart(
            "Acceptance over temperature",
            temperature_chart,
            "Measured: both models scored the contexts of this run again.",
        ),
        Chart(
            "Tokens per pass over acceptance",
            tokens_chart,
            "Computed: each draft stands with chance α; (1 − α^(k+1)) / (1 − α).",
        ),
        Chart(
            "Speed over batch size",
            batch_chart,
            "Priced: data-sheet roofline, a free drafter, context 0, this run's α.",
        ),
        Chart(
            "Speed over batch size with a drafter that costs",
            priced_chart,
            "Priced: the drafter, context and hardware of the controls, this run's α and k.",
        ),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
