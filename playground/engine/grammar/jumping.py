"""Jump-forward: text that the grammar dictates is appended as tokens, without asking the model.

The text is certain, its tokens are not: a tokenizer may cut it differently once it knows what stands before and behind.
Each way of choosing them is a drafter here, and "without asking" is a rule of verification; the decoding loop stays the
same. Jump-forward decoding is from SGLang (Zheng et al. 2024, arXiv 2312.07104).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from playground.engine.grammar.bitmask import allocate, unpack
from playground.engine.grammar.drafting import Follower
from playground.engine.grammar.matcher import Matcher
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.model import Session
from playground.engine.sampling import Coin, Context, draw
from playground.engine.trace import KVRows, Pass, step
from playground.engine.tree import Draft
from playground.engine.verify import Verdict

Encode = Callable[[str], Sequence[int]]
LONGEST = 64  # tokens of one jump


@step
@dataclass(frozen=True)
class Repair:
    """After pass ``after``, the output from token ``start`` on was tokenised again: ``rolled_back`` KV rows went, and
    ``read_again`` rows of the new tokens are written in the next pass before its own."""

    after: int
    start: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    rolled_back: int
    read_again: int


def take_forced(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """A rule that lets the whole draft stand unseen; the token behind it is drawn from the target's law."""
    law = p[len(draft)]
    u = coin(start + len(draft), "emit")
    return Verdict(tuple(range(len(draft))), draw(law, u), is_recovered=False, law=law, emit_coin=u)


def take_forced_greedy(draft: Draft, p: Tensor, coin: Coin, start: int) -> Verdict:
    """``take_forced`` at temperature 0."""
    return Verdict(tuple(range(len(draft))), int(p[len(draft)].argmax()), is_recovered=False)


@dataclass
class Vocabulary:
    """Bytes and text of token sequences, and which tokens begin with given bytes."""

    trie: TokenTrie
    encode: Encode

    def __post_init__(self) -> None:
        pairs = sorted((self.trie.token_bytes[t], t) for t in self.trie.text_tokens)
        self._sorted, self._ids = [data for data, _ in pairs], [t for _, t in pairs]

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        known = self.trie.token_bytes
        return b"".join(known[t] or b"" for t in tokens if t not in self.trie.eos_ids)

    def longer(self, prefix: bytes) -> list[int]:
        """Tokens that begin with ``prefix`` and go on."""
        first, found = bisect_left(self._sorted, prefix), []
        for i in range(first, len(self._sorted)):
            if not self._sorted[i].startswith(prefix):
                break
            if self._sorted[i] != prefix:
                found.append(self._ids[i])
        return found

    def canonical(self, output: Sequence[int], more: str = "") -> list[int] | None:
        """The tokens of the whole text of ``output`` and ``more``; ``None`` while a character is unfinished."""
        try:
            return list(self.encode(self.bytes_of(output).decode() + more))
        except UnicodeDecodeError:
            return None


@dataclass
class ForcedText:
    """Drafts the text that must come next. ``cut`` chooses its tokens after the output. Nothing illegal is drafted."""

    matcher: Matcher
    vocabulary: Vocabulary
    cut: Callable[[ForcedText, Sequence[int], str], Sequence[int]]
    name: str = "forced text"
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.follower = Follower(self.matcher)

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        output = list(context.tokens[context.num_prompt :])
        if not self.follower.follow(output):
            return Draft()
        forced = self.matcher.find_jump_forward()
        drafted: list[int] = []
        for token in self.cut(self, output, forced)[:k] if forced else ():
            if not self.matcher.accept(token):
                break
            drafted.append(token)
        self.matcher.rollback(len(drafted))
        return Draft.chain(drafted)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


def piecewise(drafter: ForcedText, output: Sequence[int], forced: str) -> Sequence[int]:
    """The forced text tokenised by itself, whatever stands around it."""
    return drafter.vocabulary.encode(forced)


def canonical(drafter: ForcedText, output: Sequence[int], forced: str) -> Sequence[int]:
    """As the tokenizer cuts output and forced text together, where it leaves the output as it is; else piecewise."""
    whole = drafter.vocabulary.canonical(output, forced)
    if whole is None or whole[: len(output)] != list(output):
        return piecewise(drafter, output, forced)
    return whole[len(output) :]


def held_back(drafter: ForcedText, output: Sequence[int], forced: str) -> Sequence[int]:
    """``canonical`` without its unstable tail: what a longer legal token could still take in together with what comes
    next is left to the model."""
    tokens = list(canonical(drafter, output, forced))
    matcher, vocabulary = drafter.matcher, drafter.vocabulary
    walked = 0
    for token in tokens:
        tail = vocabulary.bytes_of(tokens[walked:])
        wanted = vocabulary.longer(tail)
        if wanted:
            mask = allocate(1, vocabulary.trie.vocab_size)
            matcher.fill(mask)
            if unpack(mask[0], vocabulary.trie.vocab_size)[wanted].any():
                break
        if not matcher.accept(token):
            break
        walked += 1
    matcher.rollback(walked)
    return tokens[:walked]


def retokenised(
    steps: Iterator[Pass], session: Session, grammar: Matcher, vocabulary: Vocabulary, limit: int
) -> Iterator[Pass | Repair]:
    """``steps``, and between them the output tokenised again with the text that must follow: where the tokens differ,
    KV rows and grammar are rolled back to where they part, and the canonical ones are read in the next pass."""
    num_prompt = len(session.tokens)
    for number, made in enumerate(steps):
        yield made
        if made.finish:
            return
        output = list(session.tokens[num_prompt:])
        whole = vocabulary.canonical(output, grammar.find_jump_forward())
        repair = _repair(output, whole, vocabulary) if whole else None
        if repair is None or len(repair[1]) >= limit:
            continue
        same, new = repair
        grammar.rollback(len(output) - same)
        accepted = [token for token in new[same:] if grammar.accept(token)]
        assert len(accepted) == len(new) - same, "the same text must be legal however it is cut"
        rows = session.sync((*session.tokens[:num_prompt], *new))
        yield Repair(number, same, tuple(output[same:]), tuple(new[same:]), rows.rolled_back, rows.missing)


def _repair(output: Sequence[int], whole: Sequence[int], vocabulary: Vocabulary) -> tuple[int, list[int]] | None:
    """How many tokens stay, and the canonical tokens that cover the output; ``None`` when they are the output."""
    size, covered, new = len(vocabulary.bytes_of(output)), 0, []
    for token in whole:
        if covered >= size:
            break
        new.append(token)
        covered += len(vocabulary.bytes_of([token]))
    if new == list(output) or covered < size:
        return None
    same = next((i for i, (a, b) in enumerate(zip(output, new, strict=False)) if a != b), min(len(output), len(new)))
    return same, new


@step
@dataclass(frozen=True)
class Seam:
    """A place, ``at`` bytes into the text, where a jump began or ended; around it the tokens that the run wrote and the
    ones that the tokenizer makes of the whole text. ``is_canonical``: the tokenizer cuts there too."""

    at: int
    is_start: bool
    is_canonical: bool
    written: tuple[int, ...]
    canonical: tuple[int, ...]


def seams(jumps: Sequence[tuple[int, int]], written: Sequence[int], vocabulary: Vocabulary) -> list[Seam]:
    """The seams of ``jumps``, spans of tokens of the output ``written``; the text's own beginning and end are none."""
    whole = vocabulary.canonical(written) or []
    ours, theirs = _offsets(written, vocabulary), _offsets(whole, vocabulary)
    common = sorted(set(ours) & set(theirs))
    found: list[Seam] = []
    for index, is_start in ((index, i == 0) for jump in jumps for i, index in enumerate(jump)):
        at = ours[index]
        if at in (0, ours[-1]) or (found and found[-1].at == at):
            continue
        before, after = max(c for c in common if c < at), min(c for c in common if c > at)
        rows = (
            tuple(tokens[offsets.index(before) : offsets.index(after)])
            for tokens, offsets in ((list(written), ours), (whole, theirs))
        )
        found.append(Seam(at, is_start, at in common, *rows))
    return found


def _offsets(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Where each token begins, in bytes, and the end."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(vocabulary.bytes_of([token])))
    return offsets


def jumps_of(steps: Sequence[Pass]) -> list[tuple[int, int]]:
    """Spans of output tokens that were forced: the accepted drafts of each pass."""
    spans, at = [], 0
    for made in steps:
        accepted = min(made.num_verified, len(made.outputs))
        if accepted:
            spans.append((at, at + accepted))
        at += len(made.outputs)
    return spans


def output_of(steps: Sequence[Pass], repairs: Sequence[Repair] = ()) -> list[int]:
    """The output tokens of a run after its repairs."""
    output: list[int] = []
    by_pass = {repair.after: repair for repair in repairs}
    for number, made in enumerate(steps):
        output += [out.token for out in made.outputs]
        if number in by_pass:
            output[by_pass[number].start :] = by_pass[number].new
    return output
