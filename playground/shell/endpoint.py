"""One named API endpoint per lab, which answers with the same JSON object as the command line."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import types
import typing
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import Any

from playground.engine.trace import Trace
from playground.lab import BadInput, Lab, Models, Progress, execute
from playground.shell import share
from playground.shell.request import Request, read_request

log = logging.getLogger("playground")


@cache
def the_models() -> Models:
    """The process-wide loader. Imported at the first run: the page is up before torch and transformers are."""
    from models.load import Models as Loader

    return Loader()


def run_to_end(request: Request) -> Iterator[Progress | tuple[dict[str, Any], Trace]]:
    """The run's progress, and at last the answer of API and command line, with the trace it was summed up from."""
    trace = Trace()
    with closing(execute(request.lab, request.params, the_models())) as updates:
        for update in updates:
            if isinstance(update, Trace):
                trace = update
            else:
                yield update
    yield share.result(request, request.lab.summary(trace), trace.provenance), trace


def make_endpoint(lab: Lab) -> Any:
    """A function whose keywords are ``preset`` and the lab's parameters; what is not given comes from the preset."""
    import gradio as gr

    def endpoint(preset: Any, *values: Any) -> dict[str, Any]:
        names = [f.name for f in dataclasses.fields(lab.params)]
        given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        try:
            *_, (answer, _trace) = run_to_end(read_request(lab, given, preset))
        except (BadInput, ValueError) as error:
            raise gr.Error(str(error), print_exception=False) from None
        return answer

    hints = {"preset": str | None, **{n: _plain(h) | None for n, h in typing.get_type_hints(lab.params).items()}}
    hints = {name: hints[name] for name in ["preset", *(f.name for f in dataclasses.fields(lab.params))]}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in hints.items()]
    endpoint.__signature__ = inspect.Signature(parameters, return_annotation=dict)
    endpoint.__annotations__ = {**hints, "return": dict}
    endpoint.__doc__ = lab.question
    return endpoint


def _plain(hint: Any) -> Any:
    """A hint that JSON can carry: tuples become lists."""
    if isinstance(hint, types.UnionType):
        hint = next(t for t in typing.get_args(hint) if t is not type(None))
    return list[typing.get_args(hint)[0]] if typing.get_origin(hint) is tuple else hint
