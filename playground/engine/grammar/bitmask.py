"""The token bitmask: one bit per token id, 32 to an int32 word, lowest bit first, as the serving engines pack it."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from playground.engine.grammar.automaton import Automaton, Config
from playground.engine.grammar.token_trie import TokenTrie

MAX_CACHED = 20_000  # masks that one grammar keeps
WARM_SECONDS = 2.0
WARM_SECONDS = 2.0


def num_words(vocab_size: int) -> int:
    """Words of 32 bits for ``vocab_size`` tokens.

    >>> [num_words(n) for n in (32, 33, 40, 151669, 151936)]
    [1, 2, 2, 4740, 4748]
    """
    return -(-vocab_size // 32)


def allocate(rows: int, vocab_size: int) -> Tensor:
    """``[rows, words]`` int32 on the CPU; every token forbidden."""
    return torch.zeros(rows, num_words(vocab_size), dtype=torch.int32)


def pack(allowed: np.ndarray) -> np.ndarray:
    """``[vocab]`` bool -> ``[words]`` int32.

    >>> pack(np.array([True, False, True] + [False] * 30)).tolist()
    [5, 0]
    """
    bits = np.zeros(num_words(len(allowed)) * 32, bool)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)


def unpack(words: np.ndarray | Tensor, vocab_size: int) -> np.ndarray:
    """``[words]`` int32 -> ``[vocab]`` bool; ids that the words do not cover are forbidden."""
    data = np.ascontiguousarray(words.numpy() if isinstance(words, Tensor) else words)
    bits = np.unpackbits(data.view(np.uint8), bitorder="little").astype(bool)[:vocab_size]
    return np.pad(bits, (0, vocab_size - len(bits)))


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """``logits`` ``[n, vocab]`` with -inf where ``bitmask`` ``[n, words]`` has no bit, and past its end.

    Raises ``ValueError`` for a row without a legal token: an empty mask must never reach the sampler.
    """
    allowed = torch.from_numpy(np.stack([unpack(row, logits.shape[-1]) for row in bitmask]))
    if not allowed.any(-1).all():
        row = int((~allowed.any(-1)).nonzero()[0])
        raise ValueError(f"The bitmask of row {row} allows no token at all.")
    return logits.masked_fill(~allowed.to(logits.device), -torch.inf)


def naive_mask(automaton: Automaton, trie: TokenTrie, config: Config) -> np.ndarray:
    """``[vocab]`` bool: walk every token of the vocabulary through the automaton, byte by byte."""
    allowed = np.zeros(trie.vocab_size, bool)
    for token in trie.text_tokens:
        allowed[token] = bool(automaton.walk(config, trie.token_bytes[token]))
    if () in config:
        allowed[list(trie.eos_ids)] = True
    return allowed


class Masks:
    """Masks of one automaton over one vocabulary, each computed once.

    A stack's mask is put together from pieces. The piece of a state is what it allows seen alone; tokens that run past
    the end of its rule depend on the context: from the nodes where the rule ended they go on in the states below it.
    """

    def __init__(self, automaton: Automaton, trie: TokenTrie) -> None:
        self.automaton, self.trie = automaton, trie
        self.bytes_used = 0
        self._configs: list[Config] = [frozenset()]  # configurations seen alone, by number; 0 is dead
        self._numbers: dict[Config, int] = {frozenset(): 0}
        self._table = np.zeros((64, 256), np.int32)  # [configuration, byte] -> configuration
        self._ends = np.zeros(64, bool)  # the rule may end here
        self._filled: set[int] = set()  # rows of the table that are complete
        self._pieces: dict[tuple[int, bytes], tuple[np.ndarray, bytes]] = {}
        self._words: dict[Config, np.ndarray] = {}
        eos = np.zeros(trie.vocab_size, bool)
        eos[[t for t in trie.eos_ids if t < trie.vocab_size]] = True
        self._eos = pack(eos)
        self._root = np.zeros(1, np.int32).tobytes()

    def warm(self, seconds: float = WARM_SECONDS) -> None:
        """Compute the piece of every state that reads a byte: what a grammar compiler does ahead of time.

        After ``seconds`` the rest is left for when the text gets there.
        """
        began = time.monotonic()
        for state, about in enumerate(self.automaton.states):
            if time.monotonic() - began > seconds:
                return
            if about.bytes:
                self.piece(state, self._root)

    def words(self, config: Config) -> np.ndarray:
        """The packed mask ``[words]`` of ``config``; the end-of-sequence ids are legal where the text may end."""
        found = self._words.get(config)
        if found is None:
            found = self._join(config)
            if () in config:
                found = found | self._eos
            found.flags.writeable = False
            if len(self._words) >= MAX_CACHED:
                self._words.clear()
            self._words[config] = found
        return found

    def _join(self, config: Config) -> np.ndarray:
        """The mask of ``config`` put together from the pieces of its states, the outer ones where inner rules end."""
        words = np.zeros_like(self._eos)
        todo, seen = [(stack, self._root) for stack in config if stack], set()
        while todo:
            stack, seeds = todo.pop()
            if (stack, seeds) in seen:
                continue
            seen.add((stack, seeds))
            alone, ends = self.piece(stack[-1], seeds)
            words |= alone
            if ends and len(stack) > 1:
                todo += [(outer, ends) for outer in self.automaton.close([stack[:-1]]) if outer]
        return words

    def piece(self, state: int, seeds: bytes) -> tuple[np.ndarray, bytes]:
        """Tokens that ``state``, seen alone, reads from the trie nodes ``seeds`` on, packed; and where its rule ended.

        Nodes are int32 numbers in one ``bytes``, which makes them a key.
        """
        found = self._pieces.get((state, seeds))
        if found is None:
            found = self._pieces[state, seeds] = self._walk(self._number(frozenset([(state,)])), seeds)
            self.bytes_used += found[0].nbytes + len(found[1])
        return found

    def context_dependent(self, config: Config) -> int:
        """How many tokens of ``config`` its innermost states alone can neither allow nor forbid."""
        ends, past = np.zeros(self.trie.num_nodes, bool), np.zeros(self.trie.num_nodes, bool)
        alone = np.zeros_like(self._eos)
        for stack in config:
            if stack:
                words, nodes = self.piece(stack[-1], self._root)
                alone |= words
                if len(stack) > 1:
                    ends[np.frombuffer(nodes, np.int32)] = True
        for level in self.trie.levels[1:]:
            above = self.trie.parents[level]
            past[level] = past[above] | ends[above]
        open_ = past[self.trie.node_of] & self.trie.stands_for_text & ~unpack(alone, self.trie.vocab_size)
        return int(open_.sum())

    def _walk(self, start: int, seeds: bytes) -> tuple[np.ndarray, bytes]:
        """Walk the trie level by level, all nodes of a level at once, from ``seeds`` in configuration ``start``."""
        trie = self.trie
        at = np.zeros(trie.num_nodes, np.int32)  # node -> configuration
        reached = np.zeros(trie.num_nodes, np.int32)  # the same, but only where a byte was read
        seeded = np.frombuffer(seeds, np.int32)
        at[seeded] = start
        is_seed = at > 0
        for level in trie.levels[1:]:
            before = at[trie.parents[level]]
            self._fill_rows(before)
            reached[level] = self._table[before, trie.values[level]]
            both = level.start + np.flatnonzero(is_seed[level] & (reached[level] > 0))
            at[level] = np.where(is_seed[level], start, reached[level])
            for node in both:  # one way of reading starts here while another is under way
                at[node] = self._number(self._configs[start] | self._configs[reached[node]])
        allowed = np.zeros(trie.vocab_size, bool)
        allowed[trie.stands_for_text] = reached[trie.node_of[trie.stands_for_text]] > 0
        return pack(allowed), np.flatnonzero(self._ends[reached]).astype(np.int32).tobytes()

    def _fill_rows(self, configs: np.ndarray) -> None:
        """Make sure that the table has the row of each of ``configs``."""
        for number in np.flatnonzero(np.bincount(configs)):
            if number and number not in self._filled:
                config = self._configs[number]
                for byte in self.automaton.next_bytes(config):
                    target = self._number(self.automaton.step(config, byte))
                    self._table[number, byte] = target
                self._filled.add(number)

    def _number(self, config: Config) -> int:
        number = self._numbers.get(config)
        if number is None:
            number = self._numbers[config] = len(self._configs)
            self._configs.append(config)
            if number >= len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
            self._ends[number] = () in config
        return number
