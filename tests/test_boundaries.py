"""Imports point one way, files and functions stay small, and the top level is what it is meant to be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("playground", "models")

# What a layer must not import, by the start of the module's name. The longest matching layer counts.
PAGE = ("gradio", "playground.shell", "playground.player", "app")
FORBIDDEN = {
    "playground.engine": (
        *PAGE, "plotly", "transformers", "models", "playground.labs", "playground.views", "playground.lab",
    ),
    "playground.views": (*PAGE, "transformers", "models", "playground.labs", "playground.lab"),
    "playground.labs": (*PAGE, "transformers"),
    "playground.lab": (*PAGE, "plotly", "transformers", "models", "playground.labs", "playground.views"),
    "models": (*PAGE, "plotly", "playground.labs", "playground.views"),
}  # fmt: skip
LONGEST = 55  # lines of a function's body in the engine, its docstring apart


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def sources(*packages: str) -> list[Path]:
    return sorted(file for package in packages for file in (ROOT / package).rglob("*.py"))


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def starts(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@pytest.mark.parametrize("file", sources(*PACKAGES), ids=name_of)
def test_imports_point_one_way(file):
    layers = [layer for layer in FORBIDDEN if starts(name_of(file), layer)]
    if layers:
        wrong = [m for m in imports(file) for f in FORBIDDEN[max(layers, key=len)] if starts(m, f)]
        assert not wrong, f"{name_of(file)} must not import {', '.join(wrong)}"


def test_only_the_shell_imports_gradio():
    users = {name_of(file) for file in sources(*PACKAGES) if any(starts(m, "gradio") for m in imports(file))}
    assert all(starts(user, "playground.shell") or user == "playground.player" for user in users), users


def test_the_core_loads_without_the_heavy_libraries():
    """Also not by way of others: what a fresh process has loaded after the imports."""
    heavy = "('gradio', 'plotly', 'transformers')"
    modules = "sys, playground.lab, playground.engine.decode, models.table"
    code = f"import {modules}; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("file", sources("playground/engine"), ids=name_of)
def test_functions_of_the_engine_are_short(file):
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            lines = node.end_lineno - body[0].lineno + 1
            assert lines <= LONGEST, f"{node.name} in {name_of(file)} has {lines} lines"


def test_the_top_level_is_fixed():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("this is no git checkout")
    top = {Path(name).parts[0] for name in tracked}
    fixed = {"app.py", "requirements.txt", "playground", "models", "presets", "tests", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= fixed
