"""Precision drift: one target in several numerics, and which of them a lossless rule can be lossless for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.engine import drift_report as report
from playground.engine.decode import speculate
from playground.engine.drafters import Drafter, DraftModel, Replay
from playground.engine.drift import Reader, Tried, beside, free_run, lockstep, reshaped
from playground.engine.drift_breaks import disturbed, places_of
from playground.engine.length import Fixed
from playground.engine.model import LanguageModel
from playground.engine.precision import NUMERICS, Variant, e4m3, per_row, per_tensor
from playground.engine.sampling import Temperature, coins
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.verify import verify_greedy
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, drift, drift_breaks, html

PARTS = ("shapes", "drafts", "own", "as_drafter", "as_target")


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "A hub id or a folder works too.", choices=("default",), free=True)
    prompt: str = control("Write one sentence about the sea.", "Prompt", lines=2, max_chars=4_000)
    numerics: tuple[str, ...] | None = control(None, "Numerics", "None ticked: all.", choices=tuple(NUMERICS))
    measure: tuple[str, ...] | None = control(None, "Experiments", "None ticked: all.", choices=(*PARTS, "none"))
    k: int = control(4, "Draft length k", "A wider pass has k + 1 tokens.", min=2, max=16, step=1)
    later: str = control(
        "\n\n\n", "Later drafts", "The drafts behind the first are replaced by this text.", lines=2, max_chars=200
    )
    places: int = control(1, "Places", "Of the text, at which drafts are replaced.", min=1, max=8, step=1)
    max_new_tokens: int = control(8, "Text", "Tokens that all numerics read.", min=2, max=48, step=1)
    seed: int = control(0, "Seed", "Greedy decoding draws nothing.", min=0, max=2**31 - 1, step=1, group="Run")
    dtype: str = control("auto", "Reference", "What all else is held against.", choices=("auto", "fp32", "bf16"))
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="Run")

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in PARTS if not self.measure or part in self.measure)


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """All numerics read the reference's text in step; then each experiment, one numerics after the other."""
    base = yield from models.load(params.target, params.dtype, params.device)
    prompt = read(base, params)
    variants = yield from load_variants(params, models, base)
    about = {**base.provenance(), "reference": reference_of(base), "parts": list(params.parts)}
    trace = Trace(texts=base.texts(prompt), provenance=about).open("numerics", prompt)
    for variant in variants.values():
        trace = trace.add("numerics", Tried.of(variant))
    yield trace
    targets = {name: variant.model for name, variant in variants.items() if variant.model}
    readers = {name: Reader(model, prompt) for name, model in targets.items()}
    for name in targets:
        trace = trace.open(f"law {name}", prompt)
    for name, law in lockstep(readers, readers[reference_of(base)], base.eos_ids, params.max_new_tokens):
        trace = trace.add(f"law {name}", law, base.texts([law.token, law.text_token]))
        yield trace
    scene = Scene(params, prompt, report.text(trace), readers, targets, base)
    for part in params.parts:
        for name in targets:
            yield Progress(f"{TITLES[part]}: {NUMERICS[name].title}")
            trace = trace.open(f"{LANES[part]} {name}", prompt)
            for step in EXPERIMENTS[part](scene, name):
                trace = shown(trace, f"{LANES[part]} {name}", step, base)
                yield Progress(f"{TITLES[part]}: {NUMERICS[name].title}")
            yield trace


def shown(trace: Trace, lane: str, step: Any, base: LanguageModel) -> Trace:
    """``trace`` with one more step and its texts; a step that grows takes the place of the one before."""
    if isinstance(step, Pass):
        return trace.add(lane, step, base.texts(step.tokens))
    lanes = tuple(Lane(each.name, each.prompt, (step,)) if each.name == lane else each for each in trace.lanes)
    return Trace(lanes, {**trace.texts, **base.texts(getattr(step, "tokens", ()))}, trace.provenance)


def read(base: LanguageModel, params: Params) -> list[int]:
    """The prompt as tokens, checked against what the model reads."""
    try:
        prompt = base.chat(params.prompt)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if not prompt:
        raise BadInput("The prompt is empty: write at least one word.")
    if "drafts" in params.parts and not base.encode(params.later):
        raise BadInput("later is empty: the later drafts need a text that replaces them.")
    if len(prompt) + params.max_new_tokens + params.k + 1 > base.max_tokens:
        raise BadInput(f"The prompt has {len(prompt):,} tokens; {base.name} reads {base.max_tokens:,}: shorten it.")
    return prompt


def reference_of(base: LanguageModel) -> str:
    return str(base.provenance().get("dtype", "fp32"))


def load_variants(params: Params, models: Models, base: LanguageModel) -> Generator[Progress, None, dict[str, Variant]]:
    """Every numerics asked for, the reference first; one that cannot be had carries the reason."""
    wanted = dict.fromkeys([reference_of(base), *(params.numerics or NUMERICS)])
    found: dict[str, Variant] = {}
    for name in wanted:
        try:
            found[name] = yield from models.variant(params.target, name, params.dtype, params.device)
        except ValueError as error:
            raise BadInput(str(error)) from None
    return found


@dataclass(frozen=True)
class Scene:
    """What the experiments of one run share."""

    params: Params
    prompt: list[int]
    text: list[int]
    readers: Mapping[str, Reader]
    targets: Mapping[str, LanguageModel]
    base: LanguageModel

    def greedy(self, target: LanguageModel, drafter: Drafter) -> Iterator[Pass]:
        """The one decoding loop, greedy, as long as the text."""
        return speculate(
            target.session(self.prompt),
            drafter,
            rule=verify_greedy,
            length=Fixed(self.params.k),
            coin=coins(self.params.seed),
            stop=Stop(self.base.eos_ids),
            max_new_tokens=len(self.text),
        )


def other_shape(scene: Scene, name: str) -> Iterator[Any]:
    return reshaped(scene.targets[name], scene.prompt, scene.text, scene.readers[name].logits, scene.params.k)


def other_drafts(scene: Scene, name: str) -> Iterator[Any]:
    k = scene.params.k
    places = places_of(len(scene.text), scene.params.places, k)
    later = scene.base.encode(scene.params.later)
    return disturbed(scene.targets[name], scene.prompt, scene.text, places, k, later)


def own_output(scene: Scene, name: str) -> Iterator[Any]:
    return free_run(scene.readers[name], scene.text, scene.base.eos_ids)


def as_drafter(scene: Scene, name: str) -> Iterator[Pass]:
    """The reference decides; this numerics drafts."""
    drafting = scene.targets[name].session(scene.prompt)
    return scene.greedy(scene.base, DraftModel(drafting, (Temperature(0.0),), name))


def as_target(scene: Scene, name: str) -> Iterator[Pass]:
    """This numerics decides; the reference's text is the draft."""
    return scene.greedy(scene.targets[name], Replay(tuple(scene.text), "reference"))


EXPERIMENTS: dict[str, Callable[[Scene, str], Iterator[Any]]] = {
    "shapes": other_shape,
    "drafts": other_drafts,
    "own": own_output,
    "as_drafter": as_drafter,
    "as_target": as_target,
}
LANES = {"shapes": "shapes", "drafts": "drafts", "own": "own", "as_drafter": "as drafter", "as_target": "as target"}
TITLES = {
    "shapes": "Other pass shape",
    "drafts": "Later and rejected drafts",
    "own": "Own output",
    "as_drafter": "Drafter in other numerics",
    "as_target": "Target in other numerics",
}


# --- Figures ----------------------------------------------------------------------------------------------------------


def summary(trace: Trace) -> dict[str, Any]:
    """Per numerics what ``drift_report.summarise`` says, and the text that all read."""
    text = report.text(trace)
    return {
        "reference": report.reference(trace) or None,
        "text": "".join(trace.texts.get(token, "") for token in text),
        "num_tokens": len(text),
        "numerics": {name: report.summarise(trace, name) for name in report.tried(trace)},
        "source": "measured",
    }


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    found = {name: each for name, each in result["numerics"].items() if each["runs"]}
    others = {name: each for name, each in found.items() if name != result["reference"]}

    def worst(key: str) -> tuple[str, str]:
        values = {name: each[key] for name, each in others.items() if each[key] is not None}
        name = max(values, key=values.get, default=None)
        return drift.small(values.get(name)), "" if name is None else f", {NUMERICS[name].title}"

    def at(key: str, words: str) -> Figure:
        value, name = worst(key)
        return Figure(value, words + name, "measured")

    return (
        Figure(f"{len(found)} of {len(result['numerics'])}", "numerics run here", "measured"),
        at("mean_tv", "largest mean TV from the reference"),
        at("later_draft_tv", "largest TV when only later drafts change"),
        at("trace_after_rejection_tv", "largest TV left by a rejected draft"),
        at("shape_noise_tv", "largest mean TV between pass shapes"),
    )


# --- Frames -----------------------------------------------------------------------------------------------------------


def scenes(trace: Trace) -> list[tuple[str, int]]:
    """The frames there are so far: who takes part, each place, each experiment by numerics, and the verdicts."""
    if not report.tried(trace):
        return []
    found = [("numerics", 0), *(("place", i) for i in range(report.num_places(trace)))]
    done = {part: names_of(trace, part) for part in PARTS}
    found += [(part, i) for part in PARTS for i in range(len(done[part]))]
    asked = trace.provenance.get("parts") or ()
    if asked and all(len(done.get(part, ())) == len(report.running(trace)) for part in asked):
        found.append(("verdicts", 0))
    return found


def names_of(trace: Trace, part: str) -> list[str]:
    """The numerics that have been through an experiment."""
    return [name for name in report.running(trace) if report.steps(trace, LANES[part], name)]


def num_frames(trace: Trace) -> int:
    return len(scenes(trace))


def frame(trace: Trace, index: int) -> Frame:
    kind, i = scenes(trace)[index]
    titles = {name: each.title for name, each in report.tried(trace).items()}
    if kind in EXPERIMENTS:
        names = names_of(trace, kind)[: i + 1]
        return Frame(f"{TITLES[kind]}: {titles[names[-1]]}.", html.frame(*PICTURES[kind](trace, names, titles)))
    return {"numerics": numerics_frame, "place": place_frame, "verdicts": verdicts_frame}[kind](trace, i, titles)


def numerics_frame(trace: Trace, index: int, titles: Mapping[str, str]) -> Frame:
    tried, reference = list(report.tried(trace).values()), report.reference(trace)
    here = len(report.running(trace))
    said = f"{here} of {len(tried)} numerics run here; the reference is {titles[reference]}."
    return Frame(said, html.frame(html.section("Who takes part", drift.numerics(tried, reference))))


def place_frame(trace: Trace, index: int, titles: Mapping[str, str]) -> Frame:
    laws, reference = report.place(trace, index), report.reference(trace)
    same = sum(each.is_same for each in laws.values())
    strip = drift.text_strip(report.text(trace), trace.texts, index)
    table = drift.place(laws, titles, trace.texts, reference)
    body = (
        html.section(f"Text of the reference, {titles[reference]}", strip, f"token {index + 1}"),
        html.section("The law of this token", table, "all have read the same tokens"),
        drift.parting(laws, titles, trace.texts),
    )
    return Frame(f"Token {index + 1}: {same} of {len(laws)} numerics choose the same token.", html.frame(*body))


def verdicts_frame(trace: Trace, index: int, titles: Mapping[str, str]) -> Frame:
    found = {name: report.summarise(trace, name) for name in report.running(trace)}
    table = drift.verdicts(found, titles)
    note = html.note(
        "A rule is lossless for the law of its target under three conditions: the law depends on the prefix alone "
        "(causal), passes of any shape give the same law (repeatable), and a rejected draft leaves nothing behind "
        f"(traceless). Repeatable is a mean below {report.REPEATABLE_TV:g}; the other two are to the bit."
    )
    return Frame("What each numerics came to.", html.frame(html.section("Verdicts", table, "total variation"), note))


def steps_by(trace: Trace, part: str, names: Sequence[str]) -> dict[str, Any]:
    return {name: report.last(trace, LANES[part], name) for name in names}


def shapes_picture(trace: Trace, names: Sequence[str], titles: Mapping[str, str]) -> list[html.Text]:
    found = steps_by(trace, "shapes", names)
    width = next(iter(found.values())).width
    note = (
        f"The same text, read one token per pass and {width} tokens per pass. What is left in the reference is the "
        "noise floor: sums in another order."
    )
    return [html.section("Other pass shape", drift_breaks.shapes(found, titles), "bars: logarithmic"), html.note(note)]


def drafts_picture(trace: Trace, names: Sequence[str], titles: Mapping[str, str]) -> list[html.Text]:
    found = steps_by(trace, "drafts", names)
    return [
        html.section(
            "A. Only later drafts change", drift_breaks.drafts(found, titles), "a row that saw the same tokens"
        ),
        html.section("B. Two drafts, both rejected", drift_breaks.traces(found, titles), "the pass behind"),
    ]


def own_picture(trace: Trace, names: Sequence[str], titles: Mapping[str, str]) -> list[html.Text]:
    return [drift_breaks.free(steps_by(trace, "own", names), report.text(trace), trace.texts, titles)]


def drafter_picture(trace: Trace, names: Sequence[str], titles: Mapping[str, str]) -> list[html.Text]:
    lanes = {name: trace[f"{LANES['as_drafter']} {name}"] for name in names}
    found = {name: report.summarise(trace, name) for name in names}
    same = {name: [("the reference's text:", each["same_output_as_drafter"])] for name, each in found.items()}
    note = "The reference decides, so its text comes out whoever drafts; only the acceptance moves."
    return [drift_breaks.speculated(lanes, same, trace.texts, titles), html.note(note)]


def target_picture(trace: Trace, names: Sequence[str], titles: Mapping[str, str]) -> list[html.Text]:
    lanes = {name: trace[f"{LANES['as_target']} {name}"] for name in names}
    found = {name: report.summarise(trace, name) for name in names}
    same = {
        name: [
            ("its own plain text:", each["target_follows_itself"]),
            ("the reference's text:", each["target_follows_reference"]),
        ]
        for name, each in found.items()
    }
    note = "This numerics decides, the reference drafts: lossless means its own plain text, not the reference's."
    return [drift_breaks.speculated(lanes, same, trace.texts, titles), html.note(note)]


PICTURES: dict[str, Callable[..., list[html.Text]]] = {
    "shapes": shapes_picture,
    "drafts": drafts_picture,
    "own": own_picture,
    "as_drafter": drafter_picture,
    "as_target": target_picture,
}


# --- Charts -----------------------------------------------------------------------------------------------------------


def place_chart(trace: Trace) -> Any:
    """Distance from the reference along the text."""
    others = [name for name in report.running(trace) if name != report.reference(trace)]
    series = {}
    for name in others:
        points = [(i + 1, each.tv or None) for i, each in enumerate(report.steps(trace, "law", name))]
        if points:
            series[report.tried(trace)[name].title] = points
    return charts.lines(series, "token of the text", "total variation", log_y=True) if series else None


def noise_chart(trace: Trace) -> Any:
    """Drift beside what another shape of the pass does to the same numerics."""
    found = {name: report.summarise(trace, name) for name in report.running(trace)}
    if all(each["shape_noise_tv"] is None for each in found.values()):
        return None
    title = {name: each.title for name, each in report.tried(trace).items()}
    series = {
        words: [(title[name], each[key] or None) for name, each in found.items()]
        for words, key in (("from the reference", "mean_tv"), ("from another pass shape", "shape_noise_tv"))
    }
    return charts.bars(series, "", "mean total variation").update_yaxes(type="log")


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**Numerics.** One checkpoint, run in several ways. *FP32* and *BF16* are the weights as loaded. *FP8* is E4M3: four bits
of exponent, three of mantissa, largest number 448. A scale brings values into that range; who shares a scale is what
this page is about. *FP8 weights* have a scale for each output channel, made once. Activations get theirs in every pass:
one *per token*, or one *per tensor*, for all tokens of the pass. An *FP8 KV cache* rounds keys and values when they are
written: under a *fixed* scale, under the largest entry written so far (*running maximum*), or fixed but with the rows
of the present pass read before they are rounded (*draft window unquantised*). *INT8* and *NF4* are those of
bitsandbytes. The output head, the norms and the attention's own products stay as loaded.

**Clamp, then cast.** What a cast makes of a value beyond 448 differs between libraries: 448, NaN. So values are clamped
first. A tensor of zeros has no largest entry to divide by: its scale is 1, and it stays zero.

**Drift.** The reference writes a text greedily. All numerics read that text, one token per pass. At each token stand
KL(reference ‖ this), the total variation (the most by which any event's probability differs), and each one's own
choice. Choices part where a numerics moves the difference of two logits by more than the reference's lead.

**What lossless needs.** Speculative decoding gives the target's law if that law exists: it must depend on the prefix
alone, not on what else is in the pass, and a rejected draft must leave nothing behind. The rule itself is never touched
in the two experiments.

**A. Only later drafts change.** Two drafts share their first token. The rows before and behind it have seen the same
tokens in both passes, so their laws should be the same numbers. With a scale per tensor a large activation of a *later*
draft coarsens the grid for all: the earlier law moves. The control has a scale per token. LLM.int8() also looks at the
whole pass: a column in which any token has an outlier is computed in 16 bit for all.

**B. What a cache remembers.** Both drafts are then rejected, the same token is committed, and the next law is looked
at. A running maximum has seen the rejected rows; a fixed scale has not. A window that is read unquantised forgets the
draft, but the same token is judged with other keys than later passes read: that shows between pass shapes.

**Pass shapes.** A pass over five tokens sums in another order than five passes over one. In FP32 that is noise of the
last bit. Where activations are rounded to FP8 in between, a last bit decides now and then which code an entry gets;
the next code is a step of 1/16, it passes through all further layers, and what comes out differs visibly. So scales per
token are causal and yet not repeatable, unless the kernels sum in one order whatever the pass.

**Drafter and target.** As *drafter*, other numerics change only the acceptance: sum min(p, q) = 1 − TV on average for
the rejection rule. As *target*, they are the law that comes out.

**Measured.** Everything here was run on this machine. The two passes of A and of B have the same shape, so sums are
taken in the same order and *bit-identical* means just that. The distance between pass shapes of the reference is the
noise floor. Bytes are those of the format; a format that the machine has no instructions for is emulated exactly, and
the first picture says so: times would mean nothing and are not shown.
"""

QUESTIONS = (
    Question(
        ask="You quantise the draft model to FP8. What happens to the output, and what to the speed?",
        answer=(
            "The output law stays the target's: q is only what the ratio p / q is taken with, and it is the true q.",
            "Acceptance becomes sum min(p, q) for the new q, usually a little lower.",
            "Drafting gets cheaper; whether that pays is acceptance against draft time.",
        ),
        follow_ups=("Which q must the ratio use? (That of the FP8 drafter, from which the token was drawn.)",),
        mistakes=("Saying that quality drops.", "Using the BF16 q for tokens that the FP8 drafter drew."),
        preset="drafter",
    ),
    Question(
        ask="You quantise the target to FP8 and keep a BF16 drafter. For which distribution is decoding lossless?",
        answer=(
            "For the FP8 target's own law: speculation follows the model that verifies.",
            "Against BF16 the texts part at the first place where the shift exceeds the lead.",
            "So compare speculative FP8 with plain FP8, and judge the quantisation apart.",
        ),
        follow_ups=("How far apart are the two laws? (Total variation along the text.)",),
        mistakes=("Comparing speculative FP8 with plain BF16 and calling the difference a bug of the rule.",),
        preset="target",
    ),
    Question(
        ask="Dynamic per-tensor activation scales are fast. Why are they not safe under speculative decoding?",
        answer=(
            "One scale for all tokens of the pass: a large activation in a later draft makes the grid coarser for all.",
            "The law of an earlier position then depends on the drafts behind it: there is no p(x | prefix).",
            "A scale per token depends on that token's own row only.",
        ),
        follow_ups=("Does batching do the same? (Yes: other requests in the batch move the law.)",),
        mistakes=("Blaming the causal mask of the attention.", "Thinking that only rejected tokens suffer."),
        preset="per_tensor",
    ),
    Question(
        ask="An FP8 KV cache scales by the largest entry seen so far. What does a rejected draft leave behind?",
        answer=(
            "Its rows are dropped, but the maximum that they raised stays.",
            "All later rows are rounded on a coarser grid than in plain decoding.",
            "A fixed, calibrated scale has no memory; or the maximum must be rolled back with the rows.",
        ),
        follow_ups=(
            "What if the draft window is read before it is rounded? (Verification sees other keys than later.)",
        ),
        mistakes=("Checking only that the row count is right after a rollback.",),
        preset="running_maximum",
    ),
    Question(
        ask="How do you tell a real difference of numerics from noise?",
        answer=(
            "Repeat the same numerics in another pass shape: that distance is the floor.",
            "Compare passes of one shape where you look for exact equality.",
            "At a parted token compare the shift of the two logits with the lead that had to be overcome.",
        ),
        follow_ups=("Why is FP8's floor higher than FP32's? (A flipped code is a step of 1/16, not of 2^-24.)",),
        mistakes=("Calling every parted text a bug.", "Taking one matching text as proof."),
        preset="floor",
    ),
)

SOURCES = (
    ("Micikevicius et al. 2022: FP8 formats for deep learning", "https://arxiv.org/abs/2209.05433"),
    ("Leviathan et al. 2023: speculative decoding", "https://arxiv.org/abs/2211.17192"),
    ("Dettmers et al. 2022: LLM.int8()", "https://arxiv.org/abs/2208.07339"),
    ("Dettmers et al. 2023: QLoRA (NF4)", "https://arxiv.org/abs/2305.14314"),
    ("vLLM: quantised KV cache", "https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/"),
)


def code(params: Params) -> Sequence[Callable[..., Any]]:
    return (e4m3, per_row, per_tensor, disturbed, beside)


LAB = Lab(
    slug="precision_drift",
    title="Precision drift",
    question="FP8 against BF16: lossless for which distribution, and which scales leave no such distribution at all?",
    group="numerics",
    order=10,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart("Distance from the reference", place_chart, "All have read the same tokens. An exact zero is a gap."),
        Chart("Drift and the floor", noise_chart, "Where the second bar is high, the numerics has no one law."),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
