"""What the engine asks of a model: a session on one sequence, and the language model that opens sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from playground.engine.trace import KVRows
from playground.engine.tree import Draft

if TYPE_CHECKING:
    from playground.engine.beam import BeamState
    from playground.engine.kv import BlockPool


class Scores(NamedTuple):
    """One forward pass. ``logits`` ``[n + 1, vocab]``: row 0 follows the last committed token, row i + 1 node i.

    ``hidden`` ``[pending + n, taps, dim]`` holds the tapped layers' states of every row that was fed, or ``None``
    when nothing was tapped; the row of the last committed token is ``hidden[pending - 1]``.
    """

    logits: Tensor
    hidden: Tensor | None = None


class Session(Protocol):
    """One sequence on one model.

    ``tokens`` are committed. The newest of them never has a KV row yet: it is fed by the next ``score``. So after a
    ``commit`` the cache holds exactly ``len(tokens) - 1`` rows.
    """

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def num_kv_rows(self) -> int: ...
    @property
    def max_tokens(self) -> int:
        """The most tokens a sequence may have on this model."""

    def score(self, draft: Draft) -> Scores:
        """Feed the tokens that have no row yet and then the draft. Writes rows; commits nothing."""

    def commit(self, path: Sequence[int], token: int) -> KVRows:
        """Keep exactly the rows of ``path`` (nodes of the draft last scored); append its tokens and then ``token``."""

    def sync(self, tokens: Sequence[int]) -> KVRows:
        """Make ``tokens`` the sequence. Rows of the longest common prefix stay, all others are rolled back."""

    def fork(self) -> Session:
        """An independent session with the same sequence."""


class LanguageModel(Protocol):
    """A model with its tokenizer; weights are shared by all of its sessions."""

    name: str
    eos_ids: frozenset[int]
    vocab_size: int  # width of the logits; ids past the tokenizer have logit -inf
    max_tokens: int

    def session(self, tokens: Sequence[int], taps: Sequence[int] = ()) -> Session: ...
    def beams(self, prompt: Sequence[int], pool: BlockPool | None = None) -> BeamState:
        """Beams after ``prompt``, a pass for all of them. Each has a copy of its rows; with a ``pool``, the rows lie in
        its blocks and the beams are ``PagedBeams``."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` as it stands, without special tokens added."""

    def chat(self, text: str) -> list[int]:
        """Token ids of one user message in the model's chat template, up to where the reply starts."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; bytes of an unfinished character at the end are held back."""

    def texts(self, tokens: Sequence[int]) -> Mapping[int, str]:
        """The text of each token alone; a token that is no valid UTF-8 by itself shows its bytes as ``<F0><9F>``."""

    def token_bytes(self) -> Sequence[bytes | None]:
        """The bytes that each id adds to the text, by id; ``None`` for control tokens and for ids without a token."""

    def provenance(self) -> Mapping[str, str | int | float | None]:
        """Where the weights come from, and dtype and device they run in."""
