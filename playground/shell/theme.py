"""How the pages look: Gradio's default theme on the palette of the views, and the CSS of the page around them."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from playground.player import CSS as PLAYER_CSS
from playground.views.style import CSS as VIEWS_CSS

CSS = "\n".join([VIEWS_CSS, (Path(__file__).parent / "page.css").read_text(encoding="utf-8"), PLAYER_CSS])

FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "Cascadia Mono", "Menlo", "Consolas", "monospace"]

# Theme variables that follow the palette, in light and dark alike.
PALETTE = {
    "body_background_fill": "var(--paper)",
    "background_fill_primary": "var(--paper)",
    "background_fill_secondary": "var(--panel)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--ink-3)",
    "block_background_fill": "var(--paper)",
    "block_border_color": "var(--line)",
    "block_label_text_color": "var(--ink-2)",
    "block_title_text_color": "var(--ink)",
    "block_info_text_color": "var(--ink-3)",
    "border_color_primary": "var(--line)",
    "border_color_accent": "var(--accept)",
    "color_accent_soft": "var(--accept-bg)",
    "input_background_fill": "var(--paper)",
    "input_border_color": "var(--line-2)",
    "input_border_color_focus": "var(--focus)",
    "input_placeholder_color": "var(--ink-3)",
    "slider_color": "var(--accept)",
    "link_text_color": "var(--accept)",
    "link_text_color_hover": "var(--ink)",
    "link_text_color_active": "var(--accept)",
    "link_text_color_visited": "var(--accept)",
    "code_background_fill": "var(--panel)",
    "button_primary_background_fill": "var(--ink)",
    "button_primary_background_fill_hover": "var(--ink-2)",
    "button_primary_text_color": "var(--paper)",
    "button_primary_text_color_hover": "var(--paper)",
    "button_secondary_background_fill": "var(--paper)",
    "button_secondary_background_fill_hover": "var(--panel)",
    "button_secondary_text_color": "var(--ink)",
    "button_secondary_text_color_hover": "var(--ink)",
    "button_secondary_border_color": "var(--line-2)",
    "checkbox_background_color_selected": "var(--accept)",
    "checkbox_border_color": "var(--ink-3)",
    "checkbox_border_color_selected": "var(--accept)",
}


def make_theme() -> gr.themes.Default:
    """System fonts (nothing is fetched), the palette in place of Gradio's greys and orange."""
    theme = gr.themes.Default(font=FONT, font_mono=MONO, spacing_size="sm", radius_size="lg")
    names = {name for name in vars(theme) if not name.startswith("_")}
    dark = {f"{name}_dark": value for name, value in PALETTE.items() if f"{name}_dark" in names}
    return theme.set(**PALETTE, **dark, block_shadow="none", block_shadow_dark="none", button_primary_shadow="none")
