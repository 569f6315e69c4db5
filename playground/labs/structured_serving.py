"""Structured output at scale: what compiling, masking and forced text cost a server, and what jump-forward changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import numpy as np

from playground.engine import decode
from playground.engine.cost import Priced, tensor_parallel
from playground.engine.drafters import Drafter, NoDrafter
from playground.engine.grammar.compile_stall import (
    CACHE,
    FREE,
    PLACES,
    SCHEDULER,
    WORKER,
    Costs,
    Request,
    arrivals,
    simulate,
)
from playground.engine.grammar.compile_times import CompileTimes, num_leaves, rename_key
from playground.engine.grammar.compiled import SCHEMA, Production, Workshop, read_schema, workshop
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.jumping import (
    LONGEST,
    ForcedText,
    Repair,
    Vocabulary,
    canonical,
    held_back,
    piecewise,
    retokenised,
    take_forced_greedy,
)
from playground.engine.grammar.mask_load import mask_load
from playground.engine.grammar.remedies import DRAFT, HELD_BACK, PIECEWISE, PLAIN, RETOKENISED, account
from playground.engine.grammar.samples import Maker, documents
from playground.engine.grammar.timing import fill_times, typical
from playground.engine.length import Fixed
from playground.engine.model import LanguageModel
from playground.engine.sampling import coins
from playground.engine.stop import Stop
from playground.engine.trace import Pass, Trace
from playground.engine.verify import Rule, verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, html, structured, structured_jump

KEYS = {
    PLAIN: "plain",
    PIECEWISE: "jump_forward",
    RETOKENISED: "retokenised",
    HELD_BACK: "held_back",
    DRAFT: "draft",
}
TARGETS = ("llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "smollm2-135m", "deepseek-v3")
LANES = {FREE: "free", SCHEDULER: "scheduler", WORKER: "worker", CACHE: "cache"}  # names in the summary
PROMPT = (
    "Write this invoice as JSON: INV-2041 of 2026-03-14, paid in EUR. Seller: Nordlicht GmbH in Germany, "
    "VAT DE811569869. Buyer: Acme SpA in Italy. One line: SKU LMP-07, desk lamp, 3 at 40 each, 19 percent tax. "
    "Total 120, due in 30 days."
)
EXAMPLE = """{
  "type": "object",
  "properties": {
    "number": {"type": "string", "pattern": "^INV-[0-9]{4}$"},
    "date": {"type": "string", "pattern": "^2026-[01][0-9]-[0-3][0-9]$"},
    "currency": {"enum": ["EUR", "USD", "GBP"]},
    "paid": {"type": "boolean"},
    "seller": {
      "type": "object",
      "properties": {
        "name": {"type": "string"},
        "country": {"enum": ["Germany", "Italy", "France"]},
        "vat_id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{9}$"}
      },
      "required": ["name", "country", "vat_id"]
    },
    "buyer": {
      "type": "object",
      "properties": {"name": {"type": "string"}, "country": {"enum": ["Germany", "Italy", "France"]}},
      "required": ["name", "country"]
    },
    "lines": {
      "type": "array",
      "minItems": 1,
      "maxItems": 1,
      "items": {
        "type": "object",
        "properties": {
          "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
          "title": {"type": "string"},
          "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
          "unit_price": {"type": "integer", "minimum": 0},
          "tax": {
            "type": "object",
            "properties": {"percent": {"enum": [0, 7, 19]}, "included": {"type": "boolean"}},
            "required": ["percent", "included"]
          }
        },
        "required": ["sku", "title", "quantity", "unit_price", "tax"]
      }
    },
    "total": {"type": "integer", "minimum": 0},
    "due_days": {"enum": [14, 30, 60]}
  },
  "required": ["number", "date", "currency", "paid", "seller", "buyer", "lines", "total", "due_days"]
}"""


@dataclass(frozen=True)
class Params:
    schema: str = control(EXAMPLE, "JSON schema", "What replies must satisfy; xgrammar compiles it.", lines=9)
    num_schemas: int = control(
        4, "Different schemas", "Each request has one of them; they differ by a key.", min=1, max=1000, step=1
    )
    batch: int = control(64, "Batch", "Requests that decode at once, at most.", min=1, max=512, step=1)
    arrival_rate: float = control(20.0, "Requests per second", min=0.1, max=1000, step=0.1)
    priced_target: str = control(
        "llama-3.3-70b", "Priced model", "A name, or the text of a config.json.", choices=TARGETS, free=True
    )
    hardware: str = control("h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True)
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1)
    k: int = control(0, "Draft length k", "Masks per request and pass are k + 1.", min=0, max=16, step=1)
    slowdown: float = control(
        1.0,
        "Slower than here",
        "Factor on the measured times: a larger vocabulary, a busier CPU.",
        min=0.1,
        max=100,
        step=0.1,
        group="Server",
    )
    context: int = control(1024, "Context", "Tokens of KV of each request.", min=0, max=131_072, step=1, group="Server")
    output_tokens: int = control(400, "Tokens of a reply", min=1, max=4096, step=1, group="Server")
    num_requests: int = control(200, "Requests", "Simulated.", min=1, max=500, step=1, group="Server")
    target: str = control("default", "Target", "Writes the document.", choices=("default",), free=True, group="Jump")
    prompt: str = control(PROMPT, "Prompt", lines=3, group="Jump")
    max_new_tokens: int = control(
        200, "New tokens", "At most; 0 leaves jump-forward out.", min=0, max=400, step=1, group="Jump"
    )
    remedies: bool = control(False, "Remedies", "Run the three cures of bad seams too.", group="Jump")
    seed: int = control(0, "Seed", "Of the arrivals.", min=0, max=2**31 - 1, step=1, group="More")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="More")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="More")

    def __post_init__(self) -> None:
        steps = self.num_requests * self.output_tokens
        if steps > MAX_TOKENS:
            raise BadInput(
                f"num_requests times output_tokens is {steps:,}; at most {MAX_TOKENS:,} tokens are simulated."
            )

    @property
    def grammar(self) -> Any:
        try:
            return read_schema(self.schema)
        except GrammarError as error:
            raise BadInput(str(error)) from None


MAX_TOKENS = 400_000


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The server without grammars at once; compilations and masks as soon as they are measured; then the document."""
    schema = params.grammar
    try:
        pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
        served = Priced(models.shape(params.priced_target), pod)
        step_s = served.time(np.arange(1, params.batch + 1, dtype=float), 1, params.context).total_s
    except ValueError as error:
        raise BadInput(str(error)) from None
    trace = Trace(provenance={"leaves": num_leaves(schema)}).open("priced").add("priced", served).open("schedules")
    requests = arrivals(params.arrival_rate, params.num_requests, params.num_schemas, params.output_tokens, params.seed)
    costs = Costs(tuple(np.asarray(step_s, float).tolist()))
    trace = trace.add("schedules", simulate(FREE, requests, costs, params.batch))
    yield trace
    model = yield from models.load(params.target, params.dtype, params.device)
    yield Progress("Measuring what xgrammar takes to compile the schema")
    shop = workshop(model)
    try:
        times = shop.worker.time(schema, rename_key(schema))
        grammar = shop.production(SCHEMA, schema)
    except GrammarError as error:
        raise BadInput(str(error)) from None
    trace = replace(trace, provenance={**model.provenance(), **trace.provenance, "vocab_size": model.vocab_size})
    trace = trace.open("compile times").add("compile times", times)
    trace = yield from measured(params, trace, times, grammar, requests, costs, model)
    if params.max_new_tokens:
        yield from jumped(params, trace, grammar, model, shop)


def measured(
    params: Params,
    trace: Trace,
    times: CompileTimes,
    grammar: Production,
    requests: Sequence[Request],
    costs: Costs,
    model: LanguageModel,
) -> Iterator[Update]:
    """The three lanes with measured times, then the masks against the pass; returns the trace."""
    yield Progress("Measuring masks along a document")
    mean, fills = along_a_document(params.grammar, grammar, model)
    slow = params.slowdown / 1e3
    costs = replace(
        costs,
        cold_s=slow * times.cold_ms,
        cached_s=slow * times.cached_ms,
        renamed_s=slow * times.renamed_ms,
        mask_s=params.slowdown * mean / 1e6,
    )
    for place in PLACES[1:]:
        trace = trace.add("schedules", simulate(place, requests, costs, params.batch))
        yield trace
    load = mask_load(mean, fills, trace["priced"].steps[0], params.k, params.context, params.slowdown)
    trace = trace.open("masks").add("masks", load)
    yield trace
    return trace


def along_a_document(schema: Any, grammar: Production, model: LanguageModel) -> tuple[float, list[float]]:
    """Microseconds of a fill, mean and all, along a made-up document, up to where it leaves the grammar."""
    document = documents(Maker(schema, random.Random(0)).make(schema))[0].decode()
    _, fills = fill_times(grammar.matcher(), model.encode(document), model.vocab_size)
    return typical(fills), fills


@dataclass(frozen=True)
class Way:
    """One way to write the document: who drafts, which rule judges, and whether tokens are made canonical between."""

    drafter: Callable[[ForcedText], Drafter]
    rule: Rule = take_forced_greedy
    is_repaired: bool = False


WAYS = {
    PIECEWISE: Way(lambda forced: replace(forced, cut=piecewise)),
    PLAIN: Way(lambda forced: NoDrafter(), verify_greedy),
    RETOKENISED: Way(lambda forced: replace(forced, cut=canonical), is_repaired=True),
    HELD_BACK: Way(lambda forced: replace(forced, cut=held_back)),
    DRAFT: Way(lambda forced: replace(forced, cut=canonical), verify_greedy),
}


def jumped(params: Params, trace: Trace, grammar: Production, model: LanguageModel, shop: Workshop) -> Iterator[Update]:
    """Jump-forward leads, plain decoding on the same clock; then the remedies; each is accounted for at its end."""
    prompt = model.chat(params.prompt)
    if not prompt:
        raise BadInput("The prompt is empty; write at least one word.")
    vocabulary = Vocabulary(shop.trie, model.encode)
    for name in (PIECEWISE, PLAIN):
        trace = trace.open(name, prompt)
    trace = trace.open("repairs").open("remedies")
    first = {name: write(params, model, prompt, grammar, vocabulary, WAYS[name]) for name in (PIECEWISE, PLAIN)}
    for name, made in decode.race(first):
        trace = trace.add(name, made, model.texts(made.tokens))
        yield trace
    plain = trace[PLAIN]
    names = [PLAIN, PIECEWISE, *([RETOKENISED, HELD_BACK, DRAFT] if params.remedies else [])]
    for name in names:
        repairs: list[Repair] = []
        if name in (PLAIN, PIECEWISE):
            steps = list(trace[name].steps)
        else:
            yield Progress(f"Writing the document again: {name}")
            steps = []
            for made in write(params, model, prompt, grammar, vocabulary, WAYS[name]):
                (repairs if isinstance(made, Repair) else steps).append(made)
                yield Progress(f"Writing the document again: {name}, pass {len(steps)}")
        remedy = account(name, steps, repairs, plain.steps, vocabulary)
        shown = {token for seam in remedy.seams for token in (*seam.written, *seam.canonical)}
        shown |= {token for repair in repairs for token in (*repair.old, *repair.new)}
        trace = replace(trace, texts={**trace.texts, **model.texts(sorted(shown))})
        for repair in repairs:
            trace = trace.add("repairs", repair)
        valid = {**trace.provenance.get("valid", {}), name: is_valid(remedy.text, params.grammar)}
        trace = replace(trace, provenance={**trace.provenance, "valid": valid}).add("remedies", remedy)
        yield trace


def write(
    params: Params,
    model: LanguageModel,
    prompt: Sequence[int],
    grammar: Production,
    vocabulary: Vocabulary,
    way: Way,
) -> Iterator[Pass | Repair]:
    """The document, greedily, one way."""
    session, matcher = model.session(prompt), grammar.matcher()
    steps = decode.speculate(
        session,
        way.drafter(ForcedText(grammar.matcher(), vocabulary, piecewise)),
        rule=way.rule,
        length=Fixed(LONGEST),
        coin=coins(0),
        stop=Stop(model.eos_ids),
        grammar=matcher,
        max_new_tokens=params.max_new_tokens,
    )
    return retokenised(steps, session, matcher, vocabulary, params.max_new_tokens) if way.is_repaired else steps


def is_valid(text: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    """The steps of a lane; none while the trace has no such lane."""
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def asked(trace: Trace, name: str, default: Any) -> Any:
    return trace.provenance.get("params", {}).get(name, default)


def step_ms(trace: Trace) -> float | None:
    """A decode step of the full batch."""
    served = next(iter(steps_of(trace, "priced")), None)
    if served is None:
        return None
    return 1e3 * float(served.time(asked(trace, "batch", 64), 1, asked(trace, "context", 1024)).total_s)


def summary(trace: Trace) -> dict[str, Any]:
    """Headline figures: by lane of the schedule (``free``, ``scheduler``, ``worker``, ``cache``), by way of writing."""
    schedules = {LANES[each.name]: each for each in steps_of(trace, "schedules")}
    times, load = (next(iter(steps_of(trace, name)), None) for name in ("compile times", "masks"))
    ways = {each.name: each for each in steps_of(trace, "remedies")}
    jump, plain, slow = ways.get(PIECEWISE), ways.get(PLAIN), asked(trace, "slowdown", 1.0)

    def each(pick: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: pick(schedule) for name, schedule in schedules.items()}

    return {
        "leaves": trace.provenance.get("leaves"),
        "vocab_size": trace.provenance.get("vocab_size"),
        "compile_ms_cold": times.cold_ms if times else None,
        "compile_ms_cached": times.cached_ms if times else None,
        "compile_ms_renamed": times.renamed_ms if times else None,
        "steps_per_compile": slow * times.cold_ms / step_ms(trace) if times else None,
        "step_ms": step_ms(trace),
        "num_compiles": each(lambda s: s.num_compiles),
        "stall_steps": each(lambda s: s.stall_steps),
        "tokens_lost": each(lambda s: s.tokens_lost),
        "p50_itl_ms": each(lambda s: s.p50_itl_ms),
        "p99_itl_ms": each(lambda s: s.p99_itl_ms),
        "longest_itl_ms": each(lambda s: s.longest_itl_ms),
        "p99_first_token_ms": each(lambda s: s.p99_first_ms),
        "mean_batch": each(lambda s: s.mean_batch),
        "mask_us_mean": load.us_mean / load.slowdown if load else None,
        "mask_us_p99": load.us_p99 / load.slowdown if load else None,
        "hidden_until_batch": until(load)[1] if load else None,
        "hidden_until_batch_p99": until(load)[2] if load else None,
        "hidden_until_by_k": {str(k): batch for k, batch, _ in load.hidden_until} if load else {},
        "forced_bytes_share": jump.forced_bytes / jump.num_bytes if jump and jump.num_bytes else None,
        "sampled_tokens_with": jump.sampled if jump else None,
        "sampled_tokens_without": plain.sampled if plain else None,
        "num_seams": len(jump.seams) if jump else None,
        "non_canonical_seams": jump.bad_seams if jump else None,
        "identical_text": jump.parts_at is None if jump else None,
        "finish_reason": jump.finish if jump else None,
        "valid_json": trace.provenance.get("valid", {}).get(PIECEWISE),
        "output_text": jump.text if jump else None,
        "ways": {
            KEYS[name]: {
                "sampled_tokens": way.sampled,
                "output_tokens": way.num_tokens,
                "rejected_tokens": way.rejected,
                "kv_rows_written": way.rows_written,
                "kv_rows_rolled_back": way.rolled_back,
                "repairs": way.num_repairs,
                "non_canonical_seams": way.bad_seams,
                "seconds": way.ms / 1e3,
                "identical_text": way.parts_at is None,
                "parts_at_byte": way.parts_at,
                "finish_reason": way.finish,
                "valid_json": trace.provenance.get("valid", {}).get(name),
            }
            for name, way in ways.items()
        },
    }


def until(load: Any) -> tuple[int, int | None, int | None]:
    """The row of ``hidden_until`` for the draft length that was asked for."""
    return next(row for row in load.hidden_until if row[0] == load.rows - 1)


def figures(summary: Mapping[str, Any]) -> Sequence[Figure]:
    """The figures row."""
    s = summary
    cold, steps, itl = s["compile_ms_cold"], s["steps_per_compile"], s["p99_itl_ms"]
    seams = "–" if s["num_seams"] is None else f"{s['non_canonical_seams']} of {s['num_seams']}"
    with_, without = s["sampled_tokens_with"], s["sampled_tokens_without"]
    both = f"{html.number(itl['scheduler'], 1)} / {html.number(itl['cache'], 1)} ms" if "cache" in itl else "–"
    return (
        Figure("–" if cold is None else f"{cold:.1f} ms", "compiling the schema, cold", "measured"),
        Figure("–" if steps is None else f"{steps:.1f}", "decode steps lost to one compilation", "priced"),
        Figure(both, "ITL p99: compiling on the scheduler / cached", "priced"),
        Figure("–" if with_ is None else f"{without} → {with_}", "sampled tokens, without and with jumps", "measured"),
        Figure(seams, "seams that the tokenizer would not make", "measured"),
    )


# --- Pictures ---------------------------------------------------------------------------------------------------------


def is_done(trace: Trace) -> bool:
    return len(steps_of(trace, "remedies")) == (len(WAYS) if asked(trace, "remedies", False) else 2)


def num_frames(trace: Trace) -> int:
    """One per lane of the schedule, one for the masks, one per pass with jumps, one per way, and all ways at last."""
    names = ("schedules", "masks", PIECEWISE, "remedies")
    return sum(len(steps_of(trace, name)) for name in names) + is_done(trace)


def frame(trace: Trace, index: int) -> Frame:
    schedules, masks = steps_of(trace, "schedules"), steps_of(trace, "masks")
    passes, ways = steps_of(trace, PIECEWISE), steps_of(trace, "remedies")
    if index < len(schedules):
        return lane_frame(trace, schedules[: index + 1])
    index -= len(schedules)
    if index < len(masks):
        body = html.frame(structured.masks(masks[0]))
        return Frame(f"Masks against the pass: {says_hidden(until(masks[0])[1])}.", body)
    index -= len(masks)
    if index < len(passes):
        made = passes[index]
        said = "".join(trace.texts.get(out.token, "") for out in made.outputs[: made.num_verified])
        status = f"Pass {index + 1}: " + (f"{said!r} is forced." if said else "nothing is forced, the model chooses.")
        return Frame(status, structured_jump.at_step(trace, passes, index, steps_of(trace, PLAIN)))
    index -= len(passes)
    if index < len(ways):
        way = ways[index]
        repairs = steps_of(trace, "repairs") if way.name == RETOKENISED else ()
        status = f"The document, {way.name}: {html.count(way.sampled, 'token')} sampled."
        return Frame(status, structured_jump.remedy(trace, way, repairs, ways[0]))
    return Frame("All ways side by side.", structured_jump.whole(ways))


def lane_frame(trace: Trace, schedules: Sequence[Any]) -> Frame:
    times = next(iter(steps_of(trace, "compile times")), None)
    blocks = [structured.lanes(schedules)]
    if times is not None and len(schedules) > 1:
        slow, leaves = asked(trace, "slowdown", 1.0), trace.provenance.get("leaves", 0)
        blocks.append(structured.compiled(times, slow, step_ms(trace), leaves))
    newest = schedules[-1]
    return Frame(f"{newest.name.capitalize()}: {structured.says(newest)}.", html.frame(*blocks))


def says_hidden(batch: int | None) -> str:
    return "they hide at every batch" if batch is None else f"they hide up to batch {batch:,}"


def itl_chart(trace: Trace) -> Any:
    """Time between tokens in each lane."""
    schedules = steps_of(trace, "schedules")
    if len(schedules) < len(PLACES):
        return None
    series = {
        "p50": [(each.name, each.p50_itl_ms) for each in schedules],
        "p99": [(each.name, each.p99_itl_ms) for each in schedules],
    }
    return charts.bars(series, "", "ms between tokens")


def mask_chart(trace: Trace) -> Any:
    """The pass, and all masks of the batch."""
    load = next(iter(steps_of(trace, "masks")), None)
    if load is None:
        return None
    series = {
        "pass": [(point.batch, point.pass_ms) for point in load.points],
        "masks, by the mean": [(point.batch, point.mean_ms) for point in load.points],
        "masks, by the p99": [(point.batch, point.p99_ms) for point in load.points],
    }
    return charts.lines(series, "batch", "ms", log_x=True, log_y=True)


def way_chart(trace: Trace) -> Any:
    """Sampled tokens and written KV rows of each way."""
    ways = steps_of(trace, "remedies")
    if len(ways) < 2:
        return None
    series = {
        "sampled tokens": [(way.name, way.sampled) for way in ways],
        "KV rows written": [(way.name, way.rows_written) for way in ways],
    }
    return charts.bars(series, "", "")


HOW = """
**Compiling.** Before a request with a schema can decode, its grammar must be compiled: an automaton, and masks for its
states over the whole vocabulary. Here xgrammar does that in a process of its own, and its processor time is measured on
your schema: with an empty cache, for the same text again, and with one key renamed. A key renamed is another text, so
the cache of whole grammars misses; what the engine shares between grammars can still help.

**Where it runs.** In continuous batching one scheduler thread starts every decode step. If it compiles, everyone who
decodes waits: *tokens lost* are what they would have got meanwhile. In a worker only the new request waits. With a
cache a schema is compiled once, and requests for one that is being compiled share the wait. The simulation replays the
same arrivals in every lane. A step's time comes from a roofline with data-sheet figures, so it is a floor; prompts
count as read already; one worker compiles one grammar at a time.

**Masks** are written on the CPU while the GPU computes the pass. They cost nothing until batch times masks per request
takes longer than the pass. With k drafts each request needs k + 1 masks, and its pass does not grow as fast while it is
bound by memory.

**A larger vocabulary.** The times are measured over the tokenizer of the model here. Masks and compilations grow with
the vocabulary; *slower than here* multiplies both. Nothing is extrapolated on its own.

**Jump-forward.** Where the grammar leaves one continuation, such as the next key, its bytes are certain: append them
and let the model read them in the pass that chooses the next token. Bytes are certain, tokens are not. The forced text
is tokenised by itself; the tokenizer might have cut across its edges. Such *seams* are token sequences that the model
has rarely seen, and they can move its later choices.

**Three cures.** *Re-tokenise*: after each pass cut the whole text again, and where tokens differ roll KV rows and
matcher back. Tokens that a client has already seen may change. *Hold the tail back*: leave to the model what a longer
token could still take in. *Offer it as a draft*: propose the canonical tokens and verify them as any draft. Then the
text is the one without jumps, and what the model would have cut otherwise costs rejected rows.
"""

LAB = Lab(
    slug="structured_serving",
    title="Structured output at scale",
    question="When does structured output cost throughput: compiling, masking, or the text that is forced anyway?",
    group="constrain",
    order=41,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Time between tokens", itl_chart, "Simulated, with compile times measured here."),
        Chart("Masks against the pass", mask_chart, "Masks measured here, on one thread; the pass is priced."),
        Chart("What each way cost", way_chart, "Sampled tokens are passes; rows are written behind the prompt."),
    ),
    how=HOW,
    code=lambda params: (simulate, ForcedText.propose, held_back, retokenised),
    questions=(
        Question(
            "All users see a hiccup whenever somebody sends a new JSON schema. What happens, and what do you change?",
            (
                "The grammar is compiled on the thread that starts decode steps: a batch of 64 waits for one request.",
                "A stall of c ms costs c / step decode steps, times the batch in tokens; p99 of the ITL shows it.",
                "Compile in a worker, admit the request when its grammar is ready, cache by the text of the schema.",
                "Limit time and size there: a schema can explode, and it comes from a user.",
            ),
            ("What if every user has a schema of their own?", "What does a renamed key do to the cache?"),
            ("Blaming the masks: they take microseconds and hide.", "Looking at mean latency only."),
            "stall",
        ),
        Question(
            "Up to which batch is a grammar mask free?",
            (
                "As long as all masks of the batch take less than the pass: they are written while the GPU works.",
                "A pass bound by memory hardly grows with the batch, masks do; bound by compute, it grows with them.",
                "So small models on fast hardware with long drafts meet the limit first; k drafts need k + 1 masks.",
            ),
            ("Which lever is left then?",),
            ("Forgetting the draft rows.", "Adding mask time to the step even where it hides."),
            "small_model",
        ),
        Question(
            "Most bytes of a JSON reply are dictated by the schema. Why not append them without asking the model?",
            (
                "That is jump-forward: the bytes are certain, and one pass reads them and chooses the next token.",
                "The tokens are not certain: forced text cut by itself need not be how the tokenizer cuts the whole.",
                "Cures: re-tokenise and roll back, hold back the tail that a longer token could absorb, or verify "
                "the canonical tokens as a draft.",
                "Only the draft leaves the model's output law as it was.",
            ),
            (
                "Why are few tokens forced although many bytes are?",
                "What happens to tokens that were streamed already?",
            ),
            ("Counting forced bytes as saved passes.", "Skipping stop and length checks on appended tokens."),
            "invoice",
        ),
    ),
    sources=(
        ("SGLang: jump-forward decoding", "https://arxiv.org/abs/2312.07104"),
        ("XGrammar: flexible and efficient structured generation engine", "https://arxiv.org/abs/2411.15100"),
        (
            "LMSYS 2024: fast JSON decoding with a compressed finite state machine",
            "https://lmsys.org/blog/2024-02-05-compressed-fsm/",
        ),
        ("Guidance: token healing", "https://github.com/guidance-ai/guidance"),
        ("vLLM: structured outputs", "https://docs.vllm.ai/en/latest/features/structured_outputs.html"),
    ),
)
