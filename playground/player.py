"""The player: one custom component. Its template is constant; all data travels in its value, one line per frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gradio as gr

HERE = Path(__file__).parent
TEMPLATE = (HERE / "player.html").read_text(encoding="utf-8")
CSS = (HERE / "player.css").read_text(encoding="utf-8")
JS = (HERE / "player.js").read_text(encoding="utf-8")


def make_player(invite: str, save: Callable[[str], str | None]) -> gr.HTML:
    """Frames of one run, stepped in the browser alone.

    Its value is the text of a ``Reel``. ``invite`` stands there before the first run. ``save`` gets a run id and
    returns the trace as JSON, or ``None`` when the run is gone. The event ``upload`` carries the text of a saved run.
    """
    return gr.HTML(
        "",
        html_template=TEMPLATE,
        js_on_load=JS,
        apply_default_css=False,
        server_functions=[save],
        elem_id="player",
        invite=invite,
        save_name=save.__name__,
    )
