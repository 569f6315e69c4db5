"""The app as people start it, in a process of its own, with the sample lab beside the others."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playground.lab import ROOT
from tests.shell.sample import write_lab


@dataclass(frozen=True)
class Server:
    address: str  # with a slash at the end
    folder: Path  # where the sample lab lies

    def ended(self, pause: float) -> list[int]:
        """The steps of each run of the sample lab that has ended; ``pause`` tells the runs of one test from others."""
        log = self.folder / "labs" / "ended.txt"
        lines = log.read_text().splitlines() if log.exists() else []
        return [int(line.split()[0]) for line in lines if line.endswith(f" pause {float(pause)}")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serve(folder: Path | None = None, patience_s: float = 120) -> Iterator[Server]:
    """Start ``app.py`` and wait until it answers; end it afterwards. ``folder`` gets the sample lab."""
    with contextlib.ExitStack() as stack:
        folder = write_lab(folder or Path(stack.enter_context(tempfile.TemporaryDirectory())))
        port = free_port()
        env = {**os.environ, "PORT": str(port), "PLAYGROUND_PATH": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}
        log = stack.enter_context((folder / "server.log").open("w"))
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address, give_up = f"http://127.0.0.1:{port}/", time.monotonic() + patience_s
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError((folder / "server.log").read_text()) from None
                time.sleep(0.1)
        yield Server(address, folder)
