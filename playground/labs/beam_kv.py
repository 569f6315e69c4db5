"""Beams that share KV blocks: the search, its block tables, the pool, and what three ways of keeping beams cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.engine.beam import BeamStep, EarlyStopping, Hypothesis, PagedBeams, beam_search
from playground.engine.beam_memory import BeamBlocks, PricedBeams, given_back, repeated, resubmitted, table_blocks
from playground.engine.kv import BlockPool, BlockTables, OutOfBlocks, num_blocks_for
from playground.engine.model import LanguageModel
from playground.engine.trace import Trace, step
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, brief, control
from playground.views import beam, beam_blocks, charts, html

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m")
EARLY: dict[str, EarlyStopping] = {"false": False, "true": True, "never": "never"}
PROMPT = "Write one sentence about the sea."


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "table is a toy language.", choices=("default", "table"), free=True)
    prompt: str = control(PROMPT, "Prompt", lines=3, max_chars=4_000)
    beams: int = control(4, "Beams", min=1, max=8, step=1)
    block_size: int = control(16, "Block size", "Tokens that a block holds.", min=1, max=32, step=1)
    max_new_tokens: int = control(20, "New tokens", min=1, max=48, step=1)
    length_penalty: float = control(1.0, "Length penalty", "0 favours short outputs.", min=-2, max=4, step=0.1)
    early_stopping: str = control(
        "false", "Early stopping", "true: as soon as enough outputs have ended.", choices=tuple(EARLY), free=True
    )
    pool_blocks: int = control(0, "Blocks in the pool", "0: enough for a copy each.", min=0, step=1, group="Run")
    seed: int = control(0, "Seed", "A search has no chance in it.", min=0, max=2**31 - 1, step=1, group="Run")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="Run")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="Run")
    priced_target: str = control("llama-3.1-8b", "Priced model", choices=MODELS, free=True, group="Price")
    priced_prompt_tokens: int = control(1000, "Priced prompt", "Tokens.", min=1, max=131_072, step=1, group="Price")
    priced_new_tokens: int = control(200, "Priced output", "Tokens.", min=0, max=1_000, step=1, group="Price")

    def __post_init__(self) -> None:
        if self.early_stopping.lower() not in EARLY:
            names = ", ".join(EARLY)
            raise BadInput(f"early_stopping must be one of {names}, not {brief(self.early_stopping)}.")

    @property
    def search(self) -> dict[str, Any]:
        """What ``beam_search`` is asked for."""
        return {
            "width": self.beams,
            "max_new_tokens": self.max_new_tokens,
            "length_penalty": self.length_penalty,
            "early_stopping": EARLY[self.early_stopping.lower()],
        }


@step
@dataclass(frozen=True)
class Compared:
    """One step beside the same step with copied caches: same beams, largest log-probability gap, milliseconds."""

    is_same: bool
    gap: float
    paged_ms: float
    copied_ms: float


@step
@dataclass(frozen=True)
class Output:
    """One output with its text, as the tokenizer writes it."""

    text: str
    made: Hypothesis


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The search in shared blocks, step by step beside the same search with a cache for each beam."""
    trace = Trace().open("priced").add("priced", priced(params, models))
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt = read(model, params)
    enough = params.beams * num_blocks_for(len(prompt) + params.max_new_tokens, params.block_size)
    pool = BlockPool(min(params.pool_blocks or enough, enough), params.block_size)
    if num_blocks_for(len(prompt), params.block_size) > pool.num_blocks:
        needed = html.count(num_blocks_for(len(prompt), params.block_size), "block")
        raise BadInput(f"The prompt alone needs {needed}; the pool has {pool.num_blocks:,}: give it more.")
    paged, copied = model.beams(prompt, pool), model.beams(prompt)
    about = {"num_prompt": len(prompt), "num_blocks": pool.num_blocks, "block_bytes": 0}
    trace = replace(trace, texts=model.texts(prompt), provenance={**model.provenance(), **about})
    for name in ("beams", "blocks", "compared", "outputs"):
        trace = trace.open(name, prompt)
    yield Progress("Reading the prompt")
    searches = [timed(beam_search(state, eos_ids=model.eos_ids, **params.search)) for state in (paged, copied)]
    for made, blocks, compared in side_by_side(paged, prompt, *searches):
        trace = replace(trace, provenance={**trace.provenance, "block_bytes": paged.block_bytes})
        texts = model.texts([each.token for each in made.expansions])
        trace = trace.add("beams", made, texts).add("blocks", blocks)
        trace = trace.add("compared", compared) if compared else trace
        yield trace
    for each in made.finished:
        trace = trace.add("outputs", Output(model.decode(each.tokens), each))
    parents = [step_.parents for step_ in trace["blocks"].steps if step_.parents]
    size = (params.priced_prompt_tokens, params.priced_new_tokens, params.block_size)
    yield trace.add("priced", replace(trace["priced"].steps[0], this_run=repeated(parents, *size)))


def priced(params: Params, models: Models) -> PricedBeams:
    """The served model's search; raises ``BadInput`` with the names there are."""
    try:
        shape = models.shape(params.priced_target)
    except ValueError as error:
        raise BadInput(str(error)) from None
    return PricedBeams(shape, params.priced_prompt_tokens, params.priced_new_tokens, params.beams, params.block_size)


def read(model: LanguageModel, params: Params) -> list[int]:
    """The prompt as tokens, checked against what the model can read."""
    try:
        prompt = model.chat(params.prompt)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if not prompt:
        raise BadInput("The prompt is empty: write at least one word.")
    if len(prompt) + params.max_new_tokens > model.max_tokens:
        asked = f"The prompt's {len(prompt):,} tokens and {params.max_new_tokens} new ones"
        raise BadInput(f"{asked} are more than the {model.max_tokens:,} that this model reads: shorten one of them.")
    return prompt


def timed(search: Iterator[BeamStep]) -> Iterator[tuple[BeamStep, float]]:
    """The steps of a search, each with the milliseconds that it took."""
    while True:
        began = time.perf_counter()
        made = next(search, None)
        if made is None:
            return
        yield made, 1e3 * (time.perf_counter() - began)


def side_by_side(
    paged: PagedBeams,
    prompt: Sequence[int],
    search: Iterator[tuple[BeamStep, float]],
    other: Iterator[tuple[BeamStep, float]],
) -> Iterator[tuple[BeamStep, BeamBlocks, Compared | None]]:
    """Each step with the blocks that its beams were then given, and beside the same step with copied caches.

    A step is told when the next one has been made, since only then its beams have their blocks. At the end, and when
    the pool runs out, every block is given back.
    """
    made, paged_ms = next(search)
    while True:
        twin, copied_ms = next(other, (None, 0.0))
        compared = compare(made, twin, paged_ms, copied_ms)
        try:
            following = next(search, None)
        except OutOfBlocks as error:
            yield made, given_back(paged.tables, str(error)), compared
            return
        if following is None:
            paged.tables.free()
            yield made, given_back(paged.tables), compared
            return
        rows = [[*prompt, *tokens] for tokens in made.beams]
        yield made, table_blocks(paged.tables, len(prompt), rows), compared
        made, paged_ms = following


def compare(made: BeamStep, twin: BeamStep | None, paged_ms: float, copied_ms: float) -> Compared | None:
    """The two searches at one step."""
    if twin is None:
        return None
    pairs = zip(made.expansions, twin.expansions, strict=False)
    outputs = [[each.tokens for each in one.finished] for one in (made, twin)]
    is_same = made.beams == twin.beams and outputs[0] == outputs[1] and made.finish == twin.finish
    gap = max((abs(one.logprob - other.logprob) for one, other in pairs), default=0.0)
    return Compared(is_same, gap, paged_ms, copied_ms)


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def summary(trace: Trace) -> dict[str, Any]:
    """Blocks and bytes of the three lanes at their largest, what the search did, its outputs, and the priced shape."""
    blocks, outputs = steps_of(trace, "blocks"), steps_of(trace, "outputs")
    held, compared = [now for now in blocks if now.parents], steps_of(trace, "compared")
    block_bytes, made = trace.provenance.get("block_bytes"), steps_of(trace, "beams")
    most = {
        name: max((getattr(now, f"{field}_blocks") for now in held), default=None)
        for name, field in (("copied", "copied"), ("shared", "used"), ("vllm", "resubmitted"))
    }
    lacks = blocks[-1].lacks if blocks else None
    found = steps_of(trace, "priced")[-1] if steps_of(trace, "priced") else None
    return {
        **{f"bytes_{name}_lane": None if n is None else n * block_bytes for name, n in most.items()},
        "blocks": most,
        "peak_blocks": blocks[-1].peak_blocks if blocks else None,
        "forks": sum(now.num_forks for now in held),
        "copies": held[-1].copies if held else 0,
        "first_fork_copies": held[0].copies if held else None,
        "frees": held[-1].frees if held else 0,
        "blocks_left": blocks[-1].used_blocks if blocks else None,
        "recomputed_tokens": sum(now.recomputed_tokens for now in held),
        "same_beams": all(each.is_same for each in compared) if compared else None,
        "largest_gap": max((each.gap for each in compared), default=None),
        "ms_per_step": {
            "paged": median(each.paged_ms for each in compared[1:]),
            "copied": median(each.copied_ms for each in compared[1:]),
        },
        "best_text": outputs[0].text if outputs else None,
        "texts": [each.text for each in outputs],
        "scores": [each.made.score for each in outputs],
        "num_prompt_tokens": trace.provenance.get("num_prompt"),
        "output_tokens": len(outputs[0].made.tokens) if outputs else None,
        "steps": len(made),
        "finish_reason": "out of blocks" if lacks else made[-1].finish if made else None,
        "priced_mib": found.mib if found else None,
        "priced_blocks": found.blocks if found else None,
        "priced_fork_copies": found.fork_copies if found else None,
        "priced_target": found.shape.name if found else None,
    }


def median(values: Iterator[float]) -> float | None:
    listed = list(values)
    return statistics.median(listed) if listed else None


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    shared, copied = result["bytes_shared_lane"], result["bytes_copied_lane"]
    unit, name = beam_blocks.unit_of(copied or 0)
    sizes = "–" if copied is None else f"{html.number(shared / unit, 2)} / {html.number(copied / unit, 2)}"
    price = result["priced_mib"] or {}
    apart, best, worst = (html.number(price.get(name), 0) for name in ("separate", "best", "worst"))
    same = {True: "yes", False: "no", None: "–"}[result["same_beams"]]
    return (
        Figure(sizes, f"{name} of KV at most, shared / copied", "measured"),
        Figure(f"{result['copies']} / {result['frees']}", "blocks copied / freed on the way", "measured"),
        Figure(f"{result['recomputed_tokens']:,}", "tokens computed again by resubmitting", "exact"),
        Figure(same, "same beams as with copied caches", "measured"),
        Figure(f"{best} – {worst} / {apart}", f"MiB shared / copied, {result['priced_target'] or '–'}", "priced"),
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    return len(steps_of(trace, "blocks"))


def frame(trace: Trace, index: int) -> Frame:
    made, blocks = steps_of(trace, "beams")[: index + 1], steps_of(trace, "blocks")[: index + 1]
    step_, now = made[-1], blocks[-1]
    body = [
        html.section("Beam tree", beam.tree(made, trace.texts) + beam.legend(), "log-probability of all tokens"),
        html.section("Forks, copies, frees", beam_blocks.events(now, index == 0)),
    ]
    if now.parents:
        logprobs = [each.logprob for each in step_.live]
        table = beam_blocks.tables(now, step_.beams, logprobs, trace.texts)
        aside = f"{now.num_tokens:,} rows each, {trace.provenance['num_prompt']:,} of the prompt"
        body.append(html.section("Block tables", table, aside))
    num_blocks = trace.provenance["num_blocks"]
    grid = beam_blocks.pool(now, num_blocks) + beam_blocks.legend()
    body.append(html.section("Pool by ref_count", grid, f"{now.used_blocks} of {num_blocks:,} blocks in use"))
    body.append(
        html.section("Memory", beam_blocks.lanes(blocks, trace.provenance["block_bytes"]), "K and V, all layers")
    )
    ended = index == num_frames(trace) - 1 and (step_.finish or now.lacks)
    if ended:
        body += last_sections(trace, step_)
    return Frame(f"{beam.says(step_, index)}; {beam_blocks.says(now)}.", html.frame(*body))


def last_sections(trace: Trace, made: BeamStep) -> list[html.Text]:
    """Outputs, the search with copied caches beside it, and the priced search."""
    found = [each.made for each in steps_of(trace, "outputs")]
    body = beam.outputs(found, trace.texts) if found else html.note("No output has ended.")
    served = steps_of(trace, "priced")[-1]
    size = f"{served.num_prompt:,} + {served.num_new:,} tokens, {html.count(served.beams, 'beam')}"
    sections = [html.section("Outputs", body, beam.ENDS.get(made.finish or "", "The pool ran out before the end."))]
    if says := beside_copies(trace):
        sections.append(html.section("Beside a cache for each beam", html.note(says), "measured here"))
    sections.append(html.section(f"On {served.shape.name}, priced", beam_blocks.priced(served), size))
    return sections


def beside_copies(trace: Trace) -> str:
    """What the same search with copied caches gave, in words."""
    result = summary(trace)
    times, gap = result["ms_per_step"], result["largest_gap"]
    if gap is None:
        return ""
    beams = "The same beams and outputs" if result["same_beams"] else "Other beams or outputs"
    same = "every log-probability the same number" if gap == 0 else f"log-probabilities up to {gap:.1g} apart"
    if times["paged"] is None or trace.provenance.get("target") == "table":  # a toy's times mean nothing
        return f"{beams}, {same}."
    paged, copied = (html.number(times[name], 1) for name in ("paged", "copied"))
    return f"{beams}, {same}. A step took {paged} ms in shared blocks and {copied} ms with copied caches (medians)."


# --- Charts -----------------------------------------------------------------------------------------------------------


def memory_chart(trace: Trace) -> Any:
    held = [now for now in steps_of(trace, "blocks") if now.parents]
    if not held:
        return None
    block_bytes = trace.provenance["block_bytes"]
    unit, name = beam_blocks.unit_of(block_bytes * max(now.copied_blocks for now in held))
    lanes = {"a copy each": "copied_blocks", "shared": "used_blocks", "resubmitted": "resubmitted_blocks"}
    points = {
        words: [(i + 1, getattr(now, field) * block_bytes / unit) for i, now in enumerate(held)]
        for words, field in lanes.items()
    }
    return charts.lines(points, "step", f"{name} of KV")


def recomputed_chart(trace: Trace) -> Any:
    held = [now for now in steps_of(trace, "blocks") if now.parents]
    points = [(i + 1, now.recomputed_tokens) for i, now in enumerate(held)]
    return charts.bars({"computed again": points}, "step", "tokens computed again") if points else None


def priced_chart(trace: Trace) -> Any:
    found = steps_of(trace, "priced")
    if not found:
        return None
    words = {"separate": "a copy each", "best": "shared, best", "this_run": "as in this run", "worst": "shared, worst"}
    return charts.bars({"MiB": [(words[name], found[-1].mib[name]) for name in words]}, "", "MiB of KV in bf16")


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**The search.** In every step each beam is continued with every token; the candidates with the greatest sum of
log-probabilities become the next beams. Twice as many candidates as beams are looked at, so that enough go on when
some end. A candidate that ends is taken as an output if it is among the best `beams` candidates. Conventions are those
of transformers: score = sum of log-probabilities / length^length_penalty, the end token counts in the length, the
prompt does not. Early stopping *false* ends the search when the best beam, judged at its present length, cannot beat
the worst of the outputs; *never* judges it at the greatest length if the penalty is positive; *true* stops as soon as
enough outputs have ended. The tests compare beams and scores with transformers.

**The blocks.** K and V of all layers lie in a pool of blocks; a block number means the same place in every layer. A
beam is a table of block numbers. A fork copies the table, not the rows, and raises each block's ref_count. Before a
token is written, the last block is looked at: held by several, it is copied first (copy-on-write); held by one, it is
written in place; full, a new block follows. Full blocks are never written to, so they are never copied. A block whose
last holder is pruned goes back to the pool.

**The pass.** All beams share one pass. Its attention reads each beam's rows through its block table: on this machine
by gathering them for one layer at a time, where a server's kernel reads them in place. The search runs a second time
beside it with a copied cache for each beam. In fp32 on one machine every log-probability is the same number; a
rounding that depends on where rows lie would show as a gap.

**Memory** is blocks in use times the bytes of one block of the tensors that this run holds. The copied lane holds each
beam's blocks for itself.

**What vLLM does today.** Since version 0.6.3 beam search stands outside its engine: in each step every beam is
sent as a request for one token with 2 × beams log-probabilities, and what is shared comes from the prefix cache. That
cache knows full blocks only, and the last token is always computed, so each beam computes its unfilled tail again and
holds it in a block of its own. There is no fork, and nothing is copied. That lane is worked out by this rule from the
beams of this run. vLLM's outputs can differ from these: it divides by the length of prompt and output without the end
token, takes every ended candidate, and searches to the last step.

**Priced.** *At best* the beams differ in their last block only; *at worst* they part right after the prompt. *As in
this run* repeats this run's forks over the priced length. KV is priced in bf16.
"""

QUESTIONS = (
    Question(
        ask="Four beams share 1,000 prompt tokens in blocks of 16. What does the first fork copy? And with 992?",
        answer=(
            "1,000 tokens fill 62 blocks and half of the 63rd. All four tables list the same 63 blocks.",
            "Three of the four beams copy the half-full block before they write; the last one then holds it alone.",
            "992 tokens are 62 full blocks: nobody writes to them, so nothing is copied.",
        ),
        follow_ups=("Which block size never copies? (1: a block is full as soon as it is written.)",),
        mistakes=("Copying the whole prompt at a fork.", "Four copies instead of three."),
        preset="llama_1000",
    ),
    Question(
        ask="How much KV memory do four beams need on Llama 3.1 8B after 1,000 + 200 tokens?",
        answer=(
            "A token costs 2 × 32 layers × 8 KV heads × 128 × 2 bytes = 128 KiB, a block of 16 tokens 2 MiB.",
            "A copy each: 4 × 75 blocks = 600 MiB.",
            "Shared: between 78 blocks, 156 MiB, and 114 blocks, 228 MiB, depending on when the beams parted.",
        ),
        follow_ups=("What brings a run near the best case? (Beams that descend from one recent ancestor.)",),
        mistakes=("Quoting the saving without saying where the beams part.",),
        preset="llama_1000",
    ),
    Question(
        ask="What happens if a server forgets copy-on-write?",
        answer=(
            "Siblings write their token into the same slot of the same block; the last one wins.",
            "Every other beam then attends to a token that it never had. Nothing crashes; the scores are wrong.",
            "The check: no write to a block whose ref_count is above 1.",
        ),
        follow_ups=("Why do prompts of whole blocks hide it? (Right after the fork nobody writes to a shared block.)",),
        mistakes=("Expecting an error message.",),
        preset="half_full",
    ),
    Question(
        ask="vLLM has no copy-on-write for beams any more. What does it pay instead?",
        answer=(
            "Each step sends every beam again as a new request; full blocks come from the prefix cache.",
            "The unfilled tail is computed again: up to block size − 1 tokens for each beam and step.",
            "It saves the engine from carrying a search in its scheduler; the bill is compute and request overhead.",
        ),
        follow_ups=("Which block size would waste nothing? (1, which its kernels do not offer.)",),
        mistakes=("Thinking the prompt is computed anew in each step.", "Thinking that nothing is shared."),
        preset="resubmitted",
    ),
    Question(
        ask="Two libraries give different beams for the same model and settings. What do you compare first?",
        answer=(
            "Does the end token count in the length, and does the prompt?",
            "When does the search stop, and is an ended candidate taken from outside the best few?",
            "How many candidates each beam offers, and how ties are broken.",
        ),
        follow_ups=("Which setting makes length irrelevant? (A length penalty of 0.)",),
        mistakes=("Looking for a numerical bug first.",),
        preset="penalty",
    ),
)

SOURCES = (
    ("Kwon et al. 2023: PagedAttention", "https://arxiv.org/abs/2309.06180"),
    ("vLLM RFC: beam search on top of the core", "https://github.com/vllm-project/vllm/issues/8306"),
    (
        "vLLM: offline beam search, source",
        "https://docs.vllm.ai/en/latest/api/vllm/entrypoints/generate/beam_search/offline/",
    ),
    ("vLLM: automatic prefix caching", "https://docs.vllm.ai/en/latest/design/prefix_caching/"),
    ("transformers: generation strategies", "https://huggingface.co/docs/transformers/generation_strategies"),
)

MEMORY_NOTE = (
    "Resubmitted beams hold as many blocks as shared ones: each has just written its own last block either way. What "
    "differs is the work."
)
RECOMPUTED_NOTE = "The unfilled tail of every beam, the new token apart: it grows until a block is full."


def code(params: Params) -> Sequence[Any]:
    return (beam_search, BlockTables.advance, BlockPool.append, resubmitted)


LAB = Lab(
    slug="beam_kv",
    title="Beams sharing KV",
    question="Four beams, one prompt: what do they share, when is a block copied, and what would separate caches cost?",
    group="sample and search",
    order=20,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Memory, step by step", memory_chart, MEMORY_NOTE),
        Chart("Resubmitting: tokens computed again", recomputed_chart, RECOMPUTED_NOTE),
        Chart("Priced", priced_chart, "The served model's search, from its shape, with the block size above."),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
