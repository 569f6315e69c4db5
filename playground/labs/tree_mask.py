"""Draft trees: their shape, their mask, and what verifying a tree gives over verifying a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.engine import decode
from playground.engine.cost import PROFILES, Priced, tensor_parallel
from playground.engine.divergence import between
from playground.engine.draft_trees import SHAPES, Shape, best_tree, chain, check_ranks
from playground.engine.drafters import Drafter, NoDrafter
from playground.engine.flattened import FlatDraft, IndexPositions
from playground.engine.length import Fixed
from playground.engine.metrics import count, ratio, summarise
from playground.engine.model import LanguageModel
from playground.engine.sampling import chain as knob_chain
from playground.engine.sampling import coins
from playground.engine.serving import Contender
from playground.engine.serving import priced as price_of
from playground.engine.stop import Stop
from playground.engine.trace import Lane, Pass, Trace
from playground.engine.tree_drafting import Drawn, Dynamic, Grower, Ranked
from playground.engine.tree_editing import add_children, check_room, prune, read_tree
from playground.engine.tree_report import (
    TreePlan,
    draft_times,
    drafted_shape,
    mask_cost,
    plan,
    position_errors,
    rank_shares,
)
from playground.engine.verify import verify_greedy, verify_sampling
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.views import charts, clock, draft_tree, html, kv, priced, race, speculation, tokens, verification

RANKS = (0.605, 0.112, 0.049, 0.033, 0.024)
SHAPE_NAMES = ("chain", "ten", "medusa", "dynamic", "best")
DRAFTERS = ("eagle3", "eagle", "mtp", "medusa", "tiny", "layer_skip")
MAX_NODES, MAX_LEVELS = 64, 16
MODELS = (
    "llama-3.3-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "smollm2-135m", "deepseek-v3",
)  # fmt: skip
LANES = ("tree", "chain", "plain")
TREE_TEXT = "The parent of each node in order, -1 at the top; parent:rank takes another candidate. Replaces the shape."
RANK_TEXT = "Chance that the drafter's candidate of each rank is the accepted one, the same at every node."


@dataclass(frozen=True)
class Params:
    target: str = control("default", "Target", "The model that decides.", choices=("default", "table"), free=True)
    prompt: str = control("Write a Python function that adds two numbers.", "Prompt", lines=3)
    drafter: str = control("eagle3", "Drafter", "The table target has layer_skip only.", choices=DRAFTERS)
    shape: str = control("ten", "Shape", "best and dynamic keep to the two limits below.", choices=SHAPE_NAMES)
    nodes: int = control(10, "Nodes", "Budget of best and dynamic.", min=1, max=MAX_NODES, step=1)
    max_depth: int = control(4, "Depth", "Budget of best and dynamic.", min=1, max=8, step=1)
    ranks: tuple[float, ...] = control(RANKS, "Chance of each rank", RANK_TEXT)
    chain_length: int = control(5, "Chain beside it", "Its length.", min=1, max=MAX_LEVELS, step=1)
    tree: str = control("", "Tree", TREE_TEXT, group="Edit the tree")
    prune: tuple[int, ...] = control((), "Prune", "These nodes and all below them.", group="Edit the tree")
    add: tuple[int, ...] = control((), "Add", "Then a child below each of these; -1 is the top.", group="Edit the tree")
    positions: str = control(
        "depths", "Positions", "indices is a mistake on purpose.", choices=("depths", "indices"), group="Run"
    )
    children: str = control(
        "likeliest", "Children", "drawn: without replacement, at temperatures above 0.", choices=("likeliest", "drawn"),
        group="Run",
    )  # fmt: skip
    priced_target: str = control("llama-3.3-70b", "Priced model", choices=MODELS, free=True, group="Price")
    priced_context: int = control(0, "Priced context", "Tokens each.", min=0, max=131_072, step=1, group="Price")
    level_cost: float = control(
        0.03, "Cost of a level", "Drafting one, in plain passes.", min=0, max=1, step=0.01, group="Price"
    )
    hardware: str = control(
        "h100", "Hardware", choices=("h100", "h200", "a100", "l4", "laptop"), free=True, group="Price"
    )
    tensor_parallel: int = control(8, "Devices", "They share every layer.", min=1, max=64, step=1, group="Price")
    profile: str = control("data_sheet", "Profile", choices=tuple(PROFILES), group="Price")
    temperature: float = control(0.0, "Temperature", "0 is greedy.", min=0, max=2, step=0.1, group="Run")
    max_new_tokens: int = control(24, "New tokens", min=1, max=128, step=1, group="Run")
    draft_layers: int = control(8, "Draft layers", "Of layer_skip.", min=1, max=64, step=1, group="Run")
    seed: int = control(0, "Seed", min=0, max=2**31 - 1, step=1, group="Run")
    dtype: str = control("auto", "Precision", choices=("auto", "fp32", "bf16"), group="Run")
    device: str = control("auto", "Device", choices=("auto", "cpu", "cuda"), free=True, group="Run")

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        if self.is_dynamic and (self.add or self.prune):
            raise BadInput("add and prune edit a fixed tree; a dynamic one is made anew in every pass.")
        if self.children == "drawn" and self.temperature == 0:
            raise BadInput("At temperature 0 a law has one token, so no second child can be drawn: raise temperature.")
        if self.children == "drawn" and self.is_dynamic:
            raise BadInput("A dynamic tree keeps nodes by confidence: drawn children would change the output's law.")
        shape = self.fixed
        if shape is not None:
            check_size(shape)

    @property
    def is_dynamic(self) -> bool:
        return self.shape == "dynamic" and not self.tree.strip()

    @property
    def fixed(self) -> Shape | None:
        """The tree after the edits; ``None`` for one that the drafter makes."""
        if self.is_dynamic:
            return None
        if self.tree.strip():
            shape = read_tree(self.tree)
        elif self.shape == "best":
            shape = best_tree(self.ranks, self.nodes, self.max_depth)
        else:
            shape = chain(self.chain_length) if self.shape == "chain" else SHAPES[self.shape]
        return add_children(prune(shape, self.prune), self.add)

    def grower(self, shape: Shape | None) -> Grower:
        if shape is None:
            return Dynamic(self.nodes, self.max_depth)
        return Drawn(shape, self.knobs) if self.children == "drawn" else Ranked(shape)

    @property
    def knobs(self) -> tuple[Any, ...]:
        return knob_chain(temperature=self.temperature)


def check_size(shape: Shape) -> None:
    """Raises ``BadInput`` naming the first node that is too many or too deep."""
    over = (i for i, depth in enumerate(shape.depths) if i >= MAX_NODES or depth > MAX_LEVELS)
    if (node := next(over, None)) is not None:
        raise BadInput(f"node {node} is too many: a tree has at most {MAX_NODES} nodes on {MAX_LEVELS} levels.")
    if not len(shape):
        raise BadInput("The tree has no node left: take back a prune, or add a node below -1.")


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The tree at once; then tree, chain and plain decoding on one clock; then what a mask and a pass cost."""
    served = serve(params, models)
    model = yield from models.load(params.target, params.dtype, params.device)
    prompt, shape = model.chat(params.prompt), params.fixed
    if not prompt:
        raise BadInput("The prompt is empty: the model needs at least one token to go on from.")
    trace = Trace(texts=model.texts(prompt), provenance={**model.provenance(), "drafter": params.drafter})
    for name in (*LANES, "plan", "mask", "times", "positions", "priced"):
        trace = trace.open(name, prompt if name in LANES else ())
    trace = trace.add("priced", served)
    if shape is not None:
        check_room(shape, len(prompt), model.max_tokens)
        trace = tell_plan(trace, params, shape, len(prompt))
        yield trace
    try:
        drafters = []
        for grower in (params.grower(shape), params.grower(chain(params.chain_length))):
            drafters.append((yield from make_drafter(params, models, model, prompt, grower)))
    except ValueError as error:  # without a drafter the tree itself can still be shown
        yield replace(trace, provenance={**trace.provenance, "missing": str(error)})
        return
    lanes = dict(zip(LANES, (*drafters, NoDrafter()), strict=True))
    yield Progress("Warming up")
    next(speculate(params, model, prompt[:2], NoDrafter(), "plain"), None)
    for name, step in decode.race({name: speculate(params, model, prompt, d, name) for name, d in lanes.items()}):
        trace = trace.add(name, step, model.texts(step.tokens))
        if not trace["plan"].steps and name == "tree" and step.nodes:
            trace = tell_plan(trace, params, drafted_shape(step), len(prompt))
        if trace["plan"].steps:
            yield trace
    yield from measure(params, model, prompt, trace)


def serve(params: Params, models: Models) -> Priced:
    """The model and hardware of the price; raises ``ValueError`` with the names there are."""
    pod = tensor_parallel(models.hardware(params.hardware), params.tensor_parallel)
    return Priced(models.shape(params.priced_target), pod, PROFILES[params.profile])


def tell_plan(trace: Trace, params: Params, shape: Shape, num_prompt: int) -> Trace:
    planned = plan(shape, params.ranks, params.chain_length)
    return trace.add("plan", planned).add("mask", mask_cost(shape, num_prompt))


def make_drafter(
    params: Params, models: Models, model: LanguageModel, prompt: Sequence[int], grower: Grower
) -> Iterator[Update]:
    options = {"knobs": params.knobs, "draft_layers": params.draft_layers, "grower": grower}
    return (yield from models.drafter(params.drafter, model, prompt, **options))


def speculate(
    params: Params, model: LanguageModel, prompt: Sequence[int], drafter: Drafter, lane: str
) -> Iterator[Pass]:
    """The one loop; the mistake of flattened positions, when asked for, is the tree lane's alone."""
    session = model.session(prompt, drafter.taps)
    shape = params.fixed
    depth = params.chain_length if lane == "chain" else shape.max_depth if shape else params.max_depth
    return decode.speculate(
        IndexPositions(session) if params.positions == "indices" and lane == "tree" else session,
        drafter,
        rule=verify_greedy if params.temperature == 0 else verify_sampling,
        length=Fixed(depth),
        coin=coins(params.seed),
        knobs=params.knobs if params.temperature else (),  # greedy verification needs none, and p stays to be seen
        stop=Stop(model.eos_ids),
        max_new_tokens=params.max_new_tokens,
    )


def measure(params: Params, model: LanguageModel, prompt: Sequence[int], trace: Trace) -> Iterator[Update]:
    """What positions by index do to the laws of one draft; the time of a pass by the shape of its draft."""
    drafted = next((step for step in trace["tree"].steps if step.nodes), None)
    if drafted and params.positions == "indices":
        yield Progress("Scoring one draft at the right and at the wrong positions")
        before = [*prompt, *trace["tree"].output_tokens][: drafted.start]
        errors = position_errors(model.session(before), before, drafted)
        trace = trace.add("positions", errors)
        yield trace
    if not trace["plan"].steps:
        yield trace
        return
    yield Progress("Measuring a pass by the shape of its draft")
    n = len(trace["plan"].steps[0].parents)
    shapes = {"no draft": Shape(), f"chain of {params.chain_length}": chain(params.chain_length)}
    shapes |= {f"chain of {n}": chain(n), f"tree of {n}": trace["plan"].steps[0].shape}
    session = model.session([*prompt, *trace["plain"].output_tokens[:1]])
    for timed in draft_times(session, shapes):
        trace = trace.add("times", timed)
        yield trace


# --- Figures ----------------------------------------------------------------------------------------------------------


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def planned_of(trace: Trace) -> TreePlan | None:
    return next(iter(steps_of(trace, "plan")), None)


def summary(trace: Trace) -> dict[str, Any]:
    """The tree, its mask, tokens per pass expected and measured, times, and what wrong positions did."""
    params = trace.provenance.get("params", {})
    tree, chained, plain = (Lane(name, (), tuple(steps_of(trace, name))) for name in LANES)
    planned, costs = planned_of(trace), next(iter(steps_of(trace, "mask")), None)
    errors = next(iter(steps_of(trace, "positions")), None)
    found = between(tree, plain, str(trace.provenance.get("dtype", "fp32")))
    both_ended = bool(tree.finish and plain.finish)
    is_greedy = params.get("temperature", 0) == 0
    speeds = {lane.name: summarise(lane)["tokens_per_second"] for lane in (tree, chained, plain)}
    return {
        "nodes": len(planned.parents) if planned else None,
        "mask_ones": planned.shape.mask_ones if planned else None,
        "positions": positions(planned, params.get("positions") == "indices") if planned else None,
        "expected_tokens": planned.expected_tokens if planned else None,
        "chain_expected_tokens": planned.chain_expected_tokens if planned else None,
        "measured_tokens": count(tree.steps).mean_acceptance_length,
        "chain_measured_tokens": count(chained.steps).mean_acceptance_length,
        "mask_bytes": costs.tree_bytes if costs else None,
        "pass_mask_bytes": costs.pass_bytes if costs else None,
        "mask_ms": costs.build_ms if costs else None,
        "pass_ms": {timed.name: timed.ms for timed in steps_of(trace, "times")},
        "rank_shares": rank_shares(tree.steps),
        "tokens_per_second": speeds["tree"],
        "chain_tokens_per_second": speeds["chain"],
        "plain_tokens_per_second": speeds["plain"],
        "measured_speedup": ratio(speeds["tree"] or 0, speeds["plain"] or 0) if speeds["tree"] else None,
        "identical_to_plain": None if not is_greedy else False if found else True if both_ended else None,
        "output_tokens": len(tree.output_tokens),
        "target_passes": len(tree.steps),
        "chain_target_passes": len(chained.steps),
        "finish_reason": tree.finish,
        "position_error": max(errors.total_variation, default=None) if errors else None,
        "position_flips": sum(errors.flips) if errors else None,
        "missing": trace.provenance.get("missing"),
        "priced": prices(trace),
    }


def contenders(trace: Trace) -> list[Contender]:
    """The tree and the chain beside it, with the tokens per pass that the stated chances give."""
    planned, params = planned_of(trace), trace.provenance.get("params", {})
    if planned is None or "level_cost" not in params:
        return []
    cost, alpha = params["level_cost"], next(iter(params["ranks"]), 0.0)
    depth, k = planned.shape.max_depth, planned.chain_length
    tree = Contender("tree", cost, (1.0,) * depth + (planned.expected_tokens,), depth, alpha, len(planned.parents))
    return [tree, Contender("chain", cost, (1.0,) * k + (planned.chain_expected_tokens,), k, alpha)]


def prices(trace: Trace) -> dict[str, Any] | None:
    """Tree, chain and plain decoding on the priced model; ``k`` of a change is the winner's number of levels."""
    found, served = contenders(trace), steps_of(trace, "priced")
    return price_of(served[0], found, trace.provenance["params"]["priced_context"]) if found and served else None


def positions(planned: TreePlan, by_index: bool) -> tuple[int, ...]:
    """Offsets in position of the last committed token and of every node, as the pass was given them."""
    kind = FlatDraft if by_index else None
    return (0, *kind(planned.ranks, planned.parents).depths) if kind else planned.shape.positions


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    s = result
    same = {True: "yes", False: "no", None: "–"}[s["identical_to_plain"]]
    return (
        Figure("–" if s["nodes"] is None else f"{s['nodes']}", "nodes in the tree", "exact"),
        Figure("–" if s["mask_ones"] is None else f"{s['mask_ones']}", "ones in its mask", "exact"),
        Figure(
            f"{html.number(s['expected_tokens'], 3)} / {html.number(s['chain_expected_tokens'], 3)}",
            "expected tokens per pass, tree / chain",
            "exact",
        ),
        Figure(
            f"{html.number(s['measured_tokens'])} / {html.number(s['chain_measured_tokens'])}",
            "tokens per pass with a draft, tree / chain",
            "measured",
        ),
        Figure(same, "same text as plain", "measured"),
    )


# --- Pictures ---------------------------------------------------------------------------------------------------------


def num_frames(trace: Trace) -> int:
    """The plan, a frame per pass of the tree lane, and what comes behind."""
    return bool(planned_of(trace)) + len(steps_of(trace, "tree")) + len(closing(trace))


def closing(trace: Trace) -> list[Callable[[Trace], Frame]]:
    """The frames behind the passes: of all lanes, of wrong positions; or of why there are no lanes."""
    if "missing" in trace.provenance:
        return [missing_frame]
    if not trace.lanes or not all(trace[name].finish for name in LANES):
        return []
    return [end_frame, *([position_frame] if steps_of(trace, "positions") else [])]


def frame(trace: Trace, index: int) -> Frame:
    passes, first = steps_of(trace, "tree"), int(planned_of(trace) is not None)
    if index < first:
        return plan_frame(trace)
    if index < first + len(passes):
        return pass_frame(trace, index - first)
    return closing(trace)[index - first - len(passes)](trace)


def missing_frame(trace: Trace) -> Frame:
    why = trace.provenance["missing"]
    return Frame(why, html.frame(html.note(f"{why} Nothing was measured.", "warn")))


def position_frame(trace: Trace) -> Frame:
    """What positions by index did to the laws of the first draft."""
    errors = steps_of(trace, "positions")[0]
    step = next(step for step in steps_of(trace, "tree") if step.start == errors.start)
    aside = "half the sum of absolute differences to the law at the right positions"
    body = html.frame(
        html.note(
            "The first draft of this run, scored twice: at the positions of its depths and at those of its indices. "
            "The mask was the same. A node that moved far answers for another place of the text."
        ),
        html.section("How far each law moved", draft_tree.moved(step, trace.texts, errors), aside),
        html.detail(),
    )
    flips = html.count(sum(errors.flips), "node")
    return Frame(f"Wrong positions change the target's choice after {flips} of {len(errors.flips)}.", body)


def plan_frame(trace: Trace) -> Frame:
    """The tree, its mask and its flattened order."""
    planned = planned_of(trace)
    shape, costs, on_server = planned.shape, trace["mask"].steps[0], prices(trace)
    by_index = trace.provenance.get("params", {}).get("positions") == "indices"
    aside = f"{shape.mask_ones} ones of {costs.tree_bytes}"
    size = f"{html.count(len(shape), 'node')}, {html.count(shape.max_depth, 'level')}"
    price = (
        f"The tree part is {costs.tree_bytes:,} bytes at one byte an entry ({costs.packed_bytes:,} packed) and took "
        f"{html.number(costs.build_ms, 3)} ms to make; with the columns of the text the pass is given "
        f"{costs.pass_bytes:,} bytes."
    )
    body = html.frame(
        html.section("The tree", draft_tree.drawing(shape), size),
        html.section("Tree mask", draft_tree.mask(shape) + html.detail("Move to a row with Tab to hear it."), aside),
        html.note(price),
        html.section(
            "Flattened order", draft_tree.order(planned, by_index), "position counted from the last committed token"
        ),
        priced.panel(on_server, ("tree", "chain")) if on_server else None,
    )
    e, alone = html.number(planned.expected_tokens, 3), html.number(planned.chain_expected_tokens, 3)
    said = f"{size}, {shape.mask_ones} ones in the mask. Expected tokens per pass: {e}; a chain of "
    return Frame(f"{said}{planned.chain_length}: {alone}.", body)


def pass_frame(trace: Trace, index: int) -> Frame:
    """One pass of the tree lane."""
    lane = trace["tree"]
    step: Pass = lane.steps[index]
    before = [*lane.prompt, *(out.token for earlier in lane.steps[:index] for out in earlier.outputs)]
    text = tokens.context_strip(trace.texts, before, verification.new_tokens(step, trace.texts))
    shape = drafted_shape(step)
    body = html.frame(
        html.section("Text so far", text, f"{len(before):,} tokens, then {len(step.outputs)} new"),
        html.section("The tree", draft_tree.pass_drawing(step, shape, trace.texts), html.count(len(shape), "node"))
        if step.nodes
        else None,
        html.section("Nodes in flattened order", draft_tree.judged(step, trace.texts), "a row of KV each")
        if step.nodes
        else None,
        html.detail(),
        html.section("KV rows", kv.strips(step.target_kv, step.drafter_kv)),
        clocks(trace, step.ended_ms),
        html.note(step.note, "warn") if step.note else None,
        tokens.legend(("accepted", "rejected", "recovered", "bonus", "unjudged")),
    )
    return Frame(draft_tree.says(step) + (f" {step.note}" if step.note else ""), body)


def end_frame(trace: Trace) -> Frame:
    """All lanes: passes, tokens, speed, and the output of the tree."""
    lanes = [trace[name] for name in LANES]
    rows = []
    for lane in lanes:
        s = summarise(lane)
        per_pass = s["mean_acceptance_length"] if lane.name != "plain" else 1.0
        rows.append([lane.name, s["output_tokens"], s["target_passes"], per_pass, s["tokens_per_second"]])
    head = ["lane", "tokens", "target passes", "tokens per pass with a draft", "tokens per second"]
    text = race.output(trace["tree"], trace.texts)
    greedy = trace.provenance.get("params", {}).get("temperature", 0) == 0
    found = between(trace["tree"], trace["plain"], str(trace.provenance.get("dtype", "fp32"))) if greedy else None
    verdict = race.difference(found, race.Race(trace["tree"], trace["plain"], trace.texts)) if found else None
    body = html.frame(
        html.section("Tree and chain", html.table(head, rows, "Lanes"), "measured"),
        html.section("Output of the tree lane", text + html.detail(), race.size(trace["tree"])),
        verdict,
        clocks(trace, max(lane.steps[-1].ended_ms for lane in lanes if lane.steps)),
        tokens.legend(("accepted", "recovered", "bonus", "plain")),
    )
    tree, chained = (html.number(summarise(lane)["mean_acceptance_length"]) for lane in lanes[:2])
    return Frame(f"Tokens per pass with a draft: tree {tree}, chain {chained}.", body)


def clocks(trace: Trace, until_ms: float) -> Any:
    drawn = [clock.lane(trace[name], until_ms, is_plain=name == "plain") for name in LANES]
    return html.section("One clock, in ms, from the prompt on", clock.clock(drawn), clock.keys())


def rank_chart(trace: Trace) -> Any:
    """The stated chance of each rank beside the share measured in this run."""
    shares = rank_shares(steps_of(trace, "tree"))
    if not shares:
        return None
    stated = trace.provenance.get("params", {}).get("ranks", ())
    series = {"measured": list(enumerate(shares, start=1)), "stated": list(enumerate(stated, start=1))}
    fig = charts.bars(series, "rank of the candidate", "accepted")
    return fig.update_yaxes(range=[0, 1.05], tickformat=".0%").update_xaxes(dtick=1)


def time_chart(trace: Trace) -> Any:
    """Measured time of a pass by the shape of its draft."""
    timed = steps_of(trace, "times")
    return charts.bars({"pass": [(t.name, t.ms) for t in timed]}, "", "ms") if len(timed) > 1 else None


def price_chart(trace: Trace) -> Any:
    """Speed of tree and chain over the batch, with the batches at which the winner changes."""
    price = prices(trace)
    if price is None:
        return None
    served, context = steps_of(trace, "priced")[0], price["context"]
    return speculation.contenders_over_batch(served, contenders(trace), context, price["flips"])


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**Why a tree.** A chain stakes everything on the first guess: when it falls, the rest falls with it. A tree offers
second and third candidates at the places where the first one is unsure. The target scores all nodes in *one* pass.

**The mask.** The nodes are laid out one after another like a text, yet they are several texts at once. So every row
sees the committed text, its own ancestors and itself, and no cousin. Each row of the table has `depth + 1` ones inside
the tree, because it sees one node per level above it and the last committed token.

**Positions are depths.** Two siblings are alternatives for the *same* place in the text, so they share a position: that
of their depth. Numbering the flattened list instead tells attention that a node stands further away than it does. The
mask still hides the right rows, no error is raised, and the laws are wrong. Set *positions* to `indices` to see it.

**Verification.** From the top: the target's law after the last accepted node judges its children one after another.
Greedily, the child with the target's own choice stands. With a temperature a child x chosen without chance stands
with probability p(x), and after a rejection x leaves p before its sibling is judged; a child drawn from q is judged
with q, and what is left, max(p − q, 0), judges the next. Both keep the target's law exactly.

**KV rows.** The pass writes a row for every node. Kept are the rows of the accepted path; they are moved together,
because they need not be neighbours in the flattened order. Their positions were right already, so nothing is rotated
again.

**The best tree.** If the candidate of rank r is accepted with chance a_r at every node, a node is worth the product
along its path, and a pass yields 1 plus the sum over nodes. Taking the most valuable node that can be attached, again
and again, gives the best tree for a budget. The chart holds the stated chances against those of this run: they are
neither independent of depth nor of the text, which is what the dynamic tree answers. It expands the nodes in which
the drafter itself has most confidence and keeps the best of all. Its children are chosen without chance; keeping
*drawn* children by confidence would prefer lucky draws and bias the output.

**What it costs.** The mask is a few bytes. The nodes are positions of the pass, and those are paid for: the chart of
pass times shows the tree beside a chain of as many nodes, where only the mask differs, and beside the shorter chain.
For a served model the last chart prices both with the stated chances: while a pass waits for weights, nodes are free
and the tree wins; once the batch fills the compute units each node costs, and the chain wins, later plain decoding.
A longer context moves both changes up, because reading KV hides more nodes.
"""

QUESTIONS = (
    Question(
        ask="You verify a draft tree in one pass. What goes into the mask, which position does each node get, and why?",
        answer=(
            "A node sees the committed text, its ancestors and itself; cousins are other texts.",
            "Its position is that of its depth: siblings are alternatives for one place.",
            "The rows of the accepted path are kept and moved together; they were computed at the right positions.",
        ),
        follow_ups=(
            "How many ones does the mask of a chain of n have? (All of the lower triangle.)",
            "What breaks if positions follow the flattened order? (Laws, silently: the mask is still right.)",
        ),
        mistakes=("Giving siblings successive positions.", "Letting a node see its siblings."),
        preset="flattened_positions",
    ),
    Question(
        ask="Ten nodes: when does a tree beat a chain, and when does it lose?",
        answer=(
            "It wins when the second and third candidates are worth more than the fourth and fifth level of the first.",
            "It needs a pass whose time hardly grows with positions: a small batch.",
            "At a large batch each extra node costs time, and the shorter chain wins.",
        ),
        follow_ups=("How would you choose the nodes? (Greedily by the product of chances along the path.)",),
        mistakes=("Counting accepted tokens without the cost of the nodes.",),
        preset="ten_nodes",
    ),
    Question(
        ask="Why are the children of EAGLE-2's dynamic tree the top candidates, not samples?",
        answer=(
            "Nodes are kept by confidence. Keeping drawn children by confidence changes the law they were drawn from.",
            "Candidates chosen without chance have q = 1: accept with p(x), and take x out of p after a rejection.",
        ),
        follow_ups=("What does that cost? (Acceptance: p at the candidates instead of the overlap of p and q.)",),
        mistakes=("Using the soft q for a token that was not drawn from it.",),
        preset="dynamic",
    ),
)

SOURCES = (
    ("Miao et al. 2023: SpecInfer, tree-based speculative inference", "https://arxiv.org/abs/2305.09781"),
    ("Cai et al. 2024: Medusa", "https://arxiv.org/abs/2401.10774"),
    ("Li et al. 2024: EAGLE-2, dynamic draft trees", "https://arxiv.org/abs/2406.16858"),
    ("Chen et al. 2024: Sequoia, optimal trees", "https://arxiv.org/abs/2402.12374"),
)


def code(params: Params) -> Sequence[Callable[..., Any]]:
    """The functions that made and judged the tree."""
    make = Dynamic.grow if params.is_dynamic else best_tree if params.shape == "best" else None
    return (*([make] if make else []), verify_greedy if params.temperature == 0 else verify_sampling)


LAB = Lab(
    slug="tree_mask",
    title="Draft trees and their mask",
    question="How does one target pass verify a whole tree of guesses, and when is a tree better than a chain?",
    group="draft",
    order=40,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=num_frames,
    charts=(
        Chart(
            "Chance of each rank, stated and measured",
            rank_chart,
            "Measured below accepted nodes of this run; few passes give rough shares.",
        ),
        Chart(
            "Time of a pass by its draft",
            time_chart,
            "Measured here, the fastest of several. The tree and the longest chain differ in the mask only.",
        ),
        Chart(
            "Speed over batch, tree and chain",
            price_chart,
            "Priced: the stated chances of the ranks, a cost for each level, the model and hardware of the controls.",
        ),
    ),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
