"""The one palette, and the CSS of everything inside a frame (``frame.css``).

Blue against vermillion stays distinct for every type of colour vision. Hue goes into borders and fills; text stays near
black or near white. Each state of a token has its own border and its own mark besides its colour.
"""

from __future__ import annotations

from pathlib import Path

CSS = Path(__file__).with_name("frame.css").read_text(encoding="utf-8")

# For charts, which cannot follow the theme: each stands at 3:1 or better on white and on near black.
SERIES = ("#2481bf", "#d4601c", "#0f9070", "#9a6bc9", "#b07d12", "#7f8896")
MUTED = "#7f8896"
GRID = "rgba(127,136,150,0.25)"
