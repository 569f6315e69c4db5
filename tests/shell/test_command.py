"""The command line: one JSON object on stdout, one sentence on stderr, exit status 2 for what was asked wrongly."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from playground.__main__ import main, read_command
from playground.engine.trace import Trace
from playground.lab import ROOT, Lab, control, read_params
from playground.shell import share
from playground.shell.request import read_request
from tests.shell.sample import write_lab


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLAYGROUND_PATH", str(write_lab(tmp_path)))
    return tmp_path


def test_run_prints_one_json_object(path: Path) -> None:
    command = [sys.executable, "-m", "playground", "run", "sample", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert list(answer) == ["lab", "preset", "params", "summary", "provenance"]
    assert (answer["lab"], answer["preset"], answer["summary"]["output_tokens"]) == ("sample", None, 20)
    assert answer["params"]["lengths"] == [1, 2]
    assert answer["summary"]["acceptance_rate"] is None
    assert answer["provenance"]["target"] == "table"


def test_presets_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "sample", "--preset", "slow", "--set", "pause=0", "--set", "cap=4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["preset"] == "slow"
    assert (answer["params"]["k"], answer["params"]["pause"], answer["summary"]["output_tokens"]) == (2, 0, 4)


def test_a_value_may_come_from_a_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path / "prompt.txt").write_text("`{{value}}", encoding="utf-8")
    assert main(["run", "sample", "--set", f"prompt=@{path / 'prompt.txt'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"]["prompt"] == "`{{value}}"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["run", "sample", "--set", "k=99"], "k must lie between 1 and 8, not 99."),
        (["run", "sample", "--set", "other=1"], "There is no parameter 'other'"),
        (["run", "sample", "--set", "k"], "--set wants KEY=VALUE"),
        (["run", "sample", "--set", "prompt=@/no/such/file"], "No such file"),
        (["run", "sample", "--preset", "other"], "There is no preset 'other'"),
        (["run", "nothing"], "There is no lab 'nothing'"),
        (["run"], "slug"),
        (["fly"], "fly"),
        ([], "command"),
        (["run", "sample", "--set", "breaks=1"], "asked to break"),
        (["run", "sample", "--trace", "/nowhere/run.json"], "folder that exists"),
    ],
)
def test_what_is_asked_wrongly_exits_with_2_and_one_sentence(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(argv)
    except SystemExit as end:
        status = end.code
    told = capsys.readouterr()
    assert status == 2
    assert told.out == ""
    assert word in told.err
    assert len(told.err.strip().splitlines()) == 1


def test_the_trace_is_saved_and_reads_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = path / "run.json"
    assert main(["run", "sample", "--trace", str(file), "--json"]) == 0
    trace = Trace.from_json(file.read_text(encoding="utf-8"))
    answer = json.loads(capsys.readouterr().out)
    assert trace.provenance["lab"] == "sample"
    assert len(trace["run"].steps) == answer["summary"]["target_passes"]


def test_without_json_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "sample"]) == 0
    out = capsys.readouterr().out
    assert "output tokens" in out
    assert "no data" in out


def test_list_names_every_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "sample" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["@alice", "@@x", "plain", "@"])
def test_a_copied_command_line_gives_the_same_text_back(text: str, sample: Lab) -> None:
    argv = shlex.split(share.command(read_request(sample, {"prompt": text})))
    settings = [argv[i + 1] for i, word in enumerate(argv) if word == "--set"]
    assert read_command({"sample": sample}, "sample", "", settings).params.prompt == text


def test_a_whole_number_keeps_its_digits() -> None:
    @dataclass(frozen=True)
    class Params:
        seed: int = control(0, "Seed")

    assert read_params(Params, {"seed": "99999999999999999999999"}).seed == 99999999999999999999999
