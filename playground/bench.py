"""The budgets, measured on this machine in one run: ``python -m playground bench``."""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Why is the sky blue? Answer in three sentences.",
    "List five fruits as a JSON array of objects with name and colour.",
    "Repeat this text exactly: the quick brown fox jumps over the lazy dog, and the lazy dog sleeps.",
    "Explain to a child what a computer does.",
    "Write a short poem about the sea.",
    "What is the capital of France, and what is it known for?",
    "Write a SQL query that counts the orders of each customer.",
)


@dataclasses.dataclass(frozen=True)
class Line:
    """One measured figure; ``limit`` is its budget as text, ``is_met`` whether it holds (``None``: no budget)."""

    what: str
    value: float | None
    unit: str
    limit: str = ""
    is_met: bool | None = None
    note: str = ""


def at_least(what: str, value: float, unit: str, limit: float, note: str = "") -> Line:
    return Line(what, value, unit, f"at least {limit:g} {unit}", value >= limit, note)


def at_most(what: str, value: float, unit: str, limit: float, note: str = "") -> Line:
    return Line(what, value, unit, f"at most {limit:g} {unit}", value <= limit, note)


def finish(generator: Any) -> Any:
    """The return value of a loading generator, its progress ignored."""
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value


def default_model() -> Any:
    from models.load import Models

    return finish(Models().load("default"))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import transformers

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def ours(model: Any, drafter: Any, prompt: list[int], num_tokens: int, k: int) -> tuple[list[int], float, list[Any]]:
    """Greedy tokens of our loop, seconds, and the passes. EOS does not end a timed run."""
    from playground.engine.decode import speculate
    from playground.engine.length import Fixed
    from playground.engine.sampling import coins
    from playground.engine.verify import verify_greedy

    how = {"rule": verify_greedy, "length": Fixed(k), "coin": coins(0), "max_new_tokens": num_tokens}
    began = time.perf_counter()
    passes = list(speculate(model.session(prompt, drafter.taps), drafter, **how))
    return [o.token for s in passes for o in s.outputs], time.perf_counter() - began, passes


def theirs(model: Any, prompt: list[int], num_tokens: int, **options: Any) -> tuple[list[int], float]:
    """Greedy tokens of ``transformers.generate`` on the same weights, and seconds."""
    import torch

    ids = torch.tensor([prompt], device=model.model.device)
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens if not options else None,
            do_sample=False,
            **options,
        )
    return out[0, len(prompt) :].tolist(), time.perf_counter() - began


def stock(model: Any) -> Any:
    """A copy of ``model`` as transformers itself would run it: with its own linear layers instead of ours."""
    from torch import nn

    from models.linear import FewRowsLinear

    twin = copy.copy(model)
    twin.model = copy.deepcopy(model.model)
    for module in twin.model.modules():
        if type(module) is FewRowsLinear:
            module.__class__ = nn.Linear
    return twin


def bench_decoding(num_tokens: int = 32, num_prompts: int = 6, layers: int = 4, k: int = 4) -> Iterator[Line]:
    """Plain decoding and draft-model speculation beside transformers, prompt by prompt, ratios of the same run."""
    from playground.engine.drafters import DraftModel, NoDrafter
    from playground.engine.sampling import Temperature

    model = default_model()
    small = model.layer_skip(layers)
    incumbent = stock(model)
    assistant = incumbent.layer_skip(layers).model
    assistant.generation_config.update(
        num_assistant_tokens=k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    plain, assisted, overhead, identical = [], [], [], 0
    for text in PROMPTS[:num_prompts]:
        prompt = model.chat(text)
        a, a_s, _ = ours(model, NoDrafter(), prompt, num_tokens, 0)
        b, b_s = theirs(incumbent, prompt, num_tokens)
        plain.append((len(a) / a_s) / (len(b) / b_s))
        c, c_s, passes = ours(model, DraftModel(small.session(prompt), (Temperature(0.0),)), prompt, num_tokens, k)
        d, d_s = theirs(incumbent, prompt, num_tokens, assistant_model=assistant)
        assisted.append((len(c) / c_s) / (len(d) / d_s))
        overhead.append(sum(s.other_ms for s in passes) / (1e3 * c_s))
        identical += a == c
    yield at_least("plain decoding against transformers.generate", statistics.median(plain), "x", 1.0)
    note = f"first {layers} layers as draft model, k = {k}, both greedy"
    yield at_least("speculation against transformers' assisted generation", statistics.median(assisted), "x", 1.2, note)
    yield at_most(f"engine time outside the models, k = {k}", 100 * statistics.median(overhead), "%", 10)
    yield at_least("speculative output identical to plain", identical, f"of {num_prompts} prompts", num_prompts)


def bench_start() -> Iterator[Line]:
    """A fresh server's first answer and a fresh process's first token, caches warm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port)}
    server = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).read()
                break
            except OSError:
                if time.perf_counter() - began > 60 or server.poll() is not None:
                    raise
                time.sleep(0.05)
        yield at_most("server answers after start", time.perf_counter() - began, "s", 10)
    finally:
        server.terminate()
        server.wait()
    code = (
        "from playground.bench import default_model, ours; from playground.engine.drafters import NoDrafter;"
        "m = default_model(); print(ours(m, NoDrafter(), m.chat('Hello'), 1, 0)[0], flush=True)"
    )
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        if not process.stdout.readline():
            raise RuntimeError("The fresh process put out no token.")
        yield at_most("first token in a fresh process", time.perf_counter() - began, "s", 8)


def bench_run() -> Iterator[Line]:
    """The default run of every lab: time to its first frame with the model loaded, and the bytes of its frames."""
    from models.load import Models
    from playground.engine.trace import Trace
    from playground.lab import discover, execute, folders

    models = Models()
    default_model()
    for lab in discover(folders()).values():
        began, first, trace = time.perf_counter(), None, None
        for update in execute(lab, lab.params(), models):
            if isinstance(update, Trace):
                trace = update
                if first is None and lab.num_frames(trace):
                    lab.frame(trace, 0)
                    first = time.perf_counter() - began
        yield at_most(f"{lab.slug}: first frame after Run", first, "s", 1.5)
        size = sum(len(json.dumps(dataclasses.asdict(lab.frame(trace, i)))) for i in range(lab.num_frames(trace)))
        yield at_most(f"{lab.slug}: all frames of the default run", size / 1024, "KiB", 1024)


def bench_page() -> Iterator[Line]:
    """Cold bytes of each page and the time of one step, in headless Chromium."""
    try:
        from tests.browser.measure import measure_pages
    except ImportError as error:
        yield Line("pages in a browser", None, "", note=f"not measured: {error}")
        return
    yield from measure_pages()


def bench_knobs(vocab: int = 49_152, repeats: int = 40) -> Iterator[Line]:
    """A chain of knobs on one row of logits in the order of vLLM, and its slowest knob alone."""
    import torch

    from playground.engine.sampling import apply, chain, softmax

    logits = 3 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(0))
    knobs = chain(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02)
    for name, order in {"T, min-p, top-k, top-p": knobs, "top-p alone": chain(top_p=0.9)}.items():
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            softmax(apply(order, logits))
            times.append(1e6 * (time.perf_counter() - began))
        yield Line(f"knobs: {name}", statistics.median(times), "µs", note=f"{vocab:,} tokens, law included; median")


def bench_beams(num_tokens: int = 24, width: int = 4, block_size: int = 16, repeats: int = 12) -> Iterator[Line]:
    """A search with shared blocks beside the same search with a cache for each beam, step by step in turn."""
    from playground.engine.beam import beam_search
    from playground.engine.kv import BlockPool, num_blocks_for

    model = default_model()
    prompt = model.chat(" ".join(PROMPTS[:1] * repeats))
    pool = BlockPool(width * num_blocks_for(len(prompt) + num_tokens, block_size), block_size)
    paged, copied = model.beams(prompt, pool), model.beams(prompt)
    how = {"width": width, "eos_ids": frozenset(), "max_new_tokens": num_tokens}
    searches = {"paged": beam_search(paged, **how), "copied": beam_search(copied, **how)}
    steps, times = {name: [] for name in searches}, {name: [] for name in searches}
    for _ in range(num_tokens):
        for name, search in searches.items():
            began = time.perf_counter()
            steps[name].append(next(search))
            times[name].append(time.perf_counter() - began)
    ratio = statistics.median(times["paged"][1:]) / statistics.median(times["copied"][1:])
    note = f"{width} beams, blocks of {block_size}, {len(prompt)} + {num_tokens} tokens, {model.dtype_name}"
    yield Line("a step of beams in shared blocks, against copied caches", ratio, "x the time", note=note)
    share = 100 * paged.cache.num_bytes / copied.cache.num_bytes
    sizes = f"{paged.cache.num_bytes / 2**20:.1f} of {copied.cache.num_bytes / 2**20:.1f} MiB"
    yield Line("KV bytes of beams in shared blocks, against copied caches", share, "%", note=sizes)
    same = [one.beams for one in steps["paged"]] == [other.beams for other in steps["copied"]]
    yield at_least("beams in shared blocks the same as in copied caches", int(same), "of 1 search", 1)


# --- Drafters ---------------------------------------------------------------------------------------------------------

DRAFTERS = ("ngram", "medusa", "eagle3", "tiny", "combination")
TREES = {"eagle3": ("ten", "dynamic"), "medusa": ("medusa",), "tiny": ("ten",)}
SPEEDS = {"combination": 1.5, "eagle3": 1.3}  # least median speed over all classes, plain decoding = 1
COPY_SPEED = {"combination": 2.0}
CHAT_SPEED = 0.9  # of every drafter


@dataclasses.dataclass
class Figures:
    """What one drafter did: (class, accepted, drafts, speed against plain, same tokens) of each prompt."""

    rows: list[tuple[str, int, int, float, bool]] = dataclasses.field(default_factory=list)

    def length(self, kind: str = "") -> float | None:
        """Mean acceptance length over the prompts of a class, or all."""
        rows = [row for row in self.rows if kind in ("", row[0])]
        drafts = sum(row[2] for row in rows)
        return 1 + sum(row[1] for row in rows) / drafts if drafts else None

    def speed(self, kind: str = "") -> float:
        return statistics.median(row[3] for row in self.rows if kind in ("", row[0]))


def setups(model: Any, models: Any, prompt: list[int]) -> Iterator[tuple[str, Any, int]]:
    """Every drafter that can be had, as chain and as tree: its name, itself, its levels."""
    from playground.engine.draft_trees import SHAPES, chain
    from playground.engine.sampling import Temperature
    from playground.engine.tree_drafting import Dynamic, Ranked

    knobs = (Temperature(0.0),)
    for name in DRAFTERS:
        try:
            yield name, finish(models.drafter(name, model, prompt, knobs=knobs, longest=4, shortest=2)), 4
        except ValueError:
            continue
        growers = {
            shape: Dynamic(10, 4) if shape == "dynamic" else Ranked(SHAPES[shape]) for shape in TREES.get(name, ())
        }
        if name == "eagle3":
            growers["chain of five"] = Ranked(chain(5))
        for shape, grower in growers.items():
            yield f"{name}, {shape}", finish(models.drafter(name, model, prompt, grower=grower)), grower.max_depth


def race_all(model: Any, drafters: dict[str, tuple[Any, int]], prompt: list[int], num_tokens: int) -> dict[str, list]:
    """The passes of every drafter, step by step in turns, so that whatever disturbs the machine meets all alike."""
    from playground.engine.decode import race, speculate
    from playground.engine.length import Fixed
    from playground.engine.sampling import coins
    from playground.engine.verify import verify_greedy

    lanes = {}
    for name, (drafter, k) in drafters.items():
        how = {"rule": verify_greedy, "length": Fixed(k), "coin": coins(0), "max_new_tokens": num_tokens}
        lanes[name] = speculate(model.session(prompt, drafter.taps), drafter, **how)
    passes: dict[str, list] = {name: [] for name in lanes}
    for name, step in race(lanes):
        passes[name].append(step)
    return passes


def raced(models: Any, model: Any, num_tokens: int, per_class: int) -> dict[str, Figures]:
    """Every setup on held-out prompts of each class, beside plain decoding of the same run."""
    from playground.engine.drafters import NoDrafter
    from playground.engine.metrics import count

    found: dict[str, Figures] = {}
    ours(model, NoDrafter(), model.chat("Hello"), 2, 0)
    for kind, texts in models.held_out().items():
        for text in texts[:per_class]:
            prompt = model.chat(text)
            ready = {name: (drafter, k) for name, drafter, k in setups(model, models, prompt)}
            passes = race_all(model, {"plain": (NoDrafter(), 0), **ready}, prompt, num_tokens)
            outputs = {name: [o.token for s in steps for o in s.outputs] for name, steps in passes.items()}
            for name in ready:
                counters, speed = count(passes[name]), passes["plain"][-1].ended_ms / passes[name][-1].ended_ms
                row = (kind, counters.accepted_tokens, counters.num_drafts, speed, outputs[name] == outputs["plain"])
                found.setdefault(name, Figures()).rows.append(row)
    return found


def bench_exact(num_tokens: int = 48, per_class: int = 4) -> Iterator[Line]:
    """Greedy output in fp32, where rounding cannot part it from plain decoding, for every drafter and tree."""
    from models.load import Models

    models = Models()
    for name, figures in raced(models, finish(models.load("default", "fp32")), num_tokens, per_class).items():
        number = len(figures.rows)
        same = sum(row[4] for row in figures.rows)
        yield at_least(f"{name}: same tokens as plain, fp32", same, f"of {number} prompts", number)


def bench_drafters(num_tokens: int = 48, per_class: int = 4, num_assisted: int = 6) -> Iterator[Line]:
    """Every drafter on held-out prompts beside plain decoding of the same run; trees beside chains."""
    from models.load import Models

    models = Models()
    model = finish(models.load("default"))
    found = raced(models, model, num_tokens, per_class)
    for name, figures in found.items():
        yield from drafter_lines(name, figures)
    if "eagle3, ten" in found:
        tree, chain = (found[f"eagle3, {shape}"].length() for shape in ("ten", "chain of five"))
        yield at_least("ten-node tree against the chain of five, eagle3, acceptance length", tree / chain, "x", 1.0)
    yield from bench_assisted(model, models, num_tokens, num_assisted)


def drafter_lines(name: str, figures: Figures) -> Iterator[Line]:
    kinds = list(dict.fromkeys(row[0] for row in figures.rows))
    lengths = ", ".join(f"{kind} {figures.length(kind) or 0:.2f}" for kind in kinds)
    speeds = ", ".join(f"{kind} {figures.speed(kind):.2f}" for kind in kinds)
    number = len(figures.rows)
    yield Line(f"{name}: mean acceptance length", figures.length(), "tokens", note=lengths)
    note = f"median over {number} prompts; {speeds}"
    if name in SPEEDS:
        yield at_least(f"{name}: speed, plain decoding = 1", figures.speed(), "x", SPEEDS[name], note)
    else:
        yield Line(f"{name}: speed, plain decoding = 1", figures.speed(), "x", note=note)
    if name in COPY_SPEED:
        yield at_least(f"{name}: speed on copy", figures.speed("copy"), "x", COPY_SPEED[name])
    if name in DRAFTERS:
        yield at_least(f"{name}: speed on chat", figures.speed("chat"), "x", CHAT_SPEED)
    same = sum(row[4] for row in figures.rows)
    yield Line(f"{name}: same tokens as plain", same, f"of {number} prompts", note="rounding may part them")


def bench_assisted(model: Any, models: Any, num_tokens: int, num_prompts: int, k: int = 4) -> Iterator[Line]:
    """Our speculation with the tiny language model beside transformers' assisted generation with the same weights."""
    from models.assistant import as_transformers
    from models.drafters import TinyModel
    from models.trained import Unfit, load_for
    from playground.engine.sampling import Temperature

    try:
        tiny = TinyModel(load_for(model, "tiny"), model.max_tokens)
    except Unfit as error:
        yield Line("speculation with the tiny model against assisted generation", None, "", note=str(error))
        return
    incumbent, assistant = stock(model), as_transformers(tiny)
    assistant.generation_config.update(
        num_assistant_tokens=k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    ratios = []
    for text in PROMPTS[:num_prompts]:
        prompt = model.chat(text)
        drafter = finish(models.drafter("tiny", model, prompt, knobs=(Temperature(0.0),)))
        a, a_s, _ = ours(model, drafter, prompt, num_tokens, k)
        b, b_s = theirs(incumbent, prompt, num_tokens, assistant_model=assistant)
        ratios.append((len(a) / a_s) / (len(b) / b_s))
    note = f"the same two-layer draft model, k = {k}"
    yield at_least(
        "speculation with the tiny model against assisted generation", statistics.median(ratios), "x", 1.0, note
    )


def bench_grammar(num_tokens: int = 32) -> Iterator[Line]:
    """Masks each way along one document, decoding under them, and what an exploding schema costs the next one."""
    from playground.engine.drafters import NoDrafter
    from playground.engine.grammar.compiled import SCHEMA, read_schema, workshop
    from playground.engine.grammar.expression import GrammarError
    from playground.engine.grammar.timing import measure
    from playground.labs import grammar_bitmask, structured_serving

    model = default_model()
    shop, schema = workshop(model), read_schema(grammar_bitmask.EXAMPLE)
    own, other = shop.own(SCHEMA, schema), shop.production(SCHEMA, schema)
    document = '{"name": "Anna", "age": 34, "hobbies": ["chess", "swimming"]}'
    times = measure(own, other, [*model.encode(document), min(model.eos_ids)], None)
    fast = times.precompiled_us_mean
    yield at_least("masks: precompiled, against naive Python", 1e3 * times.naive_ms / fast, "x", 1000)
    yield at_most("masks: precompiled, against xgrammar", fast / times.xgrammar_us_mean, "x", 5)
    yield Line("masks: xgrammar, p99", times.xgrammar_us_p99, "µs")
    invoice = read_schema(structured_serving.EXAMPLE)
    compiled = shop.worker.time(invoice, invoice)
    yield Line("invoice with 17 values: xgrammar compiles it cold", compiled.cold_ms, "ms")
    params = dataclasses.replace(grammar_bitmask.LAB.params(), max_new_tokens=num_tokens)
    passes = list(grammar_bitmask.lane(params, model, model.chat(params.prompt), NoDrafter(), own.matcher()))[1:]
    outside = sum(p.draft_ms + p.other_ms for p in passes) / sum(p.draft_ms + p.verify_ms + p.other_ms for p in passes)
    yield at_most("time outside passes under a grammar", 100 * outside, "%", 10)
    many = {f"p{i}": {"type": "integer"} for i in range(80)}
    began = time.perf_counter()
    with contextlib.suppress(GrammarError):
        shop.production(SCHEMA, {"type": "object", "properties": many, "minProperties": 40})
    yield at_most("an exploding schema is refused after", time.perf_counter() - began, "s", 5)
    began = time.perf_counter()
    shop.production(SCHEMA, schema)
    yield at_most("the next schema is compiled after", time.perf_counter() - began, "s", 1)


PARTS: dict[str, Callable[[], Iterator[Line]]] = {
    "start": bench_start,
    "run": bench_run,
    "decoding": bench_decoding,
    "drafters": bench_drafters,
    "exact": bench_exact,
    "page": bench_page,
    "beams": bench_beams,
    "knobs": bench_knobs,
    "grammar": bench_grammar,
}


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 1 when a budget is missed."""
    parser = argparse.ArgumentParser(prog="playground bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this part")
    options = parser.parse_args(argv)
    progress = Console(stderr=True)
    lines: list[Line] = []
    for name in options.only or PARTS:
        progress.print(f"measuring: {name}")
        lines += PARTS[name]()
    if options.json:
        print(json.dumps({"machine": machine(), "lines": [dataclasses.asdict(line) for line in lines]}))
    else:
        print_table(lines)
    return int(any(line.is_met is False for line in lines))


def print_table(lines: list[Line]) -> None:
    table = Table("what", "measured", "budget", "", title=", ".join(f"{k} {v}" for k, v in machine().items() if v))
    for line in lines:
        value = "no data" if line.value is None else f"{line.value:.3g} {line.unit}"
        mark = {True: "met", False: "MISSED", None: ""}[line.is_met]
        table.add_row(line.what + (f"\n{line.note}" if line.note else ""), value, line.limit, mark)
    Console().print(table)
