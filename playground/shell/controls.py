"""Controls from ``Params``: one Gradio component per field."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import gradio as gr

from playground.lab import MAX_TEXT, Lab, write_value

CARDS_TEMPLATE = '<ol class="order"></ol>'
CARDS_JS = Path(__file__).with_name("cards.js").read_text(encoding="utf-8")


def kind_of(hint: Any) -> tuple[type, bool]:
    """The plain type behind a hint (``tuple`` for lists), and whether ``None`` is allowed."""
    is_optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    kinds = [t for t in typing.get_args(hint) if t is not type(None)] if isinstance(hint, types.UnionType) else [hint]
    return typing.get_origin(kinds[0]) or kinds[0], is_optional


def shown(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    """A parameter as its component holds it: names to tick as a list, other lists as text, all else as it is."""
    kind, _ = kind_of(hint)
    if kind is tuple and field.metadata.get("choices"):
        return list(value or ())
    if kind is tuple or (value is None and kind is str):
        return write_value(value)
    return value


def make_control(field: dataclasses.Field, hint: Any) -> gr.components.Component:
    """The component for one field: its metadata says which."""
    meta, (kind, is_optional) = field.metadata, kind_of(hint)
    common = {
        "value": shown(field, hint, field.default),
        "label": meta.get("label") or field.name,
        "info": meta.get("info") or None,
        "interactive": True,
        "elem_id": f"param-{field.name}",
    }
    low, high, step = meta.get("min"), meta.get("max"), meta.get("step")
    if kind is bool:
        return gr.Checkbox(**common)
    if meta.get("choices") is not None:
        if kind is tuple:
            return gr.CheckboxGroup(list(meta["choices"]), **common)
        return gr.Dropdown(list(meta["choices"]), allow_custom_value=bool(meta.get("free")), **common)
    if kind in (int, float):
        if low is not None and high is not None and not is_optional:
            return gr.Slider(low, high, step=step or (1 if kind is int else (high - low) / 100), buttons=[], **common)
        return gr.Number(precision=0 if kind is int else None, step=step or (1 if kind is int else 0.1), **common)
    lines = meta.get("lines", 1)
    return gr.Textbox(lines=lines, max_lines=max(lines, 12), max_length=meta.get("max_chars", MAX_TEXT), **common)


def make_upload(field: dataclasses.Field, box: gr.components.Component) -> None:
    """A button that fills a text box from files, with lines ``---`` between them."""
    keep, most = field.metadata["from_file"], field.metadata["max_chars"]

    def read(files: list[str]) -> str:
        try:
            text = "\n---\n".join(keep(Path(file).read_text(encoding="utf-8", errors="replace")) for file in files)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None
        finally:
            for file in files:
                Path(file).unlink(missing_ok=True)
        if len(text) > most:
            raise gr.Error(f"{len(text):,} characters are too many; at most {most:,} are read.", print_exception=False)
        return text

    button = gr.UploadButton("Fill from files", size="sm", file_count="multiple", elem_classes="upload")
    button.upload(read, button, box, queue=False, show_progress="hidden", api_visibility="private")


def make_cards(field: dataclasses.Field) -> gr.HTML:
    """Cards below a text box that holds an order: they follow the box, and a card that is moved rewrites it."""
    return gr.HTML(
        "",
        html_template=CARDS_TEMPLATE,
        js_on_load=CARDS_JS,
        apply_default_css=False,
        parameter=field.name,
        title=field.metadata["label"],
        cards=json.dumps(list(field.metadata["cards"].items())),
        elem_classes="order-cards",
    )


class Controls:
    """All controls of a lab, in the order of its fields, those of one ``group`` together under its heading."""

    def __init__(self, lab: Lab) -> None:
        self.fields = dataclasses.fields(lab.params)
        self.hints = typing.get_type_hints(lab.params)
        self.groups: dict[str, gr.Accordion] = {}
        self.by_name: dict[str, gr.components.Component] = {}
        for group in dict.fromkeys(f.metadata.get("group", "") for f in self.fields):
            fields = [f for f in self.fields if f.metadata.get("group", "") == group]
            if not group:
                self._make(fields)
            else:
                with gr.Accordion(group, open=False) as self.groups[group]:
                    self._make(fields)

    def _make(self, fields: list[dataclasses.Field]) -> None:
        for field in fields:
            self.by_name[field.name] = box = make_control(field, self.hints[field.name])
            if field.metadata.get("from_file"):
                make_upload(field, box)
            if field.metadata.get("cards"):
                make_cards(field)

    @property
    def components(self) -> list[gr.components.Component]:
        return [self.by_name[f.name] for f in self.fields]

    def named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Values of ``components`` by parameter name."""
        return {f.name: value for f, value in zip(self.fields, values, strict=True)}

    def fill(self, params: Any, hidden: frozenset[str] | None = None) -> dict[Any, Any]:
        """Updates that show ``params``; with ``hidden``, also which controls and headings are out of the way."""
        updates: dict[Any, Any] = {}
        for field in self.fields:
            update: dict[str, Any] = {"value": shown(field, self.hints[field.name], getattr(params, field.name))}
            if hidden is not None:
                update["visible"] = field.name not in hidden
            updates[self.by_name[field.name]] = gr.update(**update)
        for group, accordion in self.groups.items() if hidden is not None else ():
            names = {f.name for f in self.fields if f.metadata.get("group") == group}
            updates[accordion] = gr.update(visible=not names <= hidden)
        return updates
