"""The one palette, and the CSS of everything inside a frame.

Blue against vermillion stays distinct for every type of colour vision. Hue goes into borders and fills; text stays near
black or near white. Each state of a token has its own border and its own mark besides its colour.
"""

from __future__ import annotations

PALETTE = """
:root {
  --ink: #14171f; --ink-2: #4b5263; --ink-3: #606877; --paper: #ffffff; --panel: #f6f7f9; --line: #dfe3ea; --line-2: #c0c7d4;
  --accept: #0072b2; --accept-bg: #e3f0f8; --reject: #c04a00; --reject-bg: #fbe9de; --recover: #a86e00; --recover-bg: #fcf1d9;
  --bonus: #2a86b8; --bonus-bg: #e4f3fb; --mute: #858e9e; --focus: #7c3aed;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
.dark { color-scheme: dark;
  --ink: #e8ebf1; --ink-2: #b3bac8; --ink-3: #9ba4b4; --paper: #0f1218; --panel: #1a1f28; --line: #2a303c; --line-2: #465063;
  --accept: #56b4e9; --accept-bg: #10283a; --reject: #ff8a4c; --reject-bg: #36190b; --recover: #e9b23c; --recover-bg: #322508;
  --bonus: #8fd0f5; --bonus-bg: #122c3c; --mute: #7f899b; --focus: #a78bfa;
}
"""

BLOCKS = """
.dp, .dp * { box-sizing: border-box; }
.dp { display: grid; grid-template-columns: minmax(0, 1fr); gap: 22px; color: var(--ink); font: 15px/1.5 var(--sans); text-align: left; }
.dp p { margin: 0; }
.dp .sr { position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.dp .head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 16px; margin: 0 0 7px; font-size: 13px; color: var(--ink-3); }
.dp .head b { font-weight: 600; color: var(--ink-2); }
.dp .num, .dp .head { font-variant-numeric: tabular-nums; }
.dp .scroll { overflow-x: auto; max-width: 100%; padding: 3px; margin: -3px; border-radius: 6px; scrollbar-width: thin; }
.dp :focus-visible { outline: 2px solid var(--focus); outline-offset: 1px; }
.dp .detail { min-height: 1.5em; margin-top: 8px; padding: 1px 0 1px 10px; border-left: 3px solid var(--line-2); font-size: 13px; color: var(--ink-2);
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.dp .note { padding: 8px 12px; border-left: 3px solid var(--line-2); border-radius: 0 6px 6px 0; background: var(--panel); font-size: 14px; overflow-wrap: anywhere; }
.dp .note.good { border-color: var(--accept); } .dp .note.warn { border-color: var(--recover); } .dp .note.bad { border-color: var(--reject); }
.dp .legend { display: flex; flex-wrap: wrap; gap: 6px 10px; font-size: 12px; }
.dp .legend .tok { font-size: 12px; padding: 1px 6px; }
.dp .columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 20px; }
.dp .columns > * { min-width: 0; }
.dp table { border-collapse: separate; border-spacing: 0; width: auto; margin: 0; font-size: 14px; color: inherit; }
.dp table th, .dp table td { border: 0; background: none; padding: 0; text-align: left; font-weight: 400; }
.dp table.plain th, .dp table.plain td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.dp table.plain thead th { font-size: 13px; color: var(--ink-3); }
.dp table.plain .num { text-align: right; }
.dp table caption { text-align: left; font-size: 13px; color: var(--ink-3); padding-bottom: 4px; }
"""

TOKENS = """
.dp .strip { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 3px; font: 14px/1.4 var(--mono); }
.dp .strip .more { font: 13px/1.4 var(--sans); color: var(--ink-3); margin-right: 4px; }
.dp .tok { position: relative; display: inline-block; max-width: 100%; min-width: 1.4em; padding: 2px 5px; border: 1.5px solid transparent; border-radius: 6px;
  background: var(--panel); color: var(--ink-2); font-family: var(--mono); text-align: center; white-space: pre; overflow: hidden; text-overflow: ellipsis; vertical-align: top; }
.dp .tok i { font-style: normal; color: var(--mute); }
.dp .tok[class*=" "] { color: var(--ink); }
.dp .tok.accepted { background: var(--accept-bg); border-color: var(--accept); }
.dp .tok.rejected { background: var(--reject-bg); border-color: var(--reject); text-decoration: line-through; text-decoration-color: var(--reject); text-decoration-thickness: 1.5px; }
.dp .tok.recovered { background: var(--recover-bg); border: 1.5px dashed var(--recover); }
.dp .tok.bonus { background: var(--bonus-bg); border: 3px double var(--bonus); padding: .5px 3.5px; }
.dp .tok.plain { border-color: var(--line-2); }
.dp .tok.unjudged { background: none; color: var(--ink-3); border: 1.5px dotted var(--mute); }
.dp .tok.discarded { background: none; color: var(--ink-3); border: 1.5px dashed var(--mute); text-decoration: line-through; }
.dp .tok.blocked { color: var(--ink-2); border-color: var(--mute); background: repeating-linear-gradient(135deg, var(--line) 0 2px, transparent 2px 6px); }
.dp .tok .mk { font: 600 11px/1 var(--sans); margin-right: 4px; color: var(--ink-2); display: inline-block; text-decoration: none; }
.dp .mk.accepted, .dp .accepted > .mk { color: var(--accept); } .dp .mk.rejected, .dp .rejected > .mk { color: var(--reject); }
.dp .mk.recovered, .dp .recovered > .mk { color: var(--recover); } .dp .mk.bonus, .dp .bonus > .mk { color: var(--bonus); }
.dp .mk.unjudged, .dp .mk.discarded { color: var(--mute); }
.dp .lock { display: inline-block; width: 9px; height: 11px; background: currentColor; vertical-align: -1px;
  clip-path: path("M0 5h1V3.5A3.5 3.5 0 0 1 8 3.5V5h1v6H0zM2.4 5h4.2V3.5a2.1 2.1 0 0 0-4.2 0z"); }
.dp table.verify { border-spacing: 5px 4px; margin: 0 -5px; font: 14px/1.4 var(--mono); }
.dp table.verify th { font: 13px/1.4 var(--sans); color: var(--ink-3); white-space: nowrap; padding-right: 10px; }
.dp table.verify thead th { padding: 0; text-align: center; font-size: 12px; font-variant-numeric: tabular-nums; }
.dp table.verify td { text-align: center; vertical-align: middle; }
.dp table.verify td .tok { display: block; max-width: 13em; margin: 0 auto; width: fit-content; }
.dp table.verify .mk { font: 600 14px/1.2 var(--sans); }
.dp table.verify tr.out > * { padding-top: 5px; border-top: 1px solid var(--line-2); }
"""

KV = """
.dp .kv { display: grid; gap: 10px; }
.dp .kv > div { display: grid; grid-template-columns: 68px minmax(0, 1fr); gap: 2px 10px; align-items: center; font-size: 13px; color: var(--ink-3); }
.dp .kv .says { grid-column: 2; font-variant-numeric: tabular-nums; }
.dp .cells { display: flex; flex-wrap: wrap; gap: 2px; align-items: center; }
.dp .cells span { margin-right: 4px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.dp .cells i { width: 17px; height: 17px; border-radius: 3px; background: var(--line); font: 600 10px/17px var(--sans); text-align: center; color: var(--ink-2); }
.dp .cells i.kept { background: var(--accept-bg); box-shadow: inset 0 0 0 1.5px var(--accept); color: var(--accept); }
.dp .cells i.back { background: repeating-linear-gradient(45deg, var(--reject-bg) 0 3px, transparent 3px 6px); box-shadow: inset 0 0 0 1.5px var(--reject); color: var(--reject); }
.dp .cells i.missing { background: none; border: 1.5px dashed var(--recover); color: var(--recover); line-height: 14px; }
.dp .cells i.empty { background: none; box-shadow: inset 0 0 0 1.5px var(--line-2); }
"""

BARS = """
.dp .clock { display: grid; grid-template-columns: auto minmax(0, 1fr) auto; gap: 7px 10px; align-items: center; font-size: 13px; color: var(--ink-3); }
.dp .clock svg { display: block; width: 100%; height: 18px; background: var(--panel); border-radius: 4px; }
.dp .clock b { color: var(--ink); font-weight: 600; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.dp .clock .axis { grid-column: 2; display: flex; justify-content: space-between; font-size: 12px; font-variant-numeric: tabular-nums; margin-top: -4px; }
.dp .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 10px; }
.dp .draft { fill: var(--recover); background: var(--recover); } .dp .verify-ms { fill: var(--accept); background: var(--accept); }
.dp .other { fill: var(--ink-3); background: var(--ink-3); } .dp .plain-ms { fill: var(--mute); background: var(--mute); }
.dp table.law { width: 100%; min-width: 300px; table-layout: fixed; font-size: 13px; }
.dp table.law th, .dp table.law td { padding: 2px 10px 2px 0; vertical-align: middle; }
.dp table.law thead th { color: var(--ink-3); padding-bottom: 4px; }
.dp table.law tbody th { font-family: var(--mono); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.dp table.law tr.tail th { font-family: var(--sans); color: var(--ink-3); }
.dp .bar { display: grid; grid-template-columns: minmax(0, 1fr) 5ch; gap: 6px; align-items: center; font-variant-numeric: tabular-nums; }
.dp .bar > span:last-child { text-align: right; color: var(--ink-2); }
.dp .track { display: flex; height: 12px; border-radius: 3px; background: var(--panel); overflow: hidden; }
.dp .track i { display: block; height: 100%; min-width: 1px; }
.dp .c-p, .dp .c-0 { background: var(--accept); } .dp .c-q, .dp .c-1 { background: var(--recover); } .dp .c-2 { background: var(--mute); } .dp .c-4 { background: var(--bonus); }
.dp .c-residual, .dp .c-3 { background: repeating-linear-gradient(45deg, var(--reject) 0 3px, transparent 3px 5px), var(--reject-bg); }
.dp .stack { display: grid; gap: 6px; }
.dp .stack .track { height: 20px; border-radius: 5px; gap: 1px; }
.dp .stack .keys { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--ink-2); font-variant-numeric: tabular-nums; }
.dp .stack .key { margin-left: 0; }
@media (max-width: 560px) {
  .dp { gap: 18px; }
  .dp .kv > div { grid-template-columns: 56px minmax(0, 1fr); }
  .dp table.law th, .dp table.law td { padding-right: 6px; }
}
"""

JUDGING = """
.dp .says { font-size: 13px; color: var(--ink-2); font-variant-numeric: tabular-nums; margin: 4px 0 8px; }
.dp .says b { color: var(--ink); font-weight: 600; }
.dp .coin { position: relative; height: 14px; border-radius: 3px; overflow: hidden; box-shadow: inset 0 0 0 1px var(--reject);
  background: repeating-linear-gradient(45deg, var(--reject-bg) 0 3px, transparent 3px 6px); margin: 2px 0 4px; }
.dp .coin i { position: absolute; inset: 0 auto 0 0; background: var(--accept-bg); box-shadow: inset 0 0 0 1.5px var(--accept); }
.dp .coin b { position: absolute; top: 0; bottom: 0; width: 3px; margin-left: -1.5px; background: var(--ink); box-shadow: 0 0 0 1px var(--paper); }
.dp .head .tok { font-size: 13px; padding-block: 0; }
.dp .track { position: relative; }
.dp .track b { position: absolute; top: 0; bottom: 0; width: 2px; margin-left: -1px; background: var(--ink); box-shadow: 0 0 0 1px var(--paper); }
.dp svg.curve { display: block; width: 100%; max-width: 640px; height: auto; }
.dp svg.curve path { fill: none; stroke-width: 2; stroke: var(--mute); }
.dp svg.curve .seen { stroke: var(--accept); } .dp svg.curve .expected { stroke-dasharray: 7 5; }
.dp svg.curve .error { stroke: var(--reject); stroke-dasharray: 2 4; } .dp svg.curve circle { fill: var(--accept); }
.dp svg.curve text { fill: var(--ink-3); font: 12px var(--sans); }
.dp table.plain tr.now > * { background: var(--panel); font-weight: 600; }
"""

CSS = PALETTE + BLOCKS + TOKENS + KV + BARS + JUDGING

# For charts, which cannot follow the theme: each stands at 3:1 or better on white and on near black.
SERIES = ("#2481bf", "#d4601c", "#0f9070", "#9a6bc9", "#b07d12", "#7f8896")
MUTED = "#7f8896"
GRID = "rgba(127,136,150,0.25)"
