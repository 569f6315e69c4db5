"""The page of one lab: controls, figures, player, charts, texts; and what happens on Run, Stop, Open and on load."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gradio as gr

from playground.engine.trace import Trace
from playground.lab import BadInput, Lab, Progress, execute, params_of
from playground.player import make_player
from playground.shell import blocks, share
from playground.shell.controls import Controls
from playground.shell.endpoint import the_models
from playground.shell.reel import Reel, save_run, shelf
from playground.shell.request import Request, matching_preset, read_address, read_request

log = logging.getLogger("playground")
MAX_OPEN = 8_000_000  # characters of a saved run
Updates = dict[Any, Any]


def concurrency(lab: Lab) -> dict[str, Any]:
    """Runs on a model wait for one another, so that what they measure is theirs; others do not wait for them."""
    if "target" in lab.params.__dataclass_fields__:
        return {"concurrency_id": "model", "concurrency_limit": 1}
    return {"concurrency_id": "maths", "concurrency_limit": 4}


class LabPage:
    """Builds the page inside the current Blocks context; the methods are its events."""

    def __init__(self, lab: Lab, before: Lab | None, after: Lab | None) -> None:
        self.lab = lab
        self.reel_id = gr.State("")
        block(blocks.header(before, after))
        block(blocks.title(lab))
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=280, elem_id="controls"):
                self._build_controls()
            with gr.Column(scale=8, min_width=340):
                self._build_results()
        self._build_texts()
        self._wire()

    # --- Layout -----------------------------------------------------------------------------------------------------

    def _build_controls(self) -> None:
        choices = [("Your own values", ""), *((p.title, name) for name, p in self.lab.presets.items())]
        self.preset = gr.Dropdown(
            choices, value="", label="Preset", interactive=True, visible=bool(self.lab.presets), elem_id="preset"
        )
        self.note = block("", visible=bool(self.lab.presets))
        with gr.Row():
            self.run = gr.Button("Run", variant="primary", min_width=80, elem_id="run", interactive=False)
            self.stop = gr.Button("Stop", variant="secondary", min_width=80, elem_id="stop", interactive=False)
        self.controls = Controls(self.lab)

    def _build_results(self) -> None:
        self.alert = block(blocks.alert(), elem_id="alert")
        self.figures = block("", elem_id="figures")
        self.player = make_player("Press Run, or choose a preset first.", save_run)
        self.charts = []
        for chart in self.lab.charts:
            self.charts.append(gr.Plot(label=chart.title, visible=False, elem_classes="chart"))
            self.charts.append(block(blocks.Markup('<p class="chart-note">{}</p>').format(chart.note), visible=False))
        with gr.Accordion("Copy this run", open=False, elem_classes="share"):
            copied = {"buttons": ["copy"], "interactive": False}
            self.link = gr.Textbox(label="Link", elem_id="share-link", **copied)
            self.command = gr.Textbox(label="Command line", elem_id="share-command", **copied)
            self.call = gr.Textbox(label="API call", lines=6, elem_id="share-api", **copied)

    def _build_texts(self) -> None:
        lab = self.lab
        if lab.how:
            block(blocks.heading("How it works"))
            gr.Markdown(lab.how, elem_classes="how")
        block(blocks.heading("The code that runs"), visible=bool(lab.code(lab.params())))
        self.code = block(str(blocks.source(lab.code(lab.params()))), elem_id="code")
        if lab.questions:
            block(blocks.heading("Check yourself"))
            block(blocks.check_yourself(lab.questions, lab.presets))
        if lab.sources:
            block(blocks.heading("Sources"))
            block(blocks.sources(lab.sources))

    def _wire(self) -> None:
        private = {"api_visibility": "private", "show_progress": "hidden"}
        result = [self.alert, self.figures, self.player, *self.charts, self.link, self.command, self.call, self.code]
        result += [self.run, self.stop, self.reel_id]
        form = [self.preset, self.note, *self.controls.components]
        run = self.run.click(
            self.on_run,
            [self.preset, *self.controls.components],
            result,
            preprocess=False,  # every value is checked by read_request, in plain words
            trigger_mode="once",
            **private,
            **concurrency(self.lab),
        )
        stop = self.stop.click(None, None, None, cancels=[run], **private)
        stop.then(self.on_stop, [self.reel_id], result, queue=False, **private)
        self.preset.input(self.on_preset, [self.preset], form, preprocess=False, queue=False, **private)
        self.player.upload(self.on_open, None, [*result, *form], **private)
        page = gr.context.Context.root_block
        loaded = page.load(self.on_load, None, [*result, *form, *self.controls.groups.values()], queue=False, **private)
        loaded.then(None, None, None, js=AFTER_LOAD % repr(f"{self.lab.title} · {blocks.PRODUCT}"), **private)

    # --- Events -----------------------------------------------------------------------------------------------------

    def on_load(self, request: gr.Request) -> Updates:
        """Fill the controls from the URL, and hide those it asks to hide; only then may one press Run."""
        address = read_address(self.lab, dict(request.query_params))
        shown = self.fill(address.request, address.hidden)
        return shown | {
            self.alert: blocks.alert(address.problems),
            **self.describe(address.request, request),
            **self.idle,
        }

    def on_preset(self, preset: str) -> Updates:
        """Fill the controls with the preset's parameters."""
        name = preset if preset in self.lab.presets else ""
        return self.fill(read_request(self.lab, {}, name))

    def on_run(self, request: gr.Request, preset: str, *values: Any) -> Iterator[Updates]:
        """Run the lab and stream its frames. The last result stays where it is until the first new frame."""
        try:
            asked = read_request(self.lab, self.controls.named(values), preset if preset in self.lab.presets else "")
        except BadInput as error:
            yield {self.alert: blocks.alert([str(error)]), self.player: self.blank("failed")}
            return
        reel = Reel(self.lab)
        reel.write(query=share.query(asked))
        yield {
            self.alert: blocks.alert(),
            self.player: reel.text,
            self.reel_id: "",
            self.run: gr.update(interactive=False),
            self.stop: gr.update(interactive=True),
            **self.describe(asked, request),
        }
        problem = None
        try:
            with closing(execute(self.lab, asked.params, the_models())) as updates:
                yield from self.stream(reel, updates)
        except ValueError as error:  # a sentence: from a check, a model that cannot be had, or the engine
            log.info("The run of %s was refused", self.lab.slug, exc_info=not isinstance(error, BadInput))
            problem = str(error)
        except Exception as error:
            log.exception("The run of %s failed", self.lab.slug)
            problem = f"The run broke off: {type(error).__name__}: {error}"
        yield self.finish(reel, "failed" if problem else "done", problem)

    def stream(self, reel: Reel, updates: Iterator[Trace | Progress]) -> Iterator[Updates]:
        for update in updates:
            if isinstance(update, Progress):
                if reel.tell(update):
                    yield {self.player: reel.text}
                continue
            is_first = not reel.num_frames
            if reel.show(update):
                if is_first:
                    shelf.put(reel)
                yield {self.player: reel.text, self.reel_id: reel.id, **self.row(update)}

    def on_stop(self, reel_id: str) -> Updates:
        """What a stopped run has reached stays, and can be saved."""
        reel = shelf.get(reel_id)
        return self.finish(reel, "stopped") if reel else {self.player: self.blank("stopped"), **self.idle}

    def on_open(self, request: gr.Request, data: gr.EventData) -> Updates:
        """Draw a saved run without running anything."""
        try:
            text = data._data.get("text", "")
            if len(text) > MAX_OPEN:
                raise BadInput(f"This file has {len(text):,} characters; at most {MAX_OPEN:,} are read.")
            trace = Trace.from_json(text)
            slug = trace.provenance.get("lab")
            if slug != self.lab.slug:
                raise BadInput(f"This run belongs to the lab {str(slug)[:40]!r}; open it there.")
            params = params_of(self.lab, trace)
            opened = Request(self.lab, params, matching_preset(Request(self.lab, params)))
            reel = Reel(self.lab)
            reel.write(query=share.query(opened))
            reel.show(trace)
            if not reel.num_frames:
                raise BadInput("This run has no steps.")
            shelf.put(reel)
            finished = self.finish(reel, "done")
        except ValueError as error:  # BadInput, a damaged file
            return {self.alert: blocks.alert([str(error)])}
        except Exception as error:
            log.info("A saved run could not be drawn", exc_info=True)
            return {self.alert: blocks.alert([f"This saved run cannot be drawn: {type(error).__name__}: {error}"])}
        return {**self.fill(opened), **finished, **self.describe(opened, request), self.reel_id: reel.id}

    # --- Parts of what events return ----------------------------------------------------------------------------------

    @property
    def idle(self) -> Updates:
        return {self.run: gr.update(interactive=True), self.stop: gr.update(interactive=False)}

    def blank(self, reason: str) -> str:
        """A run that ended before its first frame: the player takes its progress line away and keeps what it shows."""
        reel = Reel(self.lab)
        reel.end(reason)
        return reel.text

    def finish(self, reel: Reel, reason: str, problem: str | None = None) -> Updates:
        reel.end(reason)
        updates = {self.player: reel.text, self.alert: blocks.alert([problem] if problem else ()), **self.idle}
        if reel.num_frames:
            updates |= {**self.row(reel.trace), **self.draw_charts(reel.trace)}
            if reason == "done" and self.figures not in updates:
                log.warning("The finished run of %s has no figures", self.lab.slug)
        return updates

    def row(self, trace: Trace) -> Updates:
        """The figures row; nothing while the summary cannot be told from a part of the run."""
        try:
            return {self.figures: blocks.figures(self.lab.figures(self.lab.summary(trace)))}
        except Exception:
            log.debug("No figures from this part of the run", exc_info=True)
            return {}

    def draw_charts(self, trace: Trace) -> Updates:
        updates: Updates = {}
        for i, chart in enumerate(self.lab.charts):
            try:
                figure = chart.draw(trace)
            except Exception:  # a chart that fails costs the chart, not the run
                log.exception("The chart %r of %s failed", chart.title, self.lab.slug)
                figure = None
            plot, note = self.charts[2 * i : 2 * i + 2]
            updates[plot] = gr.update(value=figure, visible=figure is not None)
            updates[note] = gr.update(visible=figure is not None and bool(chart.note))
        return updates

    def fill(self, asked: Request, hidden: frozenset[str] | None = None) -> Updates:
        preset: dict[str, Any] = {"value": asked.preset}
        if hidden is not None:
            preset["visible"] = bool(self.lab.presets) and "preset" not in hidden
        note = blocks.preset_note(self.lab.presets.get(asked.preset))
        return {self.preset: gr.update(**preset), self.note: note, **self.controls.fill(asked.params, hidden)}

    def describe(self, asked: Request, request: gr.Request) -> Updates:
        """The same run as a link, a command line and an API call, and the code it runs."""
        page = share.page_address(request.headers, self.lab.slug)
        query, left_out = share.query(asked), share.too_long(asked)
        link = f"{page}?{query}" if query else page
        return {
            self.link: f"Too long for a link: {', '.join(left_out)}. Save the run instead." if left_out else link,
            self.command: share.command(asked),
            self.call: share.api_call(asked, page.rsplit("/", 1)[0] + "/"),
            self.code: blocks.source(self.lab.code(asked.params)),
        }


AFTER_LOAD = """() => {
  document.title = %s;
  if (new URLSearchParams(location.search).get("run") === "1") setTimeout(() => {
    if (!document.querySelector("#alert .alert p")) document.getElementById("run")?.click();
  }, 50);
}"""


def block(html: str, **options: Any) -> gr.HTML:
    """A piece of still HTML, already escaped."""
    return gr.HTML(str(html), apply_default_css=False, **options)
