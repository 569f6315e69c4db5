"""The one palette, and the CSS of everything inside a frame."""

from __future__ import annotations

CSS = """
:root {
  --ink: #14171f; --ink-2: #4b5263; --ink-3: #636b7a; --paper: #ffffff; --panel: #f6f7f9; --line: #dfe3ea; --line-2: #c6ccd8;
  --accept: #0072b2; --accept-bg: #e3f0f8; --reject: #c04a00; --reject-bg: #fbe9de; --recover: #b07400; --recover-bg: #fcf1d9;
  --bonus: #2a86b8; --bonus-bg: #e4f3fb; --mute: #8a93a3; --focus: #7c3aed;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, monospace;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
.dark { color-scheme: dark;
  --ink: #e8ebf1; --ink-2: #b3bac8; --ink-3: #97a0b1; --paper: #0f1218; --panel: #171b23; --line: #2a303c; --line-2: #3a4250;
  --accept: #56b4e9; --accept-bg: #10283a; --reject: #ff8a4c; --reject-bg: #36190b; --recover: #e9b23c; --recover-bg: #322508;
  --bonus: #8fd0f5; --bonus-bg: #122c3c; --mute: #7f899b; --focus: #a78bfa;
}
"""
