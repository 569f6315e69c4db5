"""The matcher follows one text through a grammar: fill, accept, rollback, fork, jump forward (xgrammar's verbs)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from playground.engine.grammar.automaton import Automaton, Config
from playground.engine.grammar.bitmask import Masks


class Matcher(Protocol):
    """Where one text stands in a grammar."""

    @property
    def is_terminated(self) -> bool:
        """An end-of-sequence token was accepted: nothing more is legal."""

    @property
    def can_end(self) -> bool:
        """The text so far is complete."""

    @property
    def place(self) -> str:
        """Where the text is, in words, for messages."""

    def fill(self, bitmask: Tensor, row: int = 0) -> None:
        """Write the mask of the next token into ``bitmask[row]`` (int32, as wide as the logits)."""

    def accept(self, token: int) -> bool:
        """Move on by one token; ``False``, and no change, when it is illegal here."""

    def rollback(self, count: int) -> None:
        """Take the last ``count`` tokens back."""

    def fork(self) -> Matcher:
        """An independent matcher at the same place, with its own history."""

    def find_jump_forward(self) -> str:
        """The text that must come next, whatever the model says; empty when there is a choice."""


class OwnMatcher:
    """The matcher of this package's automaton; ``masks`` is shared by every matcher of one grammar."""

    def __init__(self, masks: Masks) -> None:
        self.masks = masks
        self._history: list[tuple[Config, bool]] = [(masks.automaton.start, False)]

    @property
    def automaton(self) -> Automaton:
        return self.masks.automaton

    @property
    def config(self) -> Config:
        return self._history[-1][0]

    @property
    def is_terminated(self) -> bool:
        return self._history[-1][1]

    @property
    def can_end(self) -> bool:
        return () in self.config

    @property
    def place(self) -> str:
        if self.is_terminated:
            return "the end of the text"
        return describe(self.automaton, self.config)

    def fill(self, bitmask: Tensor, row: int = 0) -> None:
        if self.is_terminated:
            bitmask[row].zero_()
        else:
            bitmask[row].numpy()[:] = self.masks.words(self.config)

    def accept(self, token: int) -> bool:
        trie = self.masks.trie
        if self.is_terminated:
            return False
        if token in trie.eos_ids:
            if self.can_end:
                self._history.append((self.config, True))
            return self.can_end
        data = trie.token_bytes[token] if 0 <= token < len(trie.token_bytes) else None
        config = self.automaton.walk(self.config, data) if data else None
        if not config:
            return False
        self._history.append((config, False))
        return True

    def rollback(self, count: int) -> None:
        if not 0 <= count < len(self._history):
            raise ValueError(f"Cannot take back {count} tokens: {len(self._history) - 1} were accepted.")
        del self._history[len(self._history) - count :]

    def fork(self) -> OwnMatcher:
        twin = OwnMatcher(self.masks)
        twin._history = list(self._history)
        return twin

    def find_jump_forward(self) -> str:
        config, forced, seen = self.config, bytearray(), set()
        while not self.is_terminated and () not in config and config not in seen:
            seen.add(config)
            choices = self.automaton.next_bytes(config)
            if len(choices) != 1:
                break
            forced += bytes(choices)
            config = self.automaton.step(config, forced[-1])
        return forced.decode("utf-8", "ignore")  # an unfinished character at the end is not forced text yet


def describe(automaton: Automaton, config: Config) -> str:
    """The rules that the innermost states of ``config`` belong to, and what may follow."""
    rules = sorted({automaton.states[stack[-1]].rule for stack in config if stack})
    where = " or ".join(rules) or automaton.root
    ends = ", where the text may end" if () in config else ""
    nexts = sorted(automaton.next_bytes(config))
    shown = ", ".join(repr(chr(b)) if 0x20 <= b < 0x7F else f"byte {b:02X}" for b in nexts[:6])
    return f"{where}{ends}; next: {shown or 'nothing'}" + (", ..." if len(nexts) > 6 else "")
