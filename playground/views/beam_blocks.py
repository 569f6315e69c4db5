"""Block tables of beams, the pool by ref_count, what was forked, copied and freed, and the memory of three lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.beam_memory import BeamBlocks, PricedBeams
from playground.views import html
from playground.views.html import Text, count, join, number, percent
from playground.views.tokens import chip

MAX_PREFIX, MAX_CELLS, MAX_TAIL, MAX_TEXT = 6, 100, 6, 6
Texts = Mapping[int, str]
Cell = Text | int | float | None


# --- Block tables -----------------------------------------------------------------------------------------------------


def tables(now: BeamBlocks, beams: Sequence[Sequence[int]], logprobs: Sequence[float], texts: Texts) -> Markup:
    """Each beam: where it came from, its newest tokens, its log-probability and its blocks."""
    rows = [
        [
            str(i + 1),
            f"{now.parents[i] + 1}" if len(beams[i]) > 1 else "prompt",
            _blocks(now, i),
            Markup('<div class="strip">{}{}</div>').format(
                "… " if len(tokens) > MAX_TEXT else "", join([chip(texts.get(t, f"#{t}")) for t in tokens[-MAX_TEXT:]])
            ),
            number(logprobs[i], 3),
        ]
        for i, tokens in enumerate(beams)
    ]
    head = ["beam", "from", "block table", "newest tokens", "log-prob."]
    return Markup('<div class="beam-table">{}</div>').format(html.table(head, rows, "Beams and their blocks"))


def _blocks(now: BeamBlocks, beam: int) -> Markup:
    tail = now.tails[beam]
    cut = max(0, len(tail) - MAX_TAIL)
    parts = [_range(0, now.num_prefix, len(now.tails))] if now.num_prefix else []
    parts += [Markup("<span>… {}</span>").format(count(cut, "block"))] if cut else []
    parts += [_block(now, block, beam) for block in tail[cut:]]
    return Markup('<span class="blocks">{}</span>').format(join(parts))


def _range(start: int, end: int, held: int) -> Markup:
    name = f"{start}" if end - start == 1 else f"{start}–{end - 1}"
    kind = "shared" if held > 1 else "own"
    return Markup('<i class="{}">{}</i>').format(kind, name + (f" ×{held}" if held > 1 else ""))


def _block(now: BeamBlocks, block: int, beam: int) -> Markup:
    held, write = now.ref_count(block), now.writes[beam]
    if write.block != block:
        return _range(block, block + 1, held)
    source = f" ← {write.copied_from}" if write.copied_from is not None else ""
    kind = "copied" if source else "own"
    return Markup('<i class="{}">{}{}<small> {}</small></i>').format(
        kind, block, source, count(write.offset + 1, "row")
    )


# --- Pool -------------------------------------------------------------------------------------------------------------


def pool(now: BeamBlocks, num_blocks: int) -> Markup:
    """Every block as a cell with its ref_count; long runs of the prompt's blocks and of untouched ones as a number."""
    prefix = min(now.num_prefix, MAX_PREFIX)
    cells = [_cell(now, block) for block in range(prefix)]
    cells += [_more(now.num_prefix - prefix, f"more of the prompt, each {len(now.tails)}")]
    shown = range(now.num_prefix, min(num_blocks, now.num_prefix + MAX_CELLS))
    cells += [_cell(now, block) for block in shown]
    rest = range(now.num_prefix + MAX_CELLS, num_blocks)
    held = sum(now.ref_count(block) > 0 for block in rest)
    cells += [_more(len(rest), f"more, {held} of them in use")]
    return Markup('<div class="pool" aria-hidden="true">{}</div>').format(join(cells))


def _cell(now: BeamBlocks, block: int) -> Markup:
    held = now.ref_count(block)
    is_copy = any(write.block == block and write.copied_from is not None for write in now.writes)
    is_freed = block in now.freed and not held
    kind = "copied" if is_copy else "freed" if is_freed else "free" if not held else "shared" if held > 1 else "own"
    return Markup('<i class="{}">{}</i>').format(kind, held or ("↺" if is_freed else ""))


def _more(n: int, words: str) -> Markup:
    return Markup("<span>… {} {}</span>").format(f"{n:,}", words) if n > 0 else Markup("")


def legend() -> Markup:
    keys = (
        ("shared", "2", "held by several beams"),
        ("own", "1", "held by one"),
        ("copied", "1", "copied into just now"),
        ("freed", "↺", "freed just now"),
        ("free", "", "free"),
    )
    cells = [Markup('<span><i class="{}">{}</i> {}</span>').format(*key) for key in keys]
    return Markup('<div class="legend pool-legend" role="group" aria-label="Legend">{}</div>').format(join(cells))


def events(now: BeamBlocks, is_first: bool) -> Markup:
    """Forks, copies and frees of this step in words."""
    if now.lacks:
        return html.note(
            f"The pool has run out: {now.lacks} Every block is given back: {now.used_blocks} in use.", "bad"
        )
    if not now.parents:
        freed = count(len(now.freed), "block")
        return html.note(f"The search has ended and {freed} went back: {now.used_blocks} in use.")
    said = [*_forks(now, is_first), *_frees(now), *_copies(now)]
    return html.note(" ".join(said) or "No fork and no copy: every beam writes into its own last block.")


def _forks(now: BeamBlocks, is_first: bool) -> list[str]:
    if is_first:
        return [f"The prompt's table is forked: {count(len(now.parents), 'beam')} hold the same blocks."]
    children = {parent: now.parents.count(parent) for parent in dict.fromkeys(now.parents)}
    forks = [f"beam {parent + 1} into {n}" for parent, n in children.items() if n > 1]
    return [f"Forked: {', '.join(forks)}."] if forks else []


def _copies(now: BeamBlocks) -> list[str]:
    copies = [write for write in now.writes if write.copied_from is not None]
    if copies:
        pairs = ", ".join(f"{write.copied_from} to {write.block}" for write in copies)
        return [f"Written to while shared, so copied first, {count(copies[0].offset, 'row')} each: {pairs}."]
    if now.writes[0].offset == 0:
        return ["The last blocks were full: nothing is copied, and every beam takes a new block."]
    return []


def _frees(now: BeamBlocks) -> list[str]:
    if not now.freed:
        return []
    again = sorted(write.block for write in now.writes if write.block in now.freed)
    end = f"; {_few(again)} used again at once" if again else ""
    return [f"Freed, as no beam holds them any more: {_few(sorted(now.freed))}{end}."]


def _few(blocks: Sequence[int]) -> str:
    return ", ".join(map(str, blocks[:12])) + (" …" if len(blocks) > 12 else "")


def says(now: BeamBlocks) -> str:
    """The blocks in one clause."""
    if now.lacks:
        return "the pool has run out, and every block is given back"
    if not now.parents:
        return "the search has ended, and every block is given back"
    copies = sum(write.copied_from is not None for write in now.writes)
    acts = [count(now.num_forks, "fork"), f"{copies} copied", f"{len(now.freed)} freed"]
    return f"{', '.join(acts)}; {now.used_blocks} blocks in use, {now.copied_blocks} if each beam had a copy"


# --- Memory -----------------------------------------------------------------------------------------------------------


def unit_of(num_bytes: float) -> tuple[int, str]:
    """The unit that such a size reads well in.

    >>> unit_of(3_000), unit_of(3_000_000)
    ((1024, 'KiB'), (1048576, 'MiB'))
    """
    return (2**20, "MiB") if num_bytes >= 2**20 / 10 else (2**10, "KiB")


def lanes(steps: Sequence[BeamBlocks], block_bytes: int) -> Markup:
    """Blocks and MiB of the three ways now and at most, and the tokens computed again."""
    held = [step for step in steps if step.parents]
    if not held:
        return html.note("No beam has blocks of its own yet.")
    names = {
        "a copy for each beam": "copied_blocks",
        "shared blocks, copied on write": "used_blocks",
        "resubmitted, as vLLM does": "resubmitted_blocks",
    }
    most = max(getattr(step, name) for step in held for name in names.values())
    again = sum(step.recomputed_tokens for step in held)
    unit, name_of_unit = unit_of(most * block_bytes)
    rows: list[list[Cell]] = []
    for words, name in names.items():
        now, peak = getattr(held[-1], name), max(getattr(step, name) for step in held)
        bar = Markup('<span class="track"><i class="c-0" style="width:{}%"></i></span>').format(percent(now, most))
        rows.append([words, bar, now, peak, now * block_bytes / unit, again if name == "resubmitted_blocks" else 0])
    head = ["kept as", "", "blocks", "at most", name_of_unit, "tokens computed again"]
    return Markup('<div class="lanes">{}</div>').format(html.table(head, rows, "Memory of the beams in three ways"))


def priced(found: PricedBeams) -> Markup:
    """The same search on a served model."""
    words = {
        "separate": "a copy for each beam",
        "best": "shared, at best: the beams part in their last block",
        "worst": "shared, at worst: they part right after the prompt",
        "this_run": "shared, forked as in this run over and over",
    }
    rows: list[list[Cell]] = [[words[name], n, found.mib[name]] for name, n in found.blocks.items()]
    each = (
        f"{found.num_prompt:,} tokens are {number(found.num_prompt / found.block_size, 2)} blocks of {found.block_size}"
    )
    fork = f"the first fork copies {count(found.fork_copies, 'block')}" if found.fork_copies else "nothing is copied"
    return html.table(["kept as", "blocks", "MiB"], rows, "Priced") + html.note(f"{each}: {fork}.")
