"""The mistake of giving a tree's nodes the positions of their place in the flattened list instead of their depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from playground.engine.model import Scores, Session
from playground.engine.trace import KVRows
from playground.engine.tree import Draft


class FlatDraft(Draft):
    """A draft whose node i claims position i + 1 behind the last committed token. The tree mask stays right."""

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return tuple(range(1, len(self) + 1))


class IndexPositions:
    """A session that makes this mistake in every pass; the rows it keeps were rotated for the wrong positions."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def score(self, draft: Draft) -> Scores:
        return self.session.score(FlatDraft(draft.tokens, draft.parents, draft.q))

    def commit(self, path: Sequence[int], token: int) -> KVRows:
        return self.session.commit(path, token)
