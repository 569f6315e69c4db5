"""Two ways in which numerics break a lossless rule without touching it, each measured against its control.

The rule needs laws that depend on the prefix alone, and a rejection that leaves nothing behind. A scale shared by all
tokens of a pass breaks the first: later drafts decide how an earlier token is rounded. A scale that remembers the
largest entry ever written breaks the second: rejected drafts have been written too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from playground.engine.drift import log_law, variation
from playground.engine.model import LanguageModel
from playground.engine.trace import step
from playground.engine.tree import Draft


@step
@dataclass(frozen=True)
class Disturbed:
    """Two drafts scored at the same place that share their first token, then rejected; one entry per place.

    ``later`` is the total variation between the two laws of a row that saw the same tokens both times, the larger one
    of the rows before and behind the shared token. ``after`` is that between the laws of the next pass, once both
    drafts were rejected and the same token was committed. Both are 0 to the bit where only the prefix counts.
    """

    places: tuple[int, ...]
    later: tuple[float, ...]
    after: tuple[float, ...]


def disturbed(
    model: LanguageModel,
    prompt: Sequence[int],
    text: Sequence[int],
    places: Sequence[int],
    k: int,
    other: Sequence[int],
) -> Iterator[Disturbed]:
    """At each of ``places`` two drafts of ``k`` tokens: the ``text``'s own, and its first token followed by ``other``.

    Both passes have the same shape, so that rounding in another order has no part in what is seen. Growing, a step per
    place. Raises ``ValueError`` where no later token is left to replace.
    """
    if k < 2 or not other:
        raise ValueError("Later drafts can be replaced only in a draft of 2 tokens or more.")
    session = model.session(prompt)
    later: list[float] = []
    after: list[float] = []
    for place in places:
        own = list(text[place : place + k])
        session.sync([*prompt, *text[:place]])
        session.score(Draft())  # the rows that both drafts stand on
        replaced = [own[0], *(other[i % len(other)] for i in range(len(own) - 1))]
        forks = [session.fork(), session.fork()]
        first, second = (
            log_law(fork.score(Draft.chain(draft)).logits[:2].float())
            for fork, draft in zip(forks, (own, replaced), strict=True)
        )
        later.append(max(variation(a, b) for a, b in zip(first, second, strict=True)))
        for fork in forks:
            fork.commit((), own[0])
        one, two = (log_law(fork.score(Draft()).logits[0].float()) for fork in forks)
        after.append(variation(one, two))
        yield Disturbed(tuple(places[: len(later)]), tuple(later), tuple(after))


def places_of(num_tokens: int, most: int, k: int) -> list[int]:
    """At most ``most`` places spread over a text, each with a draft of at least two tokens ahead of it.

    >>> places_of(16, 4, 4)
    [0, 4, 8, 12]
    """
    room = num_tokens - max(2, min(k, num_tokens))
    if room < 0:
        return []
    count = min(most, room + 1)
    return [round(i * room / max(1, count - 1)) for i in range(count)]
