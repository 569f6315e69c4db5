"""Compiling with xgrammar in a process of its own: what takes too long or too much memory is stopped there.

The process starts once and keeps the vocabulary. Where the system can fork, each grammar is compiled in a child of it,
and stopping one costs the next request nothing; elsewhere the process itself is replaced after it had to be stopped.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from playground.engine.grammar.compile_times import CompileTimes, time_compiles
from playground.engine.grammar.expression import GrammarError
from playground.engine.grammar.token_trie import TokenTrie
from playground.engine.grammar.xgrammar_matcher import XGrammar

if TYPE_CHECKING:
    import xgrammar

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 120.0  # importing takes long on a busy machine
SECONDS = 4.0  # for one grammar
GRACE = 1.0  # after which the process itself is stopped, when it did not stop its child
MEGABYTES = 1024  # on top of what the process has when it starts


class CompileWorker:
    """Compiles grammars over one vocabulary. Use from one thread at a time is enforced."""

    def __init__(self, trie: TokenTrie, seconds: float = SECONDS) -> None:
        self.trie, self.seconds = trie, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._answers: queue.Queue = queue.Queue()
        atexit.register(self.close)

    @cached_property
    def info(self) -> xgrammar.TokenizerInfo:
        return XGrammar(self.trie).info

    def compile(self, kind: str, grammar: Any, strict: bool = True) -> tuple[xgrammar.CompiledGrammar, float]:
        """``kind`` is ``regex``, ``ebnf`` or ``json_schema``. Returns the grammar and the milliseconds it took there.

        Raises ``GrammarError`` for what xgrammar refuses and for what goes past the limits.
        """
        text, ms = self._ask("compile", kind, grammar, strict)
        import xgrammar

        return xgrammar.CompiledGrammar.deserialize_json(text, self.info), ms

    def time(self, schema: Any, renamed: Any, strict: bool = True) -> CompileTimes:
        """What compiling ``schema`` costs there: cold, again from the cache, and with a key renamed."""
        return self._ask("time", "json_schema", (schema, renamed), strict)

    def _ask(self, task: str, kind: str, *about: Any) -> Any:
        with self._lock:
            self._start()
            self._await(START_SECONDS)  # the greeting of a fresh process, or nothing
            self._send((task, kind, about, self.seconds))
            try:
                answer = self._answers.get(timeout=self.seconds + GRACE * can_fork())
            except queue.Empty:
                answer = Failure(too_slow(kind, self.seconds))
                self._restart()
            if answer is None:
                answer = Failure(too_large(kind))
                self._restart()
        if isinstance(answer, Failure):
            raise GrammarError(answer.reason)
        return answer

    def _restart(self) -> None:
        self._stop()
        self._start()

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
        vocabulary = (self.trie.token_bytes, sorted(self.trie.eos_ids), self.trie.vocab_size)
        self._greeting = threading.Thread(target=self._send, args=(vocabulary,), daemon=True)  # read once it is up
        self._greeting.start()

    def _await(self, seconds: float) -> None:
        if not self._greeted:
            try:
                greeting = self._answers.get(timeout=seconds)
            except queue.Empty:
                greeting = None
            self._greeting.join(0 if greeting is None else None)
            if greeting != "ready":
                self._stop()
                raise GrammarError("The process that compiles grammars did not start.")
            self._greeted = True

    def _send(self, message: Any) -> None:
        process, answers = self._process, self._answers
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
        except (OSError, ValueError):
            answers.put(None)

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


@dataclass(frozen=True)
class Failure:
    """An answer that is one sentence on what went wrong."""

    reason: str


def too_slow(kind: str, seconds: float) -> str:
    return f"xgrammar did not compile this {kind} within {seconds:g} s."


def too_large(kind: str) -> str:
    return f"xgrammar needed more than {MEGABYTES:,} MB for this {kind}, or crashed."


def can_fork() -> bool:
    return hasattr(os, "fork")


def in_a_child(work: Callable[[], Any], kind: str, seconds: float) -> Any:
    """What ``work`` returns in a child of this process, or a ``Failure`` past the limits."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(seconds) + 2)  # in case that nobody is left to stop it
            limit_memory(MEGABYTES)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    until, data, answer = time.monotonic() + seconds, [], None
    while answer is None:
        if not select.select([read], [], [], max(0.0, until - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            answer = Failure(too_slow(kind, seconds))
        elif chunk := os.read(read, 1 << 20):
            data.append(chunk)
        else:
            answer = _unpickled(b"".join(data)) or Failure(too_large(kind))
    os.close(read)
    os.waitpid(child, 0)
    return answer


def _unpickled(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return None


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Compile one grammar after another until the pipe closes."""

    def answer(message: Any) -> None:
        pickle.dump(message, answers)
        answers.flush()

    token_bytes, eos_ids, vocab_size = pickle.load(requests)
    engine = XGrammar(TokenTrie(token_bytes, eos_ids, vocab_size))
    if not can_fork():
        limit_memory(MEGABYTES)
    answer("ready")
    while True:
        try:
            task, kind, about, seconds = pickle.load(requests)
        except EOFError:
            return

        def work(task: str = task, kind: str = kind, about: tuple = about) -> Any:
            try:
                return TASKS[task](engine, kind, *about)
            except GrammarError as error:
                return Failure(str(error))
            except MemoryError:
                return Failure(too_large(kind))

        answer(in_a_child(work, kind, seconds) if can_fork() else work())


def compile_(engine: XGrammar, kind: str, grammar: Any, strict: bool) -> tuple[str, float]:
    """The grammar as text, and the milliseconds of processor time."""
    options = {"strict": strict} if kind == "json_schema" else {}
    began = time.process_time()
    compiled = getattr(engine, kind)(grammar, **options)
    ms = 1e3 * (time.process_time() - began)
    return compiled.serialize_json(), ms


def time_(engine: XGrammar, kind: str, schemas: tuple[Any, Any], strict: bool) -> CompileTimes:
    return time_compiles(engine, *schemas, strict)


TASKS = {"compile": compile_, "time": time_}

if __name__ == "__main__":
    from playground.engine.grammar.worker import serve as serve_  # answers are then of the classes that others know

    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the libraries print must not reach the pipe
    serve_(sys.stdin.buffer, channel)
