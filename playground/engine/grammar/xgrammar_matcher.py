"""xgrammar, the production engine, behind the same verbs. Imported on first use: it takes seconds to load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.token_trie import TokenTrie

if TYPE_CHECKING:
    import xgrammar


class XGrammar:
    """xgrammar's compiler for one vocabulary. JSON is written with ``, `` and ``: ``: no free whitespace."""

    def __init__(self, trie: TokenTrie, cache: bool = False) -> None:
        import xgrammar

        vocabulary = [b"" if t in trie.eos_ids else data or b"" for t, data in enumerate(trie.token_bytes)]
        self.info = xgrammar.TokenizerInfo(
            vocabulary,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=trie.vocab_size,
            stop_token_ids=sorted(trie.eos_ids),
        )
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=cache)

    def with_cache(self) -> XGrammar:
        """The same vocabulary with a compiler that keeps what it compiled."""
        import xgrammar

        twin = XGrammar.__new__(XGrammar)
        twin.info, twin.compiler = self.info, xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=True)
        return twin

    def regex(self, pattern: str) -> xgrammar.CompiledGrammar:
        return self._compile("regex", lambda: self.compiler.compile_regex(pattern))

    def ebnf(self, text: str) -> xgrammar.CompiledGrammar:
        return self._compile("EBNF", lambda: self.compiler.compile_grammar(text))

    def json_schema(self, schema: Mapping[str, Any] | bool, strict: bool = True) -> xgrammar.CompiledGrammar:
        text = json.dumps(schema)
        return self._compile(
            "schema", lambda: self.compiler.compile_json_schema(text, any_whitespace=False, strict_mode=strict)
        )

    @staticmethod
    def _compile(kind: str, make: Any) -> xgrammar.CompiledGrammar:
        try:
            return make()
        except Exception as error:  # its binding raises several unrelated types
            reason = str(error).strip().splitlines()[0].split("] ", 1)[-1]
            reason = reason.split(": ", 1)[-1] if ".cc:" in reason else reason
            raise GrammarError(f"xgrammar refuses this {kind}: {reason.rstrip('.')}.") from None


class XGrammarMatcher:
    """``Matcher`` on top of ``xgrammar.GrammarMatcher``."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)

    @property
    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()

    @property
    def can_end(self) -> bool:
        return self._matcher.is_completed()

    @property
    def place(self) -> str:
        forced = self.find_jump_forward()
        return "the end of the text" if self.is_terminated else f"xgrammar's state; forced next: {forced!r}"

    def fill(self, bitmask: Tensor, row: int = 0) -> None:
        if self.is_terminated:  # xgrammar refuses to fill then
            bitmask[row].zero_()
        else:
            self._matcher.fill_next_token_bitmask(bitmask, row)

    def accept(self, token: int) -> bool:
        return not self.is_terminated and self._matcher.accept_token(token)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fork(self) -> XGrammarMatcher:
        twin = XGrammarMatcher.__new__(XGrammarMatcher)
        twin._matcher = self._matcher.fork()
        return twin

    def reads(self, text: bytes) -> bool:
        """Whether ``text`` is whole and legal from here on; moves on by it."""
        return self._matcher.accept_string(text) and self._matcher.is_completed()

    def find_jump_forward(self) -> str:
        return "" if self.is_terminated else self._matcher.find_jump_forward_string()
