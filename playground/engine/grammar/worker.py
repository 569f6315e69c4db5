"""Compiling with xgrammar in a process of its own: what takes too long or too much memory is stopped there.

The process starts once, keeps the vocabulary, and is replaced after it had to be stopped.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar

if TYPE_CHECKING:
    import xgrammar

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 120.0  # importing takes long on a busy machine
SECONDS = 4.0  # for one grammar
MEGABYTES = 1024  # on top of what the process has when it starts


class CompileWorker:
    """Compiles grammars over one vocabulary. Use from one thread at a time is enforced."""

    def __init__(self, trie: TokenTrie, seconds: float = SECONDS) -> None:
        self.trie, self.seconds = trie, seconds
        self.info = XGrammar(trie).info
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._answers: queue.Queue = queue.Queue()
        atexit.register(self.close)

    def compile(self, kind: str, grammar: Any, strict: bool = True) -> tuple[xgrammar.CompiledGrammar, float]:
        """``kind`` is ``regex``, ``ebnf`` or ``json_schema``. Returns the grammar and the milliseconds it took there.

        Raises ``GrammarError`` for what xgrammar refuses and for what goes past the limits.
        """
        with self._lock:
            self._start()
            self._await(START_SECONDS)  # the greeting of a fresh process, or nothing
            self._send((kind, grammar, strict))
            try:
                answer = self._answers.get(timeout=self.seconds)
            except queue.Empty:
                self._stop()
                self._start()
                raise GrammarError(f"xgrammar did not compile this {kind} within {self.seconds:g} s.") from None
            if answer is None:
                self._stop()
                self._start()
                raise GrammarError(f"xgrammar needed more than {MEGABYTES:,} MB for this {kind}, or crashed.")
            text, ms = answer
            if ms is None:
                raise GrammarError(text)
            import xgrammar

            return xgrammar.CompiledGrammar.deserialize_json(text, self.info), ms

    def start(self) -> None:
        """Begin starting the process; nobody waits for it yet."""
        with self._lock:
            self._start()

    def close(self) -> None:
        self._stop()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "playground.engine.grammar.worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        self._answers = queue.Queue()
        self._greeted = False
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        self._send((self.trie.token_bytes, sorted(self.trie.eos_ids), self.trie.vocab_size))

    def _await(self, seconds: float) -> None:
        if not self._greeted:
            try:
                greeting = self._answers.get(timeout=seconds)
            except queue.Empty:
                greeting = None
            if greeting != "ready":
                self._stop()
                raise GrammarError("The process that compiles grammars did not start.")
            self._greeted = True

    def _send(self, message: Any) -> None:
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            self._answers.put(None)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process = None


def _listen(pipe: BinaryIO, answers: queue.Queue) -> None:
    """Pass on what the process answers, and ``None`` once it is gone."""
    try:
        while True:
            answers.put(pickle.load(pipe))
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        answers.put(None)
    finally:
        pipe.close()


def limit_memory(megabytes: int) -> None:
    """Let this process grow by ``megabytes`` at most, where the system can do that."""
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + megabytes * 2**20, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        pass  # the time limit remains


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Compile one grammar after another until the pipe closes."""

    def answer(message: Any) -> None:
        pickle.dump(message, answers)
        answers.flush()

    token_bytes, eos_ids, vocab_size = pickle.load(requests)
    engine = XGrammar(TokenTrie(token_bytes, eos_ids, vocab_size))
    limit_memory(MEGABYTES)
    answer("ready")
    while True:
        try:
            kind, grammar, strict = pickle.load(requests)
        except EOFError:
            return
        began = time.perf_counter()
        try:
            options = {"strict": strict} if kind == "json_schema" else {}
            compiled = getattr(engine, kind)(grammar, **options)
            ms = 1e3 * (time.perf_counter() - began)
            answer((compiled.serialize_json(), ms))
        except GrammarError as error:
            answer((str(error), None))
        except MemoryError:
            answer((f"xgrammar needed more than {MEGABYTES:,} MB for this {kind}.", None))


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the libraries print must not reach the pipe
    serve(sys.stdin.buffer, channel)
