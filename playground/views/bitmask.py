"""A token bitmask as a picture, one dot per token id, and the laws before and after it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping

import numpy as np
from markupsafe import Markup

from playground.engine.trace import Row, RowMask
from playground.views.html import join, percent, probability, scroll
from playground.views.tokens import chip, mark

WIDTH = 384  # dots in a row of the picture
MAX_ENLARGED = 300  # so few legal tokens are drawn as larger dots
INK = (0x24, 0x81, 0xBF)  # stands on light and on dark pages


def picture(report: RowMask, vocab_size: int) -> Markup:
    """Every id of the vocabulary as one dot, id 0 at the top left; a legal one is inked."""
    bits = legal_bits(report)[:vocab_size]
    rows = -(-vocab_size // WIDTH)
    grid = np.zeros(rows * WIDTH, np.uint8)
    grid[: len(bits)] = bits
    shown = enlarge(grid.reshape(rows, WIDTH)) if report.num_legal <= MAX_ENLARGED else grid.reshape(rows, WIDTH)
    image = base64.b64encode(png(shown)).decode()
    said = f"{report.num_legal:,} of {vocab_size:,} tokens are legal"
    html = '<img class="bits" src="data:image/png;base64,{}" width="{}" height="{}" alt="{}">'
    return Markup(html).format(image, WIDTH, rows, said)


def enlarge(grid: np.ndarray) -> np.ndarray:
    """``grid`` with every dot grown to five by five."""
    padded = np.pad(grid, 2)
    shifts = [(i, j) for i in range(5) for j in range(5)]
    return np.maximum.reduce([padded[i : i + grid.shape[0], j : j + grid.shape[1]] for i, j in shifts])


def legal_bits(report: RowMask) -> np.ndarray:
    """The bits of a mask, one per token id, 0 or 1."""
    return np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(report.bits)), np.uint8), bitorder="little")


def png(grid: np.ndarray) -> bytes:
    """A two-colour PNG of ``grid`` ``[rows, columns]`` of 0 and 1: 0 transparent, 1 in ink."""
    height, width = grid.shape
    lines = np.packbits(grid, axis=1)
    data = zlib.compress(b"".join(b"\0" + line.tobytes() for line in lines), 9)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 3, 0, 0, 0)
    palette, alpha = bytes([*INK, *INK]), bytes([0, 255])
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"PLTE", palette)
        + chunk(b"tRNS", alpha)
        + chunk(b"IDAT", data)
        + chunk(b"IEND", b"")
    )


def laws(report: RowMask, row: Row, texts: Mapping[int, str], chosen: int | None, shown: int = 8) -> Markup:
    """The model's own law beside the law after mask and knobs: the likeliest tokens of each, illegal ones locked."""
    after = {candidate.token: candidate.p for candidate in row.top}
    before = {candidate.token: candidate.p for candidate in report.top}
    bits = legal_bits(report)
    legal = {token for token in (*after, *before) if bits[token]}
    first = sorted(before, key=lambda token: -before[token])[: shown - 2]
    then = [t for t in sorted(after, key=lambda token: -after[token]) if t in legal and t not in first]
    listed = [*first, *then[: max(2, shown - len(first))]]
    if chosen is not None and chosen not in listed:
        listed.append(chosen)
    lines = []
    for token in listed:
        is_legal = token in legal
        state = "" if is_legal else "blocked"
        head = chip(texts.get(token, f"#{token}"), state)
        head += Markup(' <span class="says">chosen</span>') if token == chosen else Markup("")
        lines.append(
            Markup('<tr><th scope="row">{}{}</th><td>{}</td><td>{}</td></tr>').format(
                mark(state) if state else "",
                head,
                _bar("q", before.get(token)),
                _bar("p", after.get(token) if is_legal else 0.0),
            )
        )
    html = (
        '<table class="law"><thead><tr><th scope="col">token</th><th scope="col">model alone</th>'
        '<th scope="col">under the grammar</th></tr></thead><tbody>{}</tbody></table>'
    )
    return scroll(Markup(html).format(join(lines)), "The model's law before and after the mask")


def _bar(kind: str, p: float | None) -> Markup:
    if p is None:
        return Markup('<div class="bar"><span class="track"></span><span>small</span></div>')
    html = '<div class="bar"><span class="track"><i class="c-{}" style="width:{}%"></i></span><span>{}</span></div>'
    return Markup(html).format(kind, percent(p, 1), probability(p))
