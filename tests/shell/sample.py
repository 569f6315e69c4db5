"""A lab as somebody would add it: one file and its presets in a folder of its own. Its words are hostile on purpose."""

from __future__ import annotations

import json
from pathlib import Path

HOSTILE = (
    "${window.hacked=1}",
    "{{value}}",
    "`",
    "<img src=x onerror=window.hacked=1>",
    "\u202eabc",
    "\x07\n",
    "</section>",
)

SOURCE = """
from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from models.table import TableModel, random_law
from playground.engine.decode import speculate
from playground.engine.drafters import NGram
from playground.engine.length import Fixed
from playground.engine.sampling import coins
from playground.engine.trace import Trace
from playground.engine.verify import verify_greedy, verify_sampling
from playground.lab import BadInput, Figure, Frame, Lab, Progress, Question, control

WORDS = HOSTILE_WORDS
LOG = Path(__file__).with_name("ended.txt")


@dataclass(frozen=True)
class Params:
    prompt: str = control("``", "Prompt", "Words of the table.", lines=2)
    k: int = control(3, "Draft length k", "Tokens guessed per pass.", min=1, max=8)
    pause: float = control(0.0, "Pause", "Seconds per pass.", min=0, max=2, step=0.05, group="More")
    rule: str = control("sampling", "Rule", choices=("sampling", "greedy"), group="More")
    cap: int | None = control(None, "Cap", "Tokens; empty for 20.", min=1, max=40, group="More")
    lengths: tuple[int, ...] = control((1, 2), "Match lengths", min=1, max=4, group="More")
    marks: tuple[str, ...] | None = control(
        None, "Marks", "None ticked: all.", choices=("red", "green", "blue"),
        group="More",
    )
    breaks: bool = control(False, "Break after two steps", group="More")
    seed: int = control(1, "Seed", min=0, max=999)
    delay: float = control(0.0, "Delay", "Seconds before the first pass.", min=0, max=5, group="More")


def run(params, models):
    yield Progress("Preparing the table", 0.5)
    time.sleep(params.delay)
    model = TableModel(WORDS, random_law(len(WORDS), 7))
    prompt = model.encode(params.prompt)
    trace = Trace(provenance=model.provenance()).open("run", prompt)
    rule = verify_greedy if params.rule == "greedy" else verify_sampling
    passes = speculate(
        model.session(prompt), NGram(max(params.lengths)), rule=rule, length=Fixed(params.k),
        coin=coins(params.seed), max_new_tokens=params.cap or 20,
    )
    try:
        for step in passes:
            time.sleep(params.pause)
            trace = trace.add("run", step, model.texts(range(len(WORDS))))
            yield trace
            if params.breaks and len(trace["run"].steps) == 2:
                raise BadInput("The run was asked to break <b>here</b>.")
    finally:
        with LOG.open("a") as log:
            log.write(f"{len(trace['run'].steps)} steps, pause {params.pause}\\n")


def summary(trace):
    lane = trace["run"]
    return {"output_tokens": len(lane.output_tokens), "target_passes": len(lane.steps), "acceptance_rate": None}


def figures(summary):
    return [Figure(str(summary["output_tokens"]), "output tokens", "exact")]


def frame(trace, index):
    step = trace["run"].steps[index]
    token = Markup('<span class="tok {}" tabindex="0" data-detail="{}">{}</span>')
    tokens = [token.format(o.kind, f"{trace.texts[o.token]} p = {o.p:.3f}", trace.texts[o.token]) for o in step.outputs]
    html = Markup('<div class="dp"><div data-figure><div class="strip">{}</div><p class="detail"></p></div></div>')
    return Frame(f"Step {index + 1}. {trace.texts[step.outputs[0].token]}", html.format(Markup().join(tokens)))


LAB = Lab(
    slug="sample", title="Sample lab", question="What does a table of `words` say?", group="yours", order=99,
    params=Params, run=run, summary=summary, figures=figures, frame=frame,
    how="A **table** speaks.", code=lambda params: [verify_greedy if params.rule == "greedy" else verify_sampling],
    questions=(Question("Why a table?", ("Its law is known.",), ("And a model?",), ("Guessing.",), "slow"),),
    sources=(("Somebody 2023", "https://example.org/paper"),),
)
"""

PRESETS = [
    {
        "name": "slow",
        "title": "Slow <b>motion</b>",
        "note": "Watch `k`.",
        "params": {"pause": 0.25, "k": 2, "lengths": [1, 3]},
        "expect": {"output_tokens": 20},
    }
]


def write_lab(folder: Path) -> Path:
    """Write the lab and its preset below ``folder``, which is then fit for ``PLAYGROUND_PATH``."""
    for name in ("labs", "presets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    source = SOURCE.replace("HOSTILE_WORDS", repr(HOSTILE))
    (folder / "labs" / "sample.py").write_text(source, encoding="utf-8")
    (folder / "presets" / "sample.json").write_text(json.dumps(PRESETS), encoding="utf-8")
    return folder
