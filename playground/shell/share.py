"""One run as text that repeats it: a link, a command line, an API call."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from urllib.parse import urlencode

from playground.shell.request import Request


def query(request: Request) -> str:
    """The part of the URL after ``?``: the preset, and whatever differs from it."""
    preset = {"preset": request.preset} if request.preset else {}
    return urlencode({**preset, **request.changes})


def command(request: Request) -> str:
    """The command line, quoted for a POSIX shell."""
    parts = ["python", "-m", "playground", "run", request.lab.slug]
    if request.preset:
        parts += ["--preset", request.preset]
    for name, text in request.changes.items():
        parts += ["--set", f"{name}={'@' if text.startswith('@') else ''}{text}"]  # @@: not a file
    return shlex.join([*parts, "--json"])


def api_call(request: Request, origin: str) -> str:
    """Python that asks the running app at ``origin`` for the same run."""
    names = [f.name for f in dataclasses.fields(request.lab.params)]
    given = {n: getattr(request.params, n) for n in names if n in request.changes}
    lines = [f"preset={request.preset!r},"] if request.preset else []
    lines += [f"{name}={_literal(value)}," for name, value in given.items()]
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
