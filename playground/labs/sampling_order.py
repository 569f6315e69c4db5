"""Sampling order: the same knobs in another order are another distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from playground.engine.decode import NAN_NOTE
from playground.engine.filters import TopKTopP, TopNSigma, TypicalP
from playground.engine.order import MAX_ORDERED, all_orders, commuting, fit, read_order, switched_on, walk
from playground.engine.rules import total_variation
from playground.engine.sampling import Context, Knob, MinP, Temperature, TopK, TopP, coins, has_nan
from playground.engine.shaping import contested, distinct_sets, drawn, in_engines, is_left, likeliest, ordered, shaped
from playground.engine.trace import Lane, Trace
from playground.engine.tree import Draft
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control, params_of
from playground.views import charts, html, knobs

MAX_TYPED = 12  # tokens of a typed-in law
NUM_SHOWN, NUM_CONTESTED = (
    12,
    8,
)  # tokens of a model's law that are shown: the likeliest, and those only one lane leaves
LETTERS = "ABCDEFGHIJKL"
YOURS, PENALTIES, RUN = "Your own law", "Penalties", "Run"


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "Its next token is looked at.", choices=("default", "table"), free=True)
    prompt: str = control("Write one sentence about the sea.", "Prompt", lines=2)
    reply: str = control("The sea is", "Reply so far", "The law is that of the token after this.", lines=1)
    temperature: float = control(1.5, "Temperature T", "1 is off, 0 is greedy.", min=0, max=5, step=0.05)
    top_k: int = control(40, "Top-k K", "0 and -1 are off.", min=-1)
    top_p: float = control(0.9, "Top-p P", "1 is off.", min=0, max=1, step=0.01)
    min_p: float = control(0.0, "Min-p M", "0 is off.", min=0, max=1, step=0.01)
    typical_p: float = control(1.0, "Typical-p Y", "1 is off.", min=0, max=1, step=0.01)
    top_n_sigma: float = control(0.0, "Top-n-sigma S", "0 is off.", min=0, max=10, step=0.1)
    order_a: str = control(
        "TKPM",
        "Order A",
        "Letters, names between commas, or move the cards. J is top-k and top-p at once.",
        cards=knobs.NAMES,
    )
    order_b: str = control("KPMT", "Order B", "A knob that is on but not named acts last.", cards=knobs.NAMES)
    repetition_penalty: float = control(
        1.0, "Repetition penalty R", "1 is off.", min=0.1, max=5, step=0.05, group=PENALTIES
    )
    frequency_penalty: float = control(
        0.0, "Frequency penalty F", "Per time in the reply.", min=-2, max=2, step=0.1, group=PENALTIES
    )
    presence_penalty: float = control(
        0.0, "Presence penalty F", "Once, if in the reply.", min=-2, max=2, step=0.1, group=PENALTIES
    )
    p: tuple[float, ...] | None = control(None, "Law p", "Two to twelve numbers; no model runs.", group=YOURS)
    history: tuple[str, ...] | None = control(
        None, "Tokens put out", "Letters A, B, C … of the law, for the penalties.", group=YOURS
    )
    seed: int = control(0, "Seed", "Of the coin that draws.", min=0, max=2**31 - 1, step=1, group=RUN)
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group=RUN)
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group=RUN)

    def __post_init__(self) -> None:
        read_order(self.order_a), read_order(self.order_b)
        if len(self.on) > MAX_ORDERED:
            raise BadInput(
                f"{len(self.on)} knobs are on; every order is worked out for at most {MAX_ORDERED}: switch one off."
            )
        if self.p:
            check_law(self.p)
            if wrong := [name for name in self.history or () if name.upper() not in LETTERS[: len(self.p)]]:
                raise BadInput(
                    f"history names {wrong[0][:20]!r}; this law has the tokens A to {LETTERS[len(self.p) - 1]}."
                )

    @property
    def on(self) -> dict[str, Knob]:
        """The knobs that change something, by letter."""
        names = (
            "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma",
            "repetition_penalty", "frequency_penalty", "presence_penalty",
        )  # fmt: skip
        return switched_on(**{name: getattr(self, name) for name in names})


def check_law(p: Sequence[float]) -> None:
    if not 2 <= len(p) <= MAX_TYPED:
        raise BadInput(f"p has {html.count(len(p), 'token')}; a law has 2 to {MAX_TYPED}.")
    if min(p) < 0:
        raise BadInput(f"p has the entry {min(p):g}; probabilities are 0 or more.")
    if abs(sum(p) - 1) > 1e-6:
        raise BadInput(f"p sums to {sum(p):.9g}; it must sum to 1.")


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """Both lanes knob by knob; then every order, the engines and what commutes."""
    if params.p:
        logits, context = torch.tensor([params.p], dtype=torch.float64).log(), typed_context(params)
        about, texts = {"target": "typed-in law"}, typed_texts
    else:
        model = yield from models.load(params.target, params.dtype, params.device)
        prompt = model.chat(params.prompt)
        context = Context((*prompt, *model.encode(params.reply)), len(prompt))
        if not context.tokens:
            raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
        logits = model.session(context.tokens).score(Draft()).logits[:1]
        about, texts = {**model.provenance(), "has_nan": has_nan(logits)}, model.texts
    on, contexts = params.on, [context]
    (order_a, a), (order_b, b) = ((order, list(walk(order, on, logits, contexts))) for _, order, _ in lanes(params))
    tokens = shown_tokens(a, b) if not params.p else range(len(params.p))
    draws = drawn(a[-1], b[-1], coins(params.seed)(len(context.tokens), "emit"))
    named = texts([*tokens, draws.a, draws.b])
    trace = Trace(texts=named, provenance=about).open("A", context.tokens).open("B", context.tokens)
    steps = {"A": shaped(order_a, a, tokens), "B": shaped(order_b, b, tokens)}
    for i in range(max(map(len, steps.values()))):
        for name, lane in steps.items():
            trace = trace.add(name, lane[i]) if i < len(lane) else trace
    yield trace  # all at once: each picture shows the knobs that are still to come

    yield Progress("Working out every order")
    laws = dict(all_orders(on, logits, contexts))
    sets, disputed = distinct_sets(laws, a[0]), contested(laws, a[0])
    for each in sets:
        trace = replace(trace, texts={**trace.texts, **texts(each.tokens)})
    trace = replace(trace, texts={**trace.texts, **texts([each.token for each in disputed])})
    results = {
        "orders": ordered(laws, sets, tokens),
        "sets": sets,
        "contested": disputed,
        "engines": in_engines(on, logits, contexts),
        "pairs": commuting(on, logits, contexts),
        "draw": [draws],
    }
    yield replace(trace, lanes=(*trace.lanes, *(Lane(name, (), tuple(found)) for name, found in results.items())))


def typed_texts(tokens: Sequence[int]) -> dict[int, str]:
    return {token: LETTERS[token] for token in tokens}


def shown_tokens(a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[int, ...]:
    """The likeliest tokens of a model's law, and of those that only one of the two orders leaves."""
    raw = a[0]
    first = likeliest(raw, is_left(raw), NUM_SHOWN)
    apart = likeliest(raw, is_left(a[-1]) ^ is_left(b[-1]), NUM_SHOWN + NUM_CONTESTED)
    return (*first, *[token for token in apart if token not in first][:NUM_CONTESTED])


def typed_context(params: Params) -> Context:
    """What a typed-in law's penalties count: all of the history is output."""
    return Context(tuple(LETTERS.index(name.upper()) for name in params.history or ()), 0)


def lanes(params: Params) -> list[tuple[str, str, str]]:
    """Name, letters that act, and letters that are on but were not named, of both orders."""
    return [(name, *fit(read_order(text), params.on)) for name, text in (("A", params.order_a), ("B", params.order_b))]


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Candidates, laws and sets by order and by engine; laws are of ``tokens``, in that order."""
    a, b, orders = steps_of(trace, "A"), steps_of(trace, "B"), steps_of(trace, "orders")
    sets, pairs = steps_of(trace, "sets"), steps_of(trace, "pairs")
    draws = next(iter(steps_of(trace, "draw")), None)
    tokens = a[0].tokens if a else ()
    apart = total_variation((*a[-1].law, a[-1].tail), (*b[-1].law, b[-1].tail)) if a and b else None
    return {
        "candidates_by_order": {each.order: each.num_left for each in orders} or None,
        "laws_by_order": {each.order: each.law for each in orders} or None,
        "engines": {each.engine: each.num_left for each in steps_of(trace, "engines")} or None,
        "orders_of_engines": {each.engine: each.order for each in steps_of(trace, "engines")} or None,
        "sets": [each.tokens for each in sets] or None,
        "set_sizes": [each.num_tokens for each in sets] or None,
        "only_some_orders": {
            trace.texts.get(each.token, f"#{each.token}"): len(each.orders) for each in steps_of(trace, "contested")
        },
        "commutes_here": {pair.first + pair.second: pair.is_same_here for pair in pairs} or None,
        "random_laws_that_differ": {pair.first + pair.second: pair.num_different for pair in pairs} or None,
        "tokens": [trace.texts.get(token, f"#{token}") for token in tokens],
        "order_a": "".join(each.letter for each in a),
        "order_b": "".join(each.letter for each in b),
        "candidates_a": a[-1].num_left if a else None,
        "candidates_b": b[-1].num_left if b else None,
        "law_a": a[-1].law if a else None,
        "law_b": b[-1].law if b else None,
        "distance": apart,
        "logprobs": {
            "raw": logs(a[0].law) if a else None,
            "order_a": logs(a[-1].law) if a else None,
            "order_b": logs(b[-1].law) if b else None,
        },
        "drawn_a": trace.texts.get(draws.a) if draws else None,
        "drawn_b": trace.texts.get(draws.b) if draws else None,
        "source": "exact" if trace.provenance.get("target") == "typed-in law" else "measured",
    }


def logs(law: Sequence[float]) -> list[float | None]:
    """Natural logarithms; ``None`` where the token cannot be sampled."""
    return [math.log(p) if p > 0 else None for p in law]


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    counts, source = list((result["candidates_by_order"] or {}).values()), result["source"]
    spread = (
        "–"
        if not counts
        else f"{min(counts):,}"
        if min(counts) == max(counts)
        else f"{min(counts):,} – {max(counts):,}"
    )
    return (
        Figure(whole(result["candidates_a"]), f"tokens left in order A, {result['order_a'] or 'none'}", source),
        Figure(whole(result["candidates_b"]), f"tokens left in order B, {result['order_b'] or 'none'}", source),
        Figure(spread, f"tokens left over all {html.count(len(counts), 'order')}", source),
        Figure(whole(len(result["sets"]) if result["sets"] else None), "different sets of tokens", source),
        Figure(html.number(result["distance"], 3), "total variation between A and B", source),
    )


def whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


# --- Frames -----------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """The law before any knob, a frame per knob in both lanes, all orders, engines with log-probabilities."""
    return max(len(steps_of(trace, "A")), len(steps_of(trace, "B"))) + (2 if steps_of(trace, "draw") else 0)


def frame(trace: Trace, index: int) -> Frame:
    ends = num_frames(trace) - (2 if steps_of(trace, "draw") else 0)
    if index < ends:
        return knob_frame(trace, index)
    return orders_frame(trace) if index == ends else engines_frame(trace)


def knob_frame(trace: Trace, index: int) -> Frame:
    settings, blocks, says = said_settings(params_of(LAB, trace)), [], []
    for name in "AB":
        steps = steps_of(trace, name)
        at = min(index, len(steps) - 1)
        body = knobs.cards(steps, at, settings, f"order_{name.lower()}") + knobs.law(steps[: at + 1], trace.texts)
        blocks.append(html.section(f"Order {name}", body, f"{html.count(steps[at].num_left, 'token')} left"))
        says.append(lane_says(name, steps[at], at == index) if index else "")
    status = (
        f"{says[0]}; {says[1]}."
        if index
        else f"{html.count(steps[0].num_left, 'token')} can be sampled before any knob."
    )
    return Frame(status, html.frame(html.columns(*blocks), *unnamed_notes(trace)))


def lane_says(name: str, step: Any, is_new: bool) -> str:
    if not is_new:
        return f"{name} is done with {html.count(step.num_left, 'token')}"
    cut = f"cuts {step.num_removed:,}" if step.num_removed else "cuts none"
    return f"{name}: {knobs.NAMES[step.letter]} {cut}, {step.num_left:,} left"


def unnamed_notes(trace: Trace) -> list[Any]:
    """What an order left unsaid, and logits that are no numbers."""
    spoilt = [html.note(NAN_NOTE, "bad")] if trace.provenance.get("has_nan") else []
    return spoilt + [
        html.note(f"Order {name} does not name {', '.join(rest)}, which is on: applied last.", "warn")
        for name, _, rest in lanes(params_of(LAB, trace))
        if rest
    ]


def said_settings(params: Params) -> dict[str, str]:
    """The value of each knob, for its card."""
    names = {"T": "temperature", "K": "top_k", "P": "top_p", "M": "min_p", "Y": "typical_p", "S": "top_n_sigma"}
    values = {letter: f"{getattr(params, name):g}" for letter, name in names.items()}
    values["R"] = f"{params.repetition_penalty:g}"
    values["F"] = f"{params.frequency_penalty:g}, {params.presence_penalty:g}"
    return values | {"J": f"{values['K']}, {values['P']}"}


def orders_frame(trace: Trace) -> Frame:
    sets, some, pairs = steps_of(trace, "sets"), steps_of(trace, "contested"), steps_of(trace, "pairs")
    num_orders = len(steps_of(trace, "orders"))
    counts = f"{html.count(num_orders, 'order')}, {html.count(len(sets), 'set')}"
    body = html.frame(
        html.section("Every order", knobs.sets(sets, trace.texts), counts),
        html.section("Only some orders allow", knobs.only_some(some, num_orders, trace.texts)) if some else None,
        html.section("Two knobs swapped", knobs.pairs(pairs), "without the other knobs") if pairs else None,
    )
    status = (
        f"{html.count(num_orders, 'order')} leave {html.count(len(sets), 'different set', 'different sets')} of tokens."
    )
    return Frame(status, body)


def engines_frame(trace: Trace) -> Frame:
    found, a, b = steps_of(trace, "engines"), steps_of(trace, "A"), steps_of(trace, "B")
    body = html.frame(
        html.section("The same request in four engines", knobs.engines(found), "orders from their sources"),
        html.section("Log-probability that an API reports", knobs.logprobs(a, b, trace.texts), "natural logarithm"),
        html.section("One coin, two laws", knobs.draw(steps_of(trace, "draw")[0], trace.texts)),
    )
    said = ", ".join(f"{each.engine} {each.num_left:,}" for each in found)
    return Frame(f"The same knobs leave different numbers of tokens: {said}.", body)


# --- Charts -----------------------------------------------------------------------------------------------------------


def laws_chart(trace: Trace) -> Any:
    a, b = steps_of(trace, "A"), steps_of(trace, "B")
    if not a or not b:
        return None
    names = [f"{i + 1}: {trace.texts.get(token, '')!r}" for i, token in enumerate(a[0].tokens)]
    series = {"raw": a[0].law, "order A": a[-1].law, "order B": b[-1].law}
    points = {name: list(zip(names, law, strict=True)) for name, law in series.items()}
    return charts.bars(points, "token", "probability")


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
A knob takes the logits that the one before it left. **Temperature** divides them. A **filter** removes tokens; what is
left is renormalised before the next knob looks. So a filter that reads probabilities sees another law when something
has acted before it.

**Top-k** looks at ranks only: temperature before or after it is the same. **Top-p** adds up probabilities until it
reaches p: a higher temperature before it flattens the law and more tokens are needed; a top-k before it makes those
that stay more probable and fewer are needed. **Min-p** compares with the likeliest token, a ratio that top-k and top-p
leave alone and temperature does not. **Typical-p** keeps tokens whose surprise −log p is nearest to the entropy of the
law it sees. **Top-n-sigma** keeps logits within n standard deviations of the largest; temperature scales both sides
alike. **Joint** top-k and top-p both judge the law as it comes in.

**Ties.** Every filter here breaks ties towards the lowest token id and keeps exactly as many as it says. The token that
crosses top-p belongs in; an exact hit adds nothing. Some engines keep every token that ties with the last one. In
speculative decoding the draft's q must go through the same rule as p.

**Edges.** Temperature below 0.00001 keeps the likeliest token alone, without a division. Top-p 0 keeps one token and 1
all; top-k 0 and −1 keep all, and so does one larger than the vocabulary; min-p 1 keeps those that tie with the
likeliest. A NaN logit counts as impossible; an infinite one, or nothing but −∞, is an error.

**Penalties** act on logits: repetition divides a positive one and multiplies a negative one, once for each token seen,
prompt included; frequency and presence subtract, counting the reply only. A typed-in law has the logits log p.

**Log-probability.** An API reports either the raw model's, or that of the law after the knobs. A removed token has the
first and not the second. vLLM has a switch for it (`raw_logprobs`, `processed_logprobs`).
"""

QUESTIONS = (
    Question(
        ask="The same temperature, top-k and top-p behave differently on two engines. Why, and what would you check?",
        answer=(
            "The order differs: transformers and vLLM scale by temperature first, llama.cpp last.",
            "Top-p reads probabilities, so what acted before it decides how many tokens it keeps.",
            "Some engines judge top-k and top-p on one law instead of one after the other.",
            "Check the order, whether each filter renormalises, the tie rule, and knobs that are on by default.",
        ),
        follow_ups=("Which two can be swapped safely? (Top-k and temperature: ranks do not change.)",),
        mistakes=("Taking the settings for the distribution; the order is part of it.",),
        preset="reference",
    ),
    Question(
        ask="When does it matter whether temperature comes before or after min-p?",
        answer=(
            "Min-p compares p with the likeliest token; temperature T changes that ratio to its power 1/T.",
            "At T above 1 the law is flatter, and min-p after it cuts less.",
            "After it, a high temperature spreads mass only over tokens that the raw model found plausible.",
        ),
        follow_ups=("And top-n-sigma? (Unchanged: the largest logit, the cut and the deviation scale together.)",),
        mistakes=("Calling min-p independent of temperature in every order.",),
        preset="min_p",
    ),
    Question(
        ask="A token in the log shows a log-probability of −9, yet it was sampled at temperature 1.5. Is that a bug?",
        answer=(
            "Not if the API reports the raw model's figure: the token was drawn from the law after the knobs.",
            "The two answer different questions: how likely the model found it, and how likely it was drawn.",
            "For importance weights you need the law that was sampled from; for perplexity the raw one.",
        ),
        follow_ups=("Which of the two does a token that top-k removed have? (Only the raw one.)",),
        mistakes=("Comparing log-probabilities of two engines without asking which of the two they are.",),
        preset="penalties",
    ),
)

SOURCES = (
    ("Holtzman et al. 2020: The curious case of neural text degeneration (top-p)", "https://arxiv.org/abs/1904.09751"),
    ("Meister et al. 2023: Locally typical sampling", "https://arxiv.org/abs/2202.00666"),
    ("Nguyen et al. 2024: Turning up the heat: min-p sampling", "https://arxiv.org/abs/2407.01082"),
    ("Tang et al. 2024: Top-nσ: not all logits are you need", "https://arxiv.org/abs/2411.07641"),
    ("FlashInfer: sampling", "https://docs.flashinfer.ai/api/sampling.html"),
)
SHOWN = {"T": Temperature, "K": TopK, "P": TopP, "M": MinP, "Y": TypicalP, "S": TopNSigma}


def code(params: Params) -> Sequence[Any]:
    """The knobs that acted, and the walk along them."""
    joint = [TopKTopP] if "J" in lanes(params)[0][1] + lanes(params)[1][1] else []
    return (walk, all_orders, *(SHOWN[letter] for letter in params.on if letter in SHOWN), *joint)


LAB = Lab(
    slug="sampling_order",
    title="Sampling order",
    question="Temperature, top-k and top-p with the same values: how much does their order change what can be sampled?",
    group="sample and search",
    order=10,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(Chart("Three laws of the next token", laws_chart, "Before the knobs, and after each of the two orders."),),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
