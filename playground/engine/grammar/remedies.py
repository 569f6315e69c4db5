"""What one way of writing a document cost, and what came out, against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.engine.grammar.jumping import Repair, Seam, Vocabulary, jumps_of, output_of, seams
from playground.engine.trace import Pass, step

PLAIN, PIECEWISE = "no jumps", "jump-forward"
RETOKENISED, HELD_BACK, DRAFT = "re-tokenised", "tail held back", "offered as a draft"


@step
@dataclass(frozen=True)
class Remedy:
    """``sampled`` tokens were chosen by the model, one per pass; ``forced`` bytes came from the grammar unasked or were
    offered and accepted; ``rejected`` tokens were offered in vain. ``rows_written`` and ``rolled_back`` are KV rows
    behind the prompt. ``parts_at``: the first byte where the text differs from plain decoding's (``None``: nowhere)."""

    name: str
    text: str
    num_tokens: int
    sampled: int
    forced_bytes: int
    num_bytes: int
    rejected: int
    rows_written: int
    rolled_back: int
    num_repairs: int
    ms: float
    seams: tuple[Seam, ...]
    parts_at: int | None
    finish: str | None

    @property
    def bad_seams(self) -> int:
        return sum(not seam.is_canonical for seam in self.seams)


def account(
    name: str, steps: Sequence[Pass], repairs: Sequence[Repair], plain: Sequence[Pass], vocabulary: Vocabulary
) -> Remedy:
    """The account of ``steps``. After repairs there are no seams left, and a judged draft has none: the model cut."""
    written, jumps = output_of(steps, repairs), jumps_of(steps)
    data, other = vocabulary.bytes_of(written), vocabulary.bytes_of(output_of(plain))
    unasked = output_of(steps)  # tokens as the passes put them out; repairs add bytes of forced text
    forced = sum(len(vocabulary.bytes_of(unasked[first:last])) for first, last in jumps)
    differs = (i for i, (a, b) in enumerate(zip(data, other, strict=False)) if a != b)
    end = None if len(data) == len(other) else min(len(data), len(other))
    return Remedy(
        name=name,
        text=data.decode("utf-8", "replace"),
        num_tokens=len(written),
        sampled=len(steps),
        forced_bytes=forced + len(data) - len(vocabulary.bytes_of(unasked)),
        num_bytes=len(data),
        rejected=sum(node.state != "accepted" for made in steps for node in made.nodes),
        rows_written=sum(made.target_kv.written for made in steps) + sum(r.read_again for r in repairs),
        rolled_back=sum(made.target_kv.rolled_back for made in steps) + sum(r.rolled_back for r in repairs),
        num_repairs=len(repairs),
        ms=steps[-1].ended_ms if steps else 0.0,
        seams=() if repairs or name == DRAFT else tuple(seams(jumps, written, vocabulary)),
        parts_at=next(differs, end),
        finish=steps[-1].finish if steps else None,
    )
