"""One run as text that repeats it: a link, a command line, an API call."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from urllib.parse import urlencode

from playground.lab import MAX_TEXT
from playground.shell.request import Request


def too_long(request: Request) -> list[str]:
    """Parameters whose text is too long for a link; a command line reads them from a file."""
    return [name for name, text in request.changes.items() if len(text) > MAX_TEXT]


def query(request: Request) -> str:
    """The part of the URL after ``?``: the preset, and whatever differs from it and is not too long."""
    preset = {"preset": request.preset} if request.preset else {}
    left_out = too_long(request)
    return urlencode({**preset, **{n: text for n, text in request.changes.items() if n not in left_out}})


def command(request: Request) -> str:
    """The command line, quoted for a POSIX shell."""
    parts = ["python", "-m", "playground", "run", request.lab.slug]
    if request.preset:
        parts += ["--preset", request.preset]
    left_out = too_long(request)
    for name, text in request.changes.items():
        value = f"@{name}.txt" if name in left_out else f"@{text}" if text.startswith("@") else text  # @@: not a file
        parts += ["--set", f"{name}={value}"]
    return shlex.join([*parts, "--json"])


def api_call(request: Request, origin: str) -> str:
    """Python that asks the running app at ``origin`` for the same run."""
    names = [f.name for f in dataclasses.fields(request.lab.params)]
    given = {n: getattr(request.params, n) for n in names if n in request.changes}
    lines = [f"preset={request.preset!r},"] if request.preset else []
    left_out = too_long(request)
    lines += [
        f"{name}=open({name + '.txt'!r}).read()," if name in left_out else f"{name}={_literal(value)},"
        for name, value in given.items()
    ]
    return "\n".join(
        [
            "from gradio_client import Client",
            "",
            f"result = Client({origin!r}).predict(",
            *(f"    {line}" for line in lines),
            f"    api_name={'/' + request.lab.slug!r},",
            ")",
        ]
    )


def _literal(value: object) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


def result(request: Request, summary: object, provenance: object) -> dict[str, object]:
    """What the API and the command line answer with; plain JSON values only. Raises ``ValueError`` for NaN."""
    data = {
        "lab": request.lab.slug,
        "preset": request.preset or None,
        "params": dataclasses.asdict(request.params),
        "summary": summary,
        "provenance": provenance,
    }
    return json.loads(json.dumps(data, allow_nan=False))


def page_address(headers: Mapping[str, str], slug: str) -> str:
    """Where the browser sees this page: from its own headers, because a proxy may stand between."""
    seen = headers.get("referer", "").split("?")[0].split("#")[0]
    if seen.rstrip("/").endswith("/" + slug):
        return seen.rstrip("/")
    return f"{headers.get('x-forwarded-proto', 'http').split(',')[0]}://{headers.get('host', 'localhost')}/{slug}"
