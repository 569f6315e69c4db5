"""The labs without a browser: ``python -m playground list | run <slug> | bench``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.fetch import ModelUnavailable
from playground.engine.trace import Trace
from playground.lab import BadInput, Lab, brief, discover, folders
from playground.lab import Progress as Work
from playground.shell.endpoint import run_to_end
from playground.shell.request import Request, read_request

USAGE, FAILED = 2, 1  # exit status for what was asked wrongly, and for what could not be done


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence on stderr."""

    def error(self, message: str) -> Any:
        print(f"{message[0].upper()}{message[1:]}; see python -m playground --help.", file=sys.stderr)
        raise SystemExit(USAGE)


def make_parser() -> Parser:
    parser = Parser(prog="python -m playground", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    commands.add_parser("list", help="the labs, their presets and parameters")
    run = commands.add_parser("run", help="run one lab and print its summary")
    run.add_argument("slug", help="the lab")
    run.add_argument("--preset", default="", metavar="NAME", help="start from this preset's parameters")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one parameter; KEY=@FILE reads it from a file, KEY=@@TEXT is text that begins with @",
    )
    run.add_argument("--json", action="store_true", help="one JSON object on stdout")
    run.add_argument("--trace", type=Path, metavar="FILE", help="also save the trace, to be opened on the lab's page")
    commands.add_parser("bench", help="measure the budgets", add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["bench"]:  # has its own options
        from playground.bench import main as bench

        return bench(argv[1:])
    options = make_parser().parse_args(argv)
    labs = discover(folders())
    if options.command == "list":
        print_labs(labs.values())
        return 0
    try:
        request = read_command(labs, options.slug, options.preset, options.set)
        if options.trace and (options.trace.is_dir() or not options.trace.parent.is_dir()):
            raise BadInput(f"The trace cannot be saved as {brief(options.trace)}: name a file in a folder that exists.")
        answer, trace = run_quietly(request)
    except ValueError as error:  # a sentence: from a check, a model that cannot be had, or the engine
        print(str(error), file=sys.stderr)
        return FAILED if isinstance(error, ModelUnavailable) else USAGE
    if options.json:
        print(json.dumps(answer, ensure_ascii=True, allow_nan=False))
    else:
        print_answer(request, answer)
    if options.trace:
        try:
            options.trace.write_text(trace.to_json(), encoding="utf-8")
        except OSError as error:
            print(f"The trace could not be saved: {error.strerror}.", file=sys.stderr)
            return FAILED
    return 0


def read_command(labs: Any, slug: str, preset: str, settings: Sequence[str]) -> Request:
    """The request that the command line makes. Raises ``BadInput`` with one sentence."""
    if slug not in labs:
        raise BadInput(f"There is no lab {brief(slug)}; there are {', '.join(labs)}.")
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"--set wants KEY=VALUE, not {brief(setting)}.")
        is_file = value.startswith("@") and not value.startswith("@@")
        values[name] = read_file(name, value[1:]) if is_file else value.removeprefix("@")
    return read_request(labs[slug], values, preset)


def read_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"{name} could not be read from {brief(path)}: {reason}.") from None


def run_quietly(request: Request) -> tuple[dict[str, Any], Trace]:
    """Run to the end; progress and whatever else wants to print go to stderr, so that stdout holds the answer alone."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    result: Any = None
    with contextlib.redirect_stdout(sys.stderr), Progress(*columns, console=console, transient=True) as bars:
        task: TaskID = bars.add_task(f"Running {request.lab.title}", total=None)
        for update in run_to_end(request):
            if isinstance(update, Work):
                bars.update(task, description=update.text, total=1.0 if update.fraction is not None else None)
                bars.update(task, completed=update.fraction or 0.0)
            else:
                result = update
    return result


def print_labs(labs: Any) -> None:
    table = Table("lab", "question", "presets", show_lines=True)
    for lab in labs:
        table.add_row(lab.slug, lab.question, "\n".join(lab.presets) or "–")
    Console().print(table)


def print_answer(request: Request, answer: dict[str, Any]) -> None:
    """The headline figures, then the whole summary."""
    lab: Lab = request.lab
    console = Console()
    table = Table("figure", "value", "source", title=f"{lab.title}{f' · {request.preset}' if request.preset else ''}")
    for figure in lab.figures(answer["summary"]):
        table.add_row(figure.label, figure.value, figure.source)
    console.print(table)
    rows = Table("summary", "value")
    for key, value in answer["summary"].items():
        rows.add_row(key, "no data" if value is None else value if isinstance(value, str) else json.dumps(value))
    console.print(rows)


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # the reader of stdout went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    raise SystemExit(status)
