"""The site: a home page and one route per lab, found by discovery."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import gradio as gr
from fastapi import Response
from gradio.routes import App
from starlette.routing import Route

from playground.lab import Lab, discover, folders
from playground.ledger import CONTENT_TYPE, ledger
from playground.shell import blocks
from playground.shell.endpoint import make_endpoint
from playground.shell.page import LabPage, block, concurrency
from playground.shell.theme import CSS, make_theme


def build(labs: Mapping[str, Lab] | None = None) -> gr.Blocks:
    """Every page; no model is touched, and no web app is made: ``launch`` does that."""
    found = list((labs if labs is not None else discover(folders())).values())
    with without_app():
        with gr.Blocks(title=blocks.PRODUCT, analytics_enabled=False, fill_width=True) as site:
            block(blocks.home(found))
        for i, lab in enumerate(found):
            before, after = found[i - 1] if i else None, found[i + 1] if i + 1 < len(found) else None
            with site.route(lab.title, f"/{lab.slug}", show_in_navbar=False):
                LabPage(lab, before, after)
                gr.api(make_endpoint(lab), api_name=lab.slug, api_description=lab.question, **concurrency(lab))
        return site.queue(default_concurrency_limit=4, max_size=64, api_open=False)


@contextmanager
def without_app() -> Iterator[None]:
    """``gr.Blocks`` makes its whole web app anew at the end of every page, for nobody: seconds with a dozen of them."""
    with patch.object(App, "create_app"), patch.object(gr.Blocks, "get_config_file", return_value={}):
        yield


def metrics(_request: object) -> Response:
    """What the runs of this process have counted, for Prometheus."""
    return Response(ledger.exposition(), media_type=CONTENT_TYPE)


def launch(**options: Any) -> None:
    """Serve the site. ``PORT`` or ``GRADIO_SERVER_PORT`` and ``GRADIO_SERVER_NAME`` say where; else 127.0.0.1:7860."""
    on_spaces = bool(os.environ.get("SPACE_ID"))
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    settings = {
        "server_name": os.environ.get("GRADIO_SERVER_NAME") or ("0.0.0.0" if on_spaces else "127.0.0.1"),
        "server_port": int(port) if port else None,
        "theme": make_theme(),
        "css": CSS,
        "run_history": False,
        "show_error": False,
        "max_file_size": "4mb",
        "app_kwargs": {"routes": [Route("/metrics", metrics)]},
        "ssr_mode": False,
        "pwa": False,
        "footer_links": [],
    }
    build().launch(**{**settings, **options})
