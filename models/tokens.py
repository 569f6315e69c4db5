"""What a token id stands for: bytes, text, and whether two tokenizers mean the same by it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any


def _show_bytes(error: UnicodeError) -> tuple[str, int]:
    return "".join(f"<{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("show_bytes", _show_bytes)


@cache
def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's) -> the byte.

    >>> byte_alphabet()["A"], byte_alphabet()["Ġ"]
    (65, 32)
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}


class TokenTable:
    """The vocabulary of a transformers tokenizer as bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.pieces: dict[int, str] = {i: piece for piece, i in tokenizer.get_vocab().items()}
        self.added: dict[int, str] = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        self.size = 1 + max([*self.pieces, *self.added])

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether the pieces are spelled in the byte alphabet; otherwise they are text with bytes as ``<0xF0>``."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["decoder"])

    def bytes_of(self, token: int) -> bytes:
        """The bytes that ``token`` adds to the text; an id without a token shows as ``<id 5>``."""
        if token in self.added:
            return self.added[token].encode()
        piece = self.pieces.get(token)
        if piece is None:
            return f"<id {token}>".encode()
        if self.is_byte_level and all(c in byte_alphabet() for c in piece):
            return bytes(byte_alphabet()[c] for c in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\u2581", " ").encode()  # sentencepiece's mark for a space

    def content(self, token: int) -> bytes | None:
        """``bytes_of``, but ``None`` for a control token, which stands for no text, and for an id without a token."""
        is_control = token in self.added and self.tokenizer.added_tokens_decoder[token].special
        return None if is_control or token not in self.pieces else self.bytes_of(token)

    def text(self, token: int) -> str:
        """One token alone; bytes that are no valid UTF-8 show as ``<F0><9F>``."""
        return self.bytes_of(token).decode("utf-8", "show_bytes")

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; bytes of an unfinished character at the end are held back."""
        return codecs.getincrementaldecoder("utf-8")("show_bytes").decode(b"".join(map(self.bytes_of, tokens)))


def differing_token(a: TokenTable, b: TokenTable) -> int | None:
    """The lowest id that stands for different text in the two tables, ``None`` when every shared id agrees.

    Tables of different length agree when the shorter one is a beginning of the longer: its model never drafts the other
    ids. The widths of the models' logits say nothing, since they are padded.
    """
    ids = sorted((set(a.pieces) | set(a.added)) & (set(b.pieces) | set(b.added)))
    return next((i for i in ids if a.bytes_of(i) != b.bytes_of(i)), None)


def same_tokens(a: TokenTable, b: TokenTable) -> bool:
    """Whether a draft of one tokenizer can be read with the other: most ids are shared, and each means the same."""
    shared = len(set(a.pieces) & set(b.pieces))
    return differing_token(a, b) is None and shared >= 0.95 * min(len(a.pieces), len(b.pieces))
