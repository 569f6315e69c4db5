"""Drafters side by side: the same prompt, one lane each, on one clock; and what each is good at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.engine import decode
from playground.engine.cost import PROFILES, Priced, tensor_parallel
from playground.engine.divergence import between
from playground.engine.draft_trees import SHAPES
from playground.engine.drafter_cost import speculator
from playground.engine.drafters import Drafter, NGram, NoDrafter
from playground.engine.face_to_face import (
    Followed,
    SideBySide,
    Together,
    accepted_depth,
    columns,
    follow,
    merge,
    most_telling,
    reply_states,
    side_by_side,
    total,
)
from playground.engine.length import Fixed
from playground.engine.metrics import ratio, summarise
from playground.engine.model import LanguageModel
from playground.engine.raced_price import raced
from playground.engine.sampling import Temperature, coins
from playground.engine.serving import Contender, tokens_by_length, tokens_from_hits
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.tree_drafting import Dynamic, Grower, Ranked
from playground.engine.verify import verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, faceoff, html, priced, speculation, tokens

USUAL = ("medusa", "eagle3", "tiny", "ngram", "combination", "layer_skip")
NAMES = (*USUAL, "eagle", "mtp")
TREES = ("medusa", "eagle3", "tiny", "layer_skip", "eagle", "mtp")  # the others have one guess for each place
BLIND, CONDITIONAL = "medusa", ("eagle3", "tiny", "layer_skip", "eagle", "mtp")
GREEDY = (Temperature(0.0),)
PRICED = ("medusa", "eagle3", "draft_model", "ngram", "eagle", "mtp")
PRICED_AS = {name: name for name in PRICED} | {"tiny": "draft_model", "combination": "eagle3"}
LONGEST = 16  # draft that a draft model with a stated acceptance may pick
MODELS = (
    "llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m", "deepseek-v3",
)  # fmt: skip
KEYS = (
    "mean_acceptance_length", "acceptance_per_position", "conditional_per_position", "draft_ms", "verify_ms",
    "tokens_per_second", "output_tokens", "target_passes", "num_drafts", "finish_reason",
)  # fmt: skip


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "The model that decides.", choices=("default", "table"), free=True)
    prompt: str = control("Write a Python function that adds two numbers.", "Prompt", lines=3)
    drafters: tuple[str, ...] = control(USUAL, "Drafters", "One lane each.", choices=NAMES)
    k: int = control(4, "Draft length k", "Levels guessed per pass.", min=1, max=8, step=1)
    shape: str = control(
        "chain", "Shape", "Trees for those that have a law.", choices=("chain", "ten", "medusa", "dynamic")
    )
    max_new_tokens: int = control(16, "New tokens", min=1, max=96, step=1)
    prompts_per_class: int = control(
        1, "Held-out prompts per class", "Of chat, code, JSON, copy. 0: none.", min=0, max=12, step=1, group="More"
    )
    draft_layers: int = control(8, "Draft layers", "Of layer_skip.", min=1, max=64, step=1, group="More")
    seed: int = control(0, "Seed", "Greedy decoding draws nothing.", min=0, max=2**31 - 1, step=1, group="More")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")

    price_from: str = control(
        "this_run", "Acceptance", "this_run, or the two stated below.", choices=("this_run", "stated"), group="Price"
    )
    medusa_hits: tuple[float, ...] = control(
        (0.605, 0.356, 0.225, 0.160), "Medusa's hits", "Stated: share of passes in which each place stands.",
        min=0, max=1, group="Price",
    )  # fmt: skip
    draft_alpha: float = control(
        0.75, "Draft model's α", "Stated: chance of each draft to stand.", min=0, max=1, step=0.01, group="Price"
    )
    priced_length: str = control(
        "k", "Priced length", "k as above, or the best at every batch.", choices=("k", "best"), group="Price"
    )
    draft_model: str = control(
        "llama-3.1-8b", "Draft model", "Priced for tiny.", choices=MODELS, free=True, group="Price"
    )
    priced_target: str = control("llama-3.3-70b", "Priced model", choices=MODELS, free=True, group="Price")
    priced_context: int = control(512, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")
    profile: str = control("data_sheet", "Profile", choices=tuple(PROFILES), group="Price")

    def __post_init__(self) -> None:
        hits = self.medusa_hits
        if not 1 <= len(hits) <= 8 or any(b > a for a, b in itertools.pairwise(hits)):
            raise BadInput(
                "medusa_hits takes one to eight shares that never rise: a place stands only behind all before."
            )
        if not self.drafters:
            raise BadInput(f"drafters is empty: name at least one of {', '.join(NAMES)}.")
        if len(set(self.drafters)) < len(self.drafters):
            twice = next(name for name in self.drafters if self.drafters.count(name) > 1)
            raise BadInput(f"drafters names {twice} twice.")

    def grower(self, name: str) -> Grower | None:
        """The tree that a drafter is to make; ``None`` for a chain."""
        if self.shape == "chain" or name not in TREES:
            return None
        return Dynamic(10, self.k) if self.shape == "dynamic" else Ranked(SHAPES[self.shape])


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The race; then blind and conditional drafts after the same texts; then each class of held-out prompts."""
    price_tags = serve(params, models)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = model.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
    about = {**model.provenance(), "k": params.k, "recorded": recorded(models)}
    ready, missing = yield from make_drafters(params, models, model, prompt)
    sizes = {name: getattr(drafter, "num_parameters", None) for name, drafter in ready.items()}
    trace = Trace(texts=model.texts(prompt), provenance={**about, "missing": missing, "parameters": sizes})
    for name in (*ready, "plain"):
        trace = trace.open(name, prompt)
    for name, tags in price_tags.items():
        trace = trace.open(name)
        for tag in tags:
            trace = trace.add(name, tag)
    yield trace
    yield Progress("Warming up")
    next(greedy(model, prompt[:2], NoDrafter(), params), None)
    lanes = {name: greedy(model, prompt, drafter, params) for name, drafter in (ready | {"plain": NoDrafter()}).items()}
    for name, step in decode.race(lanes):
        trace = trace.add(name, step, model.texts(step.tokens))
        yield trace
    trace = trace.open("side by side").open("classes")
    trace = yield from compare_drafts(params, models, model, prompt, trace)
    yield from by_class(params, models, model, list(ready), trace)


def serve(params: Params, models: Models) -> dict[str, tuple[Any, ...]]:
    """What prices stand for, and the priced drafters in the order of ``PRICED``; ``ValueError`` for unknown names."""
    shape = models.shape(params.priced_target)
    pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
    names = (params.draft_model if name == "draft_model" else name for name in PRICED)
    drafters = tuple(speculator(name, shape, models.shape) for name in names)
    return {"priced": (Priced(shape, pod, PROFILES[params.profile]),), "priced drafters": drafters}


def make_drafters(
    params: Params, models: Models, model: LanguageModel, prompt: Sequence[int], chains: bool = False
) -> Iterator[Update]:
    """The drafters that can be had, by name, and for each other one the sentence that says why not."""
    ready: dict[str, Drafter] = {}
    missing: dict[str, str] = {}
    for name in params.drafters:
        options = {"knobs": GREEDY, "draft_layers": params.draft_layers}
        if not chains:
            options["grower"] = params.grower(name)
        try:
            ready[name] = yield from models.drafter(name, model, prompt, **options)
        except ValueError as error:
            missing[name] = str(error)
    return ready, missing


def greedy(model: LanguageModel, prompt: Sequence[int], drafter: Drafter, params: Params) -> Iterator[Pass]:
    return decode.speculate(
        model.session(prompt, drafter.taps),
        drafter,
        rule=verify_greedy,
        length=Fixed(params.k),
        coin=coins(params.seed),
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )


def compare_drafts(
    params: Params, models: Models, model: LanguageModel, prompt: Sequence[int], trace: Trace
) -> Iterator[Update]:
    """A blind and a conditional drafter after the same texts, their chains scored by the target in one pass."""
    have = [name for name in trace.provenance["parameters"] if name in (BLIND, *CONDITIONAL)]
    other = next((name for name in CONDITIONAL if name in have), None)
    if BLIND not in have or other is None:
        return trace
    yield Progress(f"Comparing the drafts of {BLIND} and {other} after the same texts")
    pair = replace(params, drafters=(BLIND, other))
    drafters, _ = yield from make_drafters(pair, models, model, prompt, chains=True)
    together = Together(drafters)
    for moment in side_by_side(greedy(model, prompt, together, params), together, prompt):
        shown = [*moment.context, *(token for chain in moment.chains for token in chain.tokens)]
        trace = trace.add("side by side", moment, model.texts(shown))
    yield trace
    return trace


def by_class(
    params: Params, models: Models, model: LanguageModel, names: Sequence[str], trace: Trace
) -> Iterator[Update]:
    """Every drafter along the target's own replies to held-out prompts."""
    prompts = models.held_out() if params.prompts_per_class and params.target != "table" else {}
    todo = [(kind, text) for kind, texts in prompts.items() for text in texts[: params.prompts_per_class]]
    for i, (kind, text) in enumerate(todo):
        yield Progress(f"Held-out prompts: {kind}, {i + 1} of {len(todo)}", i / len(todo))
        prompt = model.chat(text)
        writer = greedy(model, prompt, NGram(4, 2, model.eos_ids), params)  # lossless, and quick where it copies
        reply = [output.token for step in writer for output in step.outputs]
        drafters, _ = yield from make_drafters(replace(params, drafters=tuple(names)), models, model, prompt)
        taps = tuple(dict.fromkeys(tap for drafter in drafters.values() for tap in drafter.taps))
        states = reply_states(model.session(prompt, taps), prompt, reply) if taps else None
        for name, drafter in drafters.items():
            own = columns(states, taps, drafter.taps)
            trace = trace.add("classes", replace(follow(drafter, prompt, reply, own, params.k, kind), drafter=name))
        yield trace
    yield trace


def recorded(models: Models) -> dict[str, Any]:
    """Held-out mean acceptance lengths by drafter and class, as the weights' provenance has them."""
    found: dict[str, Any] = {}
    for weights in ("medusa", "eagle3", "tiny", "eagle", "mtp"):
        for name, row in ((models.record(weights) or {}).get("heldout") or {}).items():
            found[name] = {kind: part["mean_acceptance_length"] for kind, part in row["by_class"].items()}
    return found


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def racers(trace: Trace) -> list[Lane]:
    """The lanes of drafters, in their order."""
    return [lane for lane in trace.lanes if lane.name in NAMES]


def summary(trace: Trace) -> dict[str, Any]:
    """Per drafter its figures in the race, its parameters, and its acceptance on held-out prompts by class."""
    plain = Lane("plain", (), tuple(steps_of(trace, "plain")))
    alone = summarise(plain)["tokens_per_second"]
    asked = trace.provenance.get("params", {}).get("drafters", ())
    lanes = {lane.name: lane for lane in racers(trace)}
    found = {name: drafter_figures(trace, lanes.get(name, Lane(name)), plain, alone) for name in asked}
    speeds = {name: s["measured_speedup"] for name, s in found.items() if s["measured_speedup"]}
    moments: Sequence[SideBySide] = steps_of(trace, "side by side")
    return {
        "drafters": found,
        "plain_tokens_per_second": alone,
        "fastest": max(speeds, key=speeds.get) if speeds else None,
        "fastest_speedup": max(speeds.values(), default=None),
        "all_identical": None if not lanes else all_same([found[name]["identical_to_plain"] for name in lanes]),
        "missing": trace.provenance.get("missing", {}),
        "later_tokens_fit": fits(moments),
        "priced": prices(trace),
    }


def contenders(trace: Trace) -> list[Contender]:
    """Who is priced: the two with a stated acceptance, or the drafters of this run once the race is over."""
    tags = dict(zip(PRICED, steps_of(trace, "priced drafters"), strict=False))
    params = trace.provenance.get("params", {})
    if not tags or "price_from" not in params:
        return []
    is_best = params["priced_length"] == "best"
    if params["price_from"] == "stated":
        hits, alpha = params["medusa_hits"], params["draft_alpha"]
        ours, theirs = (None, None) if is_best else (min(params["k"], len(hits)), params["k"])
        return [
            Contender("medusa", tags["medusa"], tokens_from_hits(hits), ours),
            Contender("draft_model", tags["draft_model"], tokens_by_length(alpha, LONGEST), theirs, alpha),
        ]
    lanes = [lane for lane in racers(trace) if lane.name in PRICED_AS]
    if not all(lane.finish for lane in lanes):
        return []
    found = (raced(lane.name, tags[PRICED_AS[lane.name]], lane.steps, is_best) for lane in lanes)
    return [each for each in found if each]


def prices(trace: Trace) -> dict[str, Any] | None:
    """Cost, speed by batch and the winner's changes of ``contenders`` and plain decoding on the priced model."""
    found, context = contenders(trace), trace.provenance.get("params", {}).get("priced_context", 0)
    if not found:
        return None
    tokens = {c.name: c.tokens[-1 if c.k is None else c.k] for c in found}
    return {**price_of(steps_of(trace, "priced")[0], found, context), "tokens_per_pass": tokens}


def all_same(each: Sequence[bool | None]) -> bool | None:
    return False if False in each else None if None in each else True


def drafter_figures(trace: Trace, lane: Lane, plain: Lane, alone: float | None) -> dict[str, Any]:
    """One drafter's figures; all ``None`` where it did not run."""
    s = summarise(lane) if lane.steps else {}
    same = between(lane, plain, str(trace.provenance.get("dtype", "fp32"))) if lane.steps else None
    ended = bool(lane.finish and plain.finish)
    speed = s.get("tokens_per_second")
    return {
        **{key: s.get(key) for key in KEYS},
        "measured_speedup": ratio(speed, alone) if speed and alone else None,
        "identical_to_plain": False if same else True if ended else None,
        "parameters": trace.provenance.get("parameters", {}).get(lane.name),
        "by_class": class_figures(trace, lane.name),
    }


def class_figures(trace: Trace, name: str) -> dict[str, Any]:
    """Acceptance by class of held-out prompts: measured here, and as recorded with the weights."""
    parts: list[Followed] = [part for part in steps_of(trace, "classes") if part.drafter == name]
    record = trace.provenance.get("recorded", {}).get(name, {})
    found = {}
    for kind in dict.fromkeys(part.kind for part in parts):
        own = [part for part in parts if part.kind == kind]
        counters = total(own)
        found[kind] = {
            "mean_acceptance_length": counters.mean_acceptance_length,
            "acceptance_per_position": counters.acceptance_per_position,
            "conditional_per_position": counters.conditional_per_position,
            "tokens_per_pass": ratio(sum(part.num_tokens for part in own), sum(part.num_passes for part in own)),
            "draft_ms": sum(part.draft_ms for part in own),
            "num_drafts": counters.num_drafts,
            "recorded": record.get(kind),
        }
    return found


def fits(moments: Sequence[SideBySide]) -> dict[str, float]:
    """Mean log-probability that the target gives to a drafter's second and later tokens after its own first ones."""
    by_name: dict[str, list[float]] = {}
    for moment in moments:
        for chain in moment.chains:
            if chain.fit is not None:
                by_name.setdefault(chain.name, []).append(chain.fit)
    return {name: sum(values) / len(values) for name, values in by_name.items()}


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    s = result
    ran = {name: d for name, d in s["drafters"].items() if d["mean_acceptance_length"] is not None}
    longest = max(ran, key=lambda name: ran[name]["mean_acceptance_length"], default=None)
    speed = s["fastest_speedup"]
    return (
        Figure(s["fastest"] or "–", "fastest drafter here", "measured"),
        Figure("–" if speed is None else f"{speed:.2f}×", "its speed, plain decoding = 1", "measured"),
        Figure(
            "–" if longest is None else f"{ran[longest]['mean_acceptance_length']:.2f}",
            f"tokens per pass with a draft, {longest or 'nobody'}",
            "measured",
        ),
        Figure({True: "yes", False: "no", None: "–"}[s["all_identical"]], "all same text as plain", "measured"),
    )


# --- Pictures ---------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """Who takes part, a frame per pass of the first lane, then figures, prices, drafts, classes as far as there are."""
    return 1 + len(trace.lanes[0].steps) + len(closing(trace)) if trace.lanes else 0


def closing(trace: Trace) -> list[str]:
    """The frames after the race, in their order."""
    if not trace.lanes or not all(lane.finish for lane in (*racers(trace), trace["plain"])):
        return []
    parts = ["figures", *(["prices"] if contenders(trace) else [])]
    if steps_of(trace, "side by side"):
        parts.append("duel")
    if trace.provenance.get("params", {}).get("prompts_per_class") and steps_of(trace, "classes"):
        kinds = {part.kind for part in steps_of(trace, "classes")}
        parts += ["classes"] * (len(kinds) == 4)
    return parts


def frame(trace: Trace, index: int) -> Frame:
    passes = trace.lanes[0].steps
    if index == 0:
        return start_frame(trace)
    if index <= len(passes):
        return race_frame(trace, passes[index - 1].ended_ms)
    pictures = {"figures": end_frame, "prices": price_frame, "duel": duel_frame, "classes": class_frame}
    return pictures[closing(trace)[index - 1 - len(passes)]](trace)


def running(trace: Trace) -> list[Lane]:
    return [*racers(trace), trace["plain"]]


def start_frame(trace: Trace) -> Frame:
    """Who takes part, before anybody has made a pass."""
    sizes, lane = trace.provenance["parameters"], trace.lanes[0]
    text = tokens.context_strip(trace.texts, lane.prompt)
    body = html.frame(
        html.section("The prompt", text, html.count(len(lane.prompt), "token")),
        html.section("The drafters", faceoff.entrants(sizes), "all verified greedily by the same target"),
        remarks(trace, until_ms=0),
    )
    return Frame(f"{html.count(len(sizes), 'drafter')} and plain decoding start from the same prompt.", body)


def race_frame(trace: Trace, until_ms: float) -> Frame:
    lanes = running(trace)
    body = html.frame(
        faceoff.clocks(lanes, until_ms),
        faceoff.lanes(lanes, trace.texts, until_ms),
        remarks(trace, until_ms),
        tokens.legend(("accepted", "recovered", "bonus", "plain")),
    )
    counts = {lane.name: sum(len(s.outputs) for s in lane.steps if s.ended_ms <= until_ms) for lane in lanes}
    ahead = max(counts, key=counts.get)
    return Frame(f"After {until_ms:,.0f} ms {ahead} is ahead with {html.count(counts[ahead], 'token')}.", body)


def remarks(trace: Trace, until_ms: float = math.inf) -> html.Text | None:
    """Who is not in this run and why, and what went wrong in a lane until then."""
    missing = trace.provenance.get("missing", {})
    said = [f"Not in this run. {' '.join(f'{name}: {why}' for name, why in missing.items())}"] if missing else []
    lanes = ((lane.name, step) for lane in running(trace) for step in lane.steps if step.ended_ms <= until_ms)
    said += dict.fromkeys(f"{name}: {step.note}" for name, step in lanes if step.note)
    return html.join([html.note(each, "warn") for each in said]) if said else None


def end_frame(trace: Trace) -> Frame:
    result = summary(trace)
    lanes = running(trace)
    until = max(lane.steps[-1].ended_ms for lane in lanes if lane.steps)
    body = html.frame(
        html.section("The drafters", faceoff.figures(result["drafters"]), "measured on this prompt"),
        faceoff.clocks(lanes, until),
        html.section("The output of all of them", faceoff.strip(plain_tokens(trace), trace.texts)),
        remarks(trace),
    )
    best, speed = result["fastest"], result["fastest_speedup"]
    said = f"{best} is the fastest, {speed:.2f} times plain decoding." if best else "No drafter ran."
    return Frame(said, body)


def price_frame(trace: Trace) -> Frame:
    """The same drafters on a served model, over the batch."""
    price, names = prices(trace), [contender.name for contender in contenders(trace)]
    stated = trace.provenance["params"]["price_from"] == "stated"
    model = steps_of(trace, "priced drafters")[PRICED.index("draft_model")].name
    note = (STATED if stated else MEASURED).format(model=model)
    body = html.frame(priced.panel(price, names), html.note(note), remarks(trace))
    return Frame(f"On {price['target']} {priced.first(price)}", body)


def plain_tokens(trace: Trace) -> list[tuple[int, str, str]]:
    return [(output.token, "plain", "") for step in trace["plain"].steps for output in step.outputs]


def duel_frame(trace: Trace) -> Frame:
    """The context in which blind drafting shows most."""
    moments: Sequence[SideBySide] = steps_of(trace, "side by side")
    other = next(chain.name for chain in moments[0].chains if chain.name != BLIND)
    moment = most_telling(moments, BLIND, other) or moments[0]
    mean = fits(moments)
    rows = [[name, value] for name, value in mean.items()]
    body = html.frame(
        html.note(
            f"{BLIND} guesses each place from the same state and does not know what it put into the places before. "
            f"{other} reads its own guesses. This is the place of the run where the difference is largest."
        ),
        faceoff.duel(moment, trace.texts),
        html.detail(),
        html.section(
            "How well the later tokens follow the draft's own start",
            html.table(["drafter", "mean log-probability"], rows, "Fit of later tokens"),
            f"target's, over {html.count(len(moments), 'context')}",
        ),
        tokens.legend(("accepted", "rejected", "unjudged")),
    )
    return Frame(f"After the same text: {BLIND} drafts blindly, {other} reads its own draft.", body)


def class_frame(trace: Trace) -> Frame:
    result = summary(trace)
    number = trace.provenance["params"]["prompts_per_class"]
    body = html.frame(
        html.section(
            "Mean acceptance length by class", faceoff.by_class(result["drafters"]),
            f"measured on {html.count(number, 'held-out prompt')} of each class",
        ),
        html.note(
            "In brackets: recorded with the weights, over all held-out prompts, every pass counted. Here passes "
            "without a draft do not count, so a drafter that seldom drafts looks better than it speeds up."
        ),
    )  # fmt: skip
    return Frame("Each drafter on held-out prompts: chat, code, JSON, copy.", body)


def position_chart(trace: Trace) -> Any:
    """Conditional acceptance by draft position, a line per drafter."""
    found = {lane.name: summarise(lane)["conditional_per_position"] for lane in racers(trace)}
    series = {name: list(enumerate(values, start=1)) for name, values in found.items() if values}
    if not series:
        return None
    fig = charts.lines(series, "draft position", "accepted, of those that got there")
    return fig.update_yaxes(range=[0, 1.05], tickformat=".0%").update_xaxes(dtick=1)


def time_chart(trace: Trace) -> Any:
    """Drafting and verifying, milliseconds per pass."""
    rows = {lane.name: summarise(lane) for lane in racers(trace) if lane.steps}
    if not rows:
        return None
    series = {
        "draft": [(name, s["draft_ms"] / s["target_passes"]) for name, s in rows.items()],
        "verify": [(name, s["verify_ms"] / s["target_passes"]) for name, s in rows.items()],
    }
    return charts.bars(series, "", "ms per pass", stacked=True)


def class_chart(trace: Trace) -> Any:
    """Mean acceptance length by class, a group of bars per class."""
    found = {name: s["by_class"] for name, s in summary(trace)["drafters"].items() if s["by_class"]}
    series = {
        name: [(kind, part["mean_acceptance_length"]) for kind, part in kinds.items()] for name, kinds in found.items()
    }
    return charts.bars(series, "", "tokens per pass with a draft") if series else None


def price_chart(trace: Trace) -> Any:
    """Speed over the batch on the priced model, with the batches at which the winner changes."""
    price = prices(trace)
    if price is None:
        return None
    served = steps_of(trace, "priced")[0]
    return speculation.contenders_over_batch(served, contenders(trace), price["context"], price["flips"])


# --- Page -------------------------------------------------------------------------------------------------------------

STATED = (
    "The acceptance is stated in the controls, the prices follow from shapes: Medusa's heads all in one pass, or a "
    "pass of {model} for each draft. No change is a law: it holds for this k, this acceptance and this context."
)
MEASURED = (
    "The acceptance is this run's, the prices are those of drafters for the priced model; tiny is priced as {model}, "
    "combination as if EAGLE-3 drafted in every pass, layer_skip not at all. Few passes give rough figures."
)

HOW = """
**One target, one loop.** Every lane decodes the same prompt with the same target and the same greedy verification. Only
who guesses differs, so the texts are the same, and time and passes can be compared. The lanes take turns; each has its
own clock, and the picture shows all of them at one reading of it.

**What they read.** *n-gram* reads the text alone: free, and right where the text repeats itself. *tiny* is a language
model of two layers with its own cache. *layer_skip* is the target's own first layers. *Medusa* and *EAGLE-3* read the
target's hidden states of the last pass, which already hold what the target is about to say.

**Blind and conditional.** Medusa's four heads read the same state. The head for the second place must guess it without
knowing what the first put down: it proposes what is likely *on average over first words*, and the two need not fit.
EAGLE-3 feeds each drafted token back and goes on from there. The conditional acceptance shows it: of the drafts that
were right up to here, how many are right one further? The frame behind the figures puts both drafts after the same text
and asks the target how well each token follows the draft's own words.

**What speed needs.** A pass with a draft costs `draft + verify`, and yields `1 + accepted`. A drafter with the longest
acceptance is not the fastest one when it drafts slowly: the chart of times shows both parts. Parameters are those the
drafter runs beside the tables that it shares with the target.

**On a served model.** The last chart prices the race: acceptance as measured here or as you state it, drafters of the
priced model's size, and a batch that grows. Cheap drafters win while a pass waits for weights; a dear one that is right
more often can win once verification is the bill, because it wastes fewer positions. A draft model has KV of its own to
read: at a long context that can turn the order round. So every change of the winner is stated with its k, acceptance
and context, and if each side may choose its own k it can vanish.

**By class.** The held-out prompts were used neither in training nor in choosing the draft vocabulary. The target's
greedy reply is written once, and every drafter is led along it: under greedy verification a token is accepted exactly
when it is the reply's next one.
"""

QUESTIONS = (
    Question(
        ask="Medusa's heads and EAGLE's layer both read the target's hidden state. Why does EAGLE accept more?",
        answer=(
            "Medusa's heads guess each place from the same state, independently of what the others guess.",
            "The best guess for the second place averages over all first words; together the words need not fit.",
            "EAGLE goes on from its own draft, so each guess is conditional on those before it.",
        ),
        follow_ups=(
            "What does Medusa get in return? (All places at once: one small pass instead of k.)",
            "How does a tree help Medusa? (It tries several combinations, at the price of nodes.)",
        ),
        mistakes=("Saying that Medusa's heads are merely too small.",),
        preset="blind",
    ),
    Question(
        ask="A drafter accepts more tokens per pass than another and is still slower. How?",
        answer=(
            "Time per pass is drafting plus verifying; tokens per pass are one plus accepted.",
            "A drafter of many layers drafts token by token: its time grows with k and may exceed the pass it saves.",
        ),
        follow_ups=("When does n-gram win against all trained drafters? (Where the reply copies from the prompt.)",),
        mistakes=("Ranking drafters by acceptance rate.",),
        preset="code",
    ),
    Question(
        ask="You serve code completion and open chat. Which drafter do you choose, and how do you measure it?",
        answer=(
            "By class, on the target's own replies to prompts that training has not seen.",
            "Copying is nearly free: use it where a match of a few tokens exists, and a trained drafter elsewhere.",
            "Compare tokens per second against plain decoding in the same run, not acceptance.",
        ),
        mistakes=("One average over all traffic.", "Measuring on the drafter's training prompts."),
        preset="copy",
    ),
    Question(
        ask="Medusa heads or an 8B draft model for a 70B target: which one, and what would change your mind?",
        answer=(
            "Four heads cost a few per cent of a pass, four passes of the 8B model nearly half of one.",
            "At a small batch the cheap one wins; at a larger one wasted positions cost, and acceptance decides.",
            "The draft model reads KV of its own, so a long context can turn the order round.",
            "Ask who fixed k: when each side picks its own, the change can vanish.",
        ),
        follow_ups=("Where do both lose to plain decoding? (When the batch fills the compute units.)",),
        mistakes=("Quoting the batch of the change without k, acceptance and context.",),
        preset="heads_or_model",
    ),
)

SOURCES = (
    ("Cai et al. 2024: Medusa, several decoding heads", "https://arxiv.org/abs/2401.10774"),
    ("Li et al. 2025: EAGLE-3, training-time test", "https://arxiv.org/abs/2503.01840"),
    ("Saxena 2023: prompt lookup decoding", "https://github.com/apoorvumang/prompt-lookup-decoding"),
    ("Zhang et al. 2023: Draft & Verify, skipping layers", "https://arxiv.org/abs/2309.08168"),
)


def code(params: Params) -> Sequence[Callable[..., Any]]:
    """The functions behind the race and the comparison."""
    return (verify_greedy, merge, accepted_depth)


LAB = Lab(
    slug="drafter_faceoff",
    title="Drafters face to face",
    question="Which drafter is right most often, which one is fastest, and on which text?",
    group="draft",
    order=35,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Accepted by draft position", position_chart, "Measured: of the drafts that stood up to there."),
        Chart("Where a pass spends its time", time_chart, "Measured: means over the passes of each lane."),
        Chart("Held-out prompts by class", class_chart, "Measured here along the target's own replies."),
        Chart(
            "Speed over batch",
            price_chart,
            "Priced: acceptance as measured here or as stated, drafters and hardware as in the controls.",
        ),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
