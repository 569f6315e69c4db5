"""How far targets in other numerics drift from a reference while all read one text, the reference's greedy output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.model import LanguageModel, Session
from playground.engine.precision import Variant
from playground.engine.trace import step
from playground.engine.tree import Draft


@step
@dataclass(frozen=True)
class Tried:
    """One numerics: what computes it and its bytes, or the ``reason`` why it does not run here."""

    name: str
    title: str
    reason: str
    how: str
    weight_bytes: int | None
    kv_bytes: int | None

    @staticmethod
    def of(variant: Variant) -> Tried:
        about = variant.numerics
        return Tried(about.name, about.title, variant.reason, variant.how, variant.weight_bytes, variant.kv_bytes)


@step
@dataclass(frozen=True)
class Drift:
    """One law of one numerics beside the reference's, after the same tokens.

    ``token`` is the likeliest one, ahead of the second by ``margin`` (logits); ``text_token`` is the reference's,
    ``text_p`` its probability here. ``kl`` is KL(reference || this) in nats, ``tv`` total variation. ``lead`` is the
    reference's lead of its token over this one's, ``shift`` how far this numerics moved that difference: the two part
    where the shift exceeds the lead.
    """

    token: int
    text_token: int
    margin: float
    text_p: float
    kl: float
    tv: float
    lead: float
    shift: float

    @property
    def is_same(self) -> bool:
        return self.token == self.text_token

    @property
    def overlap(self) -> float:
        """The chance that a token drawn from this law is accepted by the reference: sum of min(p, q)."""
        return 1.0 - self.tv


@step
@dataclass(frozen=True)
class Reshaped:
    """Total variation at each place of the text between passes of one token and passes of ``width`` tokens."""

    width: int
    tv: tuple[float, ...]


@step
@dataclass(frozen=True)
class FreeRun:
    """The numerics' own greedy output, one token per pass: the text up to ``parted`` (``None``: all of it)."""

    tokens: tuple[int, ...]
    parted: int | None


def log_law(logits: Tensor) -> Tensor:
    """Log-probabilities ``[..., vocab]`` in double precision."""
    return torch.log_softmax(logits.double(), -1)


def variation(a: Tensor, b: Tensor) -> float:
    """Total variation of two laws, given as log-probabilities ``[vocab]``; exactly 0 where they are the same numbers.

    >>> variation(torch.tensor([0.75, 0.25]).log(), torch.tensor([0.5, 0.5]).log())
    0.25
    """
    return (0.5 * (a.exp() - b.exp()).abs().sum()).item()


def divergence(p: Tensor, q: Tensor) -> float:
    """KL(p || q) in nats of log-probabilities ``[vocab]``; what p never says counts nothing."""
    terms = torch.where(p > -torch.inf, p.exp() * (p - q), torch.zeros_like(p))
    return max(0.0, terms.sum().item())


def beside(reference: Tensor, own: Tensor) -> Drift:
    """One law beside the reference's, both as log-probabilities ``[vocab]``."""
    text, token = int(reference.argmax()), int(own.argmax())
    first, second = own.topk(2).values.tolist()
    lead = (reference[text] - reference[token]).item()
    shift = lead - (own[text] - own[token]).item()
    return Drift(
        token=token,
        text_token=text,
        margin=first - second,
        text_p=own[text].exp().item(),
        kl=divergence(reference, own),
        tv=variation(reference, own),
        lead=lead,
        shift=shift,
    )


class Reader:
    """One numerics that reads the text, a token per pass. It keeps its laws, and its state where it parted."""

    def __init__(self, model: LanguageModel, prompt: Sequence[int]) -> None:
        self.session: Session = model.session(prompt)
        self.logits: list[Tensor] = []  # [vocab] each, fp32, after each token read
        self.fork: Session | None = None  # as it was where its own choice first differed
        self.own: int | None = None  # that choice
        self.parted: int | None = None  # the number of tokens read until then

    def look(self) -> Tensor:
        """The law after what was read so far, as log-probabilities ``[vocab]``."""
        self.logits.append(self.session.score(Draft()).logits[0].float())
        return log_law(self.logits[-1])

    def read(self, token: int) -> None:
        """The next token of the text; from the first one that is not its own choice a fork goes its own way."""
        own = int(self.logits[-1].argmax())
        if self.parted is None and own != token:
            self.fork, self.own, self.parted = self.session.fork(), own, len(self.logits) - 1
        self.session.commit((), token)


def lockstep(
    readers: Mapping[str, Reader], reference: Reader, eos_ids: Set[int], max_new_tokens: int
) -> Iterator[tuple[str, Drift]]:
    """Place by place, each reader's law beside the reference's; the reference's own choice is the next token of all.

    Ends after ``max_new_tokens`` or behind an end token.
    """
    token = None
    for _ in range(max_new_tokens):
        if token in eos_ids:
            return
        for reader in {id(r): r for r in (reference, *readers.values())}.values():
            if token is not None:
                reader.read(token)
        theirs = reference.look()
        for name, reader in readers.items():
            yield name, beside(theirs, theirs if reader is reference else reader.look())
        token = int(theirs.argmax())


def free_run(reader: Reader, text: Sequence[int], eos_ids: Set[int]) -> Iterator[FreeRun]:
    """The reader's own output, growing, up to the length of ``text``: nothing runs where it never parted."""
    if reader.parted is None or reader.fork is None or reader.own is None:
        yield FreeRun(tuple(text), None)
        return
    session, tokens = reader.fork.fork(), [*text[: reader.parted], reader.own]
    session.commit((), reader.own)
    while len(tokens) < len(text) and tokens[-1] not in eos_ids:
        tokens.append(int(session.score(Draft()).logits[0].float().argmax()))
        session.commit((), tokens[-1])
        yield FreeRun(tuple(tokens), reader.parted)
    yield FreeRun(tuple(tokens), reader.parted)


def reshaped(
    model: LanguageModel, prompt: Sequence[int], text: Sequence[int], logits: Sequence[Tensor], k: int
) -> Iterator[Reshaped]:
    """The text once more in passes of k + 1 tokens, as a verification with every draft accepted reads it.

    ``logits`` are those of passes of one token, one for each place of ``text``. The prompt is read in a pass of its own
    both times. Growing, a step per pass.
    """
    session, found = model.session(prompt), []
    session.score(Draft())
    while len(found) < len(text):
        done = len(found)
        draft = Draft.chain(text[done : done + k])
        rows = log_law(session.score(draft).logits[: len(text) - done].float())
        found += [variation(row, log_law(one)) for row, one in zip(rows, logits[done:], strict=False)]
        yield Reshaped(k + 1, tuple(found))
        if len(found) < len(text):
            session.commit(tuple(range(len(draft))), text[done + k])
