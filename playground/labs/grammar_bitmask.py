"""The grammar bitmask: which tokens a regex or a schema leaves at each step, and what that does to the model's law."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema

from playground.engine import decode
from playground.engine.constrain import legality
from playground.engine.drafters import Drafter, NoDrafter
from playground.engine.grammar.audit import audit
from playground.engine.grammar.bitmask import Masks, naive_mask, num_words
from playground.engine.grammar.compiled import (
    EBNF,
    REGEX,
    SCHEMA,
    Compiled,
    Own,
    Production,
    Workshop,
    read_schema,
    workshop,
)
from playground.engine.grammar.drafting import ForcedTokens, GrammarKnob
from playground.engine.grammar.drawn import Place, drawn, stacks
from playground.engine.grammar.expression import GrammarError, Unsupported
from playground.engine.grammar.matcher import Matcher, OwnMatcher
from playground.engine.grammar.timing import measure
from playground.engine.length import Fixed
from playground.engine.metrics import ratio
from playground.engine.model import LanguageModel
from playground.engine.sampling import chain, coins
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.verify import verify_greedy, verify_sampling
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, constrained, html

OURS, XGRAMMAR = "ours", "xgrammar"
DRAFTERS = ("none", "ngram", "layer_skip", "medusa", "eagle3", "eagle", "mtp", "tiny", "combination", "forced")
PROMPT = "Anna is 34 years old and lives in Lisbon. She likes chess and swimming. Describe Anna as JSON."
EXAMPLE = """{
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 3}
  },
  "required": ["name", "age", "hobbies"]
}"""


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "The model that decides.", choices=("default", "table"), free=True)
    prompt: str = control(PROMPT, "Prompt", lines=3)
    schema: str = control(EXAMPLE, "JSON schema", "What the reply must satisfy.", lines=9)
    regex: str = control("", "Regex", "When given, it takes the place of the schema.")
    ebnf: str = control("", "EBNF", "When given, it takes the place of both; xgrammar reads it.", lines=3)
    engine: str = control(OURS, "Engine", "Whose masks are used.", choices=(OURS, XGRAMMAR))
    drafter: str = control("none", "Drafter", "Who guesses; it does not see the grammar.", choices=DRAFTERS)
    mask_drafter: bool = control(False, "Mask the drafter too", "For a draft model.")
    k: int = control(4, "Draft length k", min=1, max=16, step=1)
    temperature: float = control(0.0, "Temperature", min=0, max=2, step=0.1)
    max_new_tokens: int = control(48, "New tokens", "At most.", min=1, max=128, step=1)
    seed: int = control(0, "Seed", min=0, max=2**31 - 1, step=1, group="More")
    strict: bool = control(True, "Strict", "Properties that are not listed are refused.", group="More")
    draft_layers: int = control(26, "Draft layers", "Of layer_skip.", min=1, max=64, step=1, group="More")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")

    @property
    def kind(self) -> str:
        return EBNF if self.ebnf.strip() else REGEX if self.regex else SCHEMA

    @property
    def grammar(self) -> Any:
        """The regex or EBNF as text, or the schema as a value; raises ``BadInput``."""
        if self.kind != SCHEMA:
            return self.ebnf if self.kind == EBNF else self.regex
        try:
            return read_schema(self.schema)
        except GrammarError as error:
            raise BadInput(str(error)) from None


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The constrained and the free lane on one clock; then the times of a mask, and the audit of the schema."""
    kind, grammar = params.kind, params.grammar
    if kind == EBNF and params.engine == OURS:
        params = replace(params, engine=XGRAMMAR)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = model.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty; write at least one word.")
    yield Progress("Compiling the grammar")
    shop = workshop(model)
    about = {**model.provenance(), "engine": params.engine, "vocab_size": model.vocab_size, "kind": kind}
    trace = Trace(texts=model.texts(prompt), provenance=about)
    for name in ("constrained", "free"):
        trace = trace.open(name, prompt)
    own, refusal = compile_own(shop, kind, grammar, params)
    other = compile_other(shop, kind, grammar, params) if params.engine == XGRAMMAR else None
    chosen = own if params.engine == OURS else other
    if chosen is None:
        trace = replace(trace, provenance={**about, "refusal": refusal})
    else:
        trace = yield from decode_both(params, models, model, trace, chosen, own, shop)
        trace = judge(trace, shop, kind, grammar)
        yield trace
        yield Progress("Timing the masks")
        fresh = shop.own(kind, grammar, params.strict) if own else None
        other = other or compile_other(shop, kind, grammar, params)  # its process has started meanwhile
        times = measure(fresh, other, trace["constrained"].output_tokens, forward_ms(trace["constrained"]))
        trace = trace.open("mask times").add("mask times", times)
    yield trace
    if kind == SCHEMA:
        yield Progress("Auditing the schema")
        trace = trace.open("audit")
        for finding in audit(grammar, reader(shop, params)):
            trace = trace.add("audit", finding)
    yield trace


def compile_own(shop: Workshop, kind: str, grammar: Any, params: Params) -> tuple[Own | None, str | None]:
    """This app's grammar, or why it refuses one that is valid; raises ``BadInput`` for a mistake in it."""
    try:
        return (shop.own(kind, grammar, params.strict, warm=False) if kind != EBNF else None), None
    except Unsupported as error:
        return None, str(error)
    except GrammarError as error:
        raise BadInput(str(error)) from None


def compile_other(shop: Workshop, kind: str, grammar: Any, params: Params) -> Production | None:
    """xgrammar's grammar; ``None`` when it refuses and is not the chosen engine, else ``BadInput``."""
    try:
        return shop.production(kind, grammar, params.strict)
    except GrammarError as error:
        if params.engine == XGRAMMAR:
            raise BadInput(str(error)) from None
        return None


def decode_both(
    params: Params,
    models: Models,
    model: LanguageModel,
    trace: Trace,
    chosen: Compiled,
    own: Own | None,
    shop: Workshop,
) -> Iterator[Update]:
    """The constrained lane leads, the free one follows on the same clock; returns the trace."""
    prompt = trace["constrained"].prompt
    if own and (machine := drawn(own.masks.automaton)):
        trace = trace.open("automaton").add("automaton", machine)
    trace = trace.open("places")
    drafter = yield from make_drafter(params, models, model, prompt, chosen)
    follower = own.matcher() if own else None
    lanes = {
        "constrained": lane(params, model, prompt, drafter, chosen.matcher()),
        "free": lane(params, model, prompt, NoDrafter(), None),
    }
    for name, step in decode.race(lanes):
        if name == "constrained" and follower:
            trace = trace.add("places", move(follower, step))
        trace = trace.add(name, step, model.texts(step.tokens))
        yield trace
        if name == "constrained" and len(trace[name].steps) == 1:  # the first picture is out; now what can wait
            shop.worker.start()
            if own:
                own.masks.warm()
    return trace


def lane(
    params: Params, model: LanguageModel, prompt: Sequence[int], drafter: Drafter, grammar: Matcher | None
) -> Iterator[Pass]:
    return decode.speculate(
        model.session(prompt, drafter.taps),
        drafter,
        rule=verify_greedy if params.temperature == 0 else verify_sampling,
        length=Fixed(params.k),
        coin=coins(params.seed),
        knobs=chain(temperature=params.temperature),
        stop=Stop(model.eos_ids),
        grammar=grammar,
        max_new_tokens=params.max_new_tokens,
    )


def make_drafter(
    params: Params, models: Models, model: LanguageModel, prompt: Sequence[int], chosen: Compiled
) -> Iterator[Update]:
    """The drafter; a draft model may get the grammar as a knob before the others."""
    if params.drafter == "forced":
        return ForcedTokens(chosen.matcher(), model.vocab_size)
    knobs = chain(temperature=params.temperature)
    if params.mask_drafter:
        knobs = (GrammarKnob(chosen.matcher()), *knobs)
    return (yield from models.drafter(params.drafter, model, prompt, knobs=knobs, draft_layers=params.draft_layers))


def move(follower: OwnMatcher, step: Pass) -> Place:
    """Where the text stood before a pass and stands after it."""
    before = stacks(follower.config)
    for output in step.outputs:
        follower.accept(output.token)
    return Place(before, stacks(follower.config), follower.find_jump_forward())


def forward_ms(lane: Lane) -> float | None:
    """Mean time of a pass, the first left out: it reads the prompt."""
    passes = [step.verify_ms for step in lane.steps[1:]] or [step.verify_ms for step in lane.steps]
    return ratio(sum(passes), len(passes))


def judge(trace: Trace, shop: Workshop, kind: str, grammar: Any) -> Trace:
    """The trace with its output as text and, for a schema, what ``jsonschema`` says about it."""
    output = trace["constrained"].output_tokens
    text = b"".join(shop.trie.token_bytes[t] or b"" for t in output).decode("utf-8", "replace")
    about: dict[str, Any] = {"output_text": text}
    if kind == SCHEMA:
        try:
            jsonschema.validate(json.loads(text), grammar, cls=jsonschema.Draft202012Validator)
            about["valid_json"] = True
        except (json.JSONDecodeError, jsonschema.ValidationError) as error:
            cut = trace["constrained"].finish == "length"
            reason = "The token limit came first: what stands there can still be completed." if cut else str(error)
            about |= {"valid_json": False, "why_invalid": reason.splitlines()[0]}
    return replace(trace, provenance={**trace.provenance, **about})


def reader(shop: Workshop, params: Params) -> Any:
    """How the audit compiles a schema: with the chosen engine, without masks."""
    if params.engine == OURS:
        return lambda schema: shop.own(SCHEMA, schema, params.strict, warm=False).reads
    return lambda schema: shop.production(SCHEMA, schema, params.strict).reads


# --- Figures ----------------------------------------------------------------------------------------------------------


def summary(trace: Trace) -> dict[str, Any]:
    """Headline figures; ``legal_tokens`` and ``feasible_mass`` stand per output token."""
    lanes = {lane.name: lane for lane in trace.lanes}
    ours, about = lanes.get("constrained", Lane("")), trace.provenance
    used = [report for step in ours.steps for report in reports(step)]
    nodes = [node for step in ours.steps for node in step.nodes]
    times = next(iter(lanes.get("mask times", Lane("")).steps), None)
    vocab = about.get("vocab_size")
    fast = times.precompiled_us_mean if times else None
    masks = [step.mask_ms for step in ours.steps if step.mask_ms is not None]
    return {
        "bitmask_bytes": 4 * num_words(vocab) if vocab else None,
        "bitmask_bytes_at_128256": 4 * num_words(128_256),
        "naive_ms": times.naive_ms if times else None,
        "naive_at_128k_ms": times.naive_at_128k_ms if times else None,
        "compile_ms": times.compile_ms if times else None,
        "first_visit_us_mean": times.first_us if times else None,
        "precompiled_us_mean": fast,
        "precompiled_us_p99": times.precompiled_us_p99 if times else None,
        "xgrammar_compile_ms": times.xgrammar_compile_ms if times else None,
        "xgrammar_us_mean": times.xgrammar_us_mean if times else None,
        "xgrammar_us_p99": times.xgrammar_us_p99 if times else None,
        "speedup_over_naive": 1e3 * times.naive_ms / fast if times and times.naive_ms and fast else None,
        "forward_ms": times.forward_ms if times else None,
        "mask_ms_per_pass": ratio(sum(masks), len(masks)),
        "legal_tokens": [report.num_legal for report in used],
        "feasible_mass": [report.feasible_mass for report in used],
        "context_dependent_share": times.context_dependent_share if times else None,
        "valid_json": about.get("valid_json"),
        "output_text": about.get("output_text"),
        "output_tokens": len(ours.output_tokens),
        "target_passes": len(ours.steps),
        "drafted_tokens": len(nodes),
        "accepted_tokens": sum(step.num_verified for step in ours.steps),
        "blocked_tokens": sum(node.state == "blocked" for node in nodes),
        "rolled_back_rows": sum(step.target_kv.rolled_back for step in ours.steps),
        "finish_reason": ours.finish,
        "refusal": about.get("refusal"),
        "audit": {
            f.keyword: {"verdict": f.verdict, "counterexample": f.counterexample, "reason": f.reason}
            for f in lanes.get("audit", Lane("")).steps
        },
    }


def reports(step: Pass) -> list[Any]:
    """The masks of the rows that gave the output tokens, in order; rows without a mask are left out."""
    rows = [0, *(i + 1 for i, node in enumerate(step.nodes) if node.state == "accepted")]
    return [step.masks[row] for row in rows[: len(step.outputs)] if row < len(step.masks) and step.masks[row]]


def figures(summary: Mapping[str, Any]) -> Sequence[Figure]:
    """The figures row."""
    s = summary
    mass = s["feasible_mass"]
    least = min(mass, default=None)
    valid = {True: "yes", False: "no", None: "–"}[s["valid_json"]]
    size, fast, speed = s["bitmask_bytes"], s["precompiled_us_mean"], s["speedup_over_naive"]
    return (
        Figure("–" if size is None else f"{size:,} B", "one mask, packed", "exact"),
        Figure("–" if least is None else html.probability(least), "least feasible mass of a step", "measured"),
        Figure("–" if fast is None else f"{fast:,.1f} µs", "one mask, precompiled", "measured"),
        Figure("–" if speed is None else f"{speed:,.0f}×", "faster than walking every token in Python", "measured"),
        Figure(valid, "valid by the schema", "measured"),
    )


# --- Pictures ---------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """One frame per pass of the constrained lane, and one of the whole once there is something to sum up."""
    has_end = bool(trace.lanes and trace.lanes[0].finish) or "refusal" in trace.provenance
    return (len(trace.lanes[0].steps) if trace.lanes else 0) + has_end


def frame(trace: Trace, index: int) -> Frame:
    """One pass with its mask, or, behind the last, the whole."""
    steps = trace.lanes[0].steps
    if index >= len(steps):
        return Frame(says_end(trace), constrained.at_end(trace))
    step = steps[index]
    _, report, _ = constrained.used_row(step)
    legal = f"{report.num_legal:,} legal tokens" if report else "no mask"
    blocked = sum(node.state == "blocked" for node in step.nodes)
    cut = f"; {html.count(blocked, 'draft token')} blocked by the grammar" if blocked else ""
    said = "".join(trace.texts.get(output.token, "") for output in step.outputs)
    return Frame(f"Step {index + 1}: {legal}, output {said!r}{cut}.", constrained.at_step(trace, index))


def says_end(trace: Trace) -> str:
    if "refusal" in trace.provenance:
        return "The engine refuses this schema; the audit says why."
    finish = {"eos": "The text ended where the grammar can end.", "length": "The token limit came first."}
    return finish.get(trace.lanes[0].finish or "", "The run has ended.")


def time_chart(trace: Trace) -> Any:
    """Time of one mask, each way, against a pass of this model."""
    times = next((lane.steps[0] for lane in trace.lanes if lane.name == "mask times" and lane.steps), None)
    if times is None:
        return None
    bars = {
        "naive": times.naive_ms,
        "precompiled": times.precompiled_us_mean and times.precompiled_us_mean / 1e3,
        "xgrammar": times.xgrammar_us_mean and times.xgrammar_us_mean / 1e3,
        "model pass": times.forward_ms,
    }
    figure = charts.bars({"ms": [(name, ms) for name, ms in bars.items() if ms]}, "", "ms, logarithmic")
    return figure.update_yaxes(type="log")


def mass_chart(trace: Trace) -> Any:
    """Feasible mass over the output tokens."""
    points = [(i, mass) for i, mass in enumerate(summary(trace)["feasible_mass"], start=1)]
    if len(points) < 2:
        return None
    return charts.lines({"feasible mass": points}, "output token", "probability").update_yaxes(range=[0, 1.05])


HOW = """
**The model never sees the grammar.** It puts out a row of logits as always. Beside it the grammar's *matcher* writes a
**bitmask**: one bit per token id, 1 for a token that can go on from the text so far. Logits without a bit become minus
infinity; then the knobs and the draw follow, so top-k and top-p choose among legal tokens only. 49,152 tokens are
1,536 words of 32 bits, 6,144 bytes; 128,256 tokens are 16,032 bytes, for each request and each step.

**From a grammar to bits.** A regex becomes an automaton over *bytes*: tokens are byte strings, and one character can be
split over two of them. A token is legal when all of its bytes lead through the automaton. Walking all tokens one by
one is the *naive* mask. The *precompiled* one walks the vocabulary as a tree, so that tokens with a common beginning
share their first steps, once per state, and keeps the result.

**Why a stack.** JSON nests, and no finite automaton can count brackets. So each object, array and string is a rule of
its own, and the text stands in a *stack* of states. Most tokens are decided by the innermost state alone and are
computed once for all contexts. Only those that run past the end of the rule depend on what lies below: inside a string
these are the tokens with a closing quote and something behind it.

**Feasible mass** is the probability that the model itself gave to legal tokens. Near 1 the grammar only watches. Near 0
it forces the model to say something that it did not mean, and the rest of the document follows from there. Masking
is not conditioning: renormalising at each step is not the model's law given that the whole document is valid.

**With drafts.** Row *i* is masked by the state after the draft tokens before it; the matcher walks the draft and is
rolled back. An illegal draft token has p = 0 and cannot stand, and nothing behind it is judged: *blocked by the
grammar*. Only committed tokens move the matcher on, once. A draft model can get the same mask, and then q is its law
under the grammar. The *forced* drafter proposes tokens while exactly one is legal: they are always accepted.

**The layout.** Both engines write JSON in one layout: a space behind each comma and colon, no other whitespace, and
properties in the order of the schema. That is stricter than the schema, and keeps a model from writing spaces for ever.

**The audit** makes documents near your schema, lets `jsonschema` judge them, and has the engine read them. *Ignored*:
the engine reads a document that breaks this keyword alone. *Over-restricted*: it turns down a valid document that it
reads without the keyword. *Refused*: it compiles only without it. In strict mode properties that are not listed are
refused, as if the schema said so; that shows as over-restricted.

**Where this app and xgrammar differ**, and the judge sides with this app: strings with a length (xgrammar drops
escapes and lets raw control characters in), patterns (xgrammar anchors them), keys spelled with escapes, combinators
beside other keywords, `uniqueItems` and `not` (xgrammar ignores them, this app refuses them).
"""

LAB = Lab(
    slug="grammar_bitmask",
    title="The grammar bitmask",
    question="Which tokens does a regex or a schema leave at each step, and what does that do to the model's law?",
    group="constrain",
    order=40,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Time of one mask", time_chart, "Measured here; the scale is logarithmic."),
        Chart(
            "Feasible mass",
            mass_chart,
            "What the model itself gave to legal tokens. Near 1 the grammar only watches; near 0 it dictates.",
        ),
    ),
    how=HOW,
    code=lambda params: (Masks.words, naive_mask, legality),
    questions=(
        Question(
            "A request decodes under a JSON schema, over 128,256 tokens. What happens between two passes?",
            (
                "The matcher moves on by the committed token and writes the mask of its state: 16,032 bytes.",
                "The mask is made on the CPU while the GPU computes the pass, and copied over; then logits are masked.",
                "Masks of states are made ahead of time; only tokens that leave the current rule need the stack.",
                "Mask, then knobs, then the draw: a top-k before the mask can leave nothing legal.",
            ),
            ("When does the mask no longer hide behind the pass?", "What if the logits are wider than the mask?"),
            ("Walking every token at every step.", "Retrying until the output parses."),
            "person",
        ),
        Question(
            "Does the constrained output follow the model's law given that the document is valid?",
            (
                "No: each step is renormalised by itself, without regard to how likely a valid end is from there.",
                "The ratio between the two is the product of the feasible masses along the text.",
                "So a low feasible mass is worth looking at: the grammar is talking, not the model.",
            ),
            (
                "How would you sample from the true conditional law?",
                "What does a space after a colon have to do with it?",
            ),
            ("Saying that the mask only removes what is impossible anyway.",),
            "reluctant",
        ),
        Question(
            "How do you combine a grammar with speculative decoding?",
            (
                "Mask row i with the state after draft[0..i-1], then roll the matcher back.",
                "Tokens behind the first illegal one are never judged.",
                "Advance the matcher by the committed tokens only, once.",
                "Mask the drafter too, or it wastes drafts; q must then be the masked law.",
            ),
            (
                "What is the mask behind an accepted end-of-sequence token?",
                "Why are forced tokens accepted for certain?",
            ),
            ("One mask for all rows.", "Advancing the matcher by the draft."),
            "draft_blocked",
        ),
    ),
    sources=(
        ("XGrammar: flexible and efficient structured generation engine", "https://arxiv.org/abs/2411.15100"),
        ("Willard and Louf 2023: Efficient guided generation for LLMs", "https://arxiv.org/abs/2307.09702"),
        ("XGrammar documentation", "https://xgrammar.mlc.ai/docs/"),
        ("JSON Schema 2020-12, validation", "https://json-schema.org/draft/2020-12/json-schema-validation"),
        ("vLLM: structured outputs", "https://docs.vllm.ai/en/latest/features/structured_outputs.html"),
    ),
)
