"""The player: one custom component. Its template is constant; all data travels in its value, one line per frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).parent
CSS = (HERE / "player.css").read_text(encoding="utf-8")
JS = (HERE / "player.js").read_text(encoding="utf-8")

TEMPLATE = """
<section class="player" aria-label="Steps of the run">
  <div class="bar">
    <button type="button" class="prev" aria-label="Previous step" disabled><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 3v10M13 3 6 8l7 5z"/></svg></button>
    <button type="button" class="play primary" aria-label="Play" disabled><svg viewBox="0 0 16 16" aria-hidden="true"><path class="go" d="M4 2.5 13 8l-9 5.5z"/><path class="halt" d="M4 3h3v10H4zM9 3h3v10H9z"/></svg></button>
    <button type="button" class="next" aria-label="Next step" disabled><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M12 3v10M3 3l7 5-7 5z"/></svg></button>
    <input type="range" class="seek" min="1" max="1" value="1" step="1" aria-label="Step" disabled>
    <output class="count"></output>
    <label class="pace wide"><span class="sr">Pace</span><select class="speed"><option value="1800">½×</option><option value="900" selected>1×</option><option value="450">2×</option><option value="200">4×</option></select></label>
  </div>
  <div class="progress" hidden><span class="what"></span><progress max="1"></progress></div>
  <div class="status" role="status"></div>
  <div class="picture"><div class="empty"><p class="invite"></p><p class="keys">Then <kbd>Space</kbd> plays, <kbd>←</kbd> <kbd>→</kbd> step, <kbd>Home</kbd> <kbd>End</kbd> jump.</p></div></div>
  <p class="detail fallback" hidden></p>
  <div class="foot">
    <button type="button" class="save" disabled>Save this run</button>
    <button type="button" class="open">Open a saved run</button>
    <input type="file" class="file" accept=".json,application/json" aria-label="A saved run" hidden>
  </div>
</section>
"""


class Player(gr.HTML):
    """Frames of one run, stepped in the browser alone.

    ``value``: the text of a ``Reel``. ``invite``: what stands there before the first run. ``save`` gets a run id and
    returns the trace as JSON, or ``None`` when the run is gone. The event ``upload`` carries the text of a saved run.
    """

    def __init__(
        self, value: str = "", *, invite: str = "", save: Callable[[str], str | None] | None = None, **options: Any
    ) -> None:
        super().__init__(
            value,
            html_template=TEMPLATE,
            js_on_load=JS,
            apply_default_css=False,
            server_functions=[save] if save else None,
            invite=invite,
            save_name=save.__name__ if save else "",
            **options,
        )

    def get_block_name(self) -> str:
        return "html"
