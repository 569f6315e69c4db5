"""One file and one preset give a lab its page, its controls and its endpoint; nothing else was touched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from typing import Any

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from playground.lab import ROOT, Lab
from playground.player import TEMPLATE
from playground.shell import blocks
from playground.shell.controls import make_control
from playground.shell.site import build
from tests.shell.serving import Server


def test_no_template_carries_data() -> None:
    assert "${" not in TEMPLATE
    assert "{{" not in TEMPLATE


def test_controls_follow_the_fields(sample: Lab) -> None:
    import dataclasses
    import typing

    hints = typing.get_type_hints(sample.params)
    kinds = {f.name: type(make_control(f, hints[f.name])) for f in dataclasses.fields(sample.params)}
    assert kinds == {
        "prompt": gr.Textbox,
        "k": gr.Slider,
        "pause": gr.Slider,
        "rule": gr.Dropdown,
        "cap": gr.Number,
        "lengths": gr.Textbox,
        "marks": gr.CheckboxGroup,
        "breaks": gr.Checkbox,
        "seed": gr.Slider,
        "delay": gr.Slider,
    }


def test_one_public_endpoint_per_lab(sample: Lab) -> None:
    config = build({"sample": sample}).get_config_file()
    public = [d["api_name"] for d in config["dependencies"] if d["api_visibility"] == "public"]
    assert public == ["sample"]


def test_runs_on_a_model_wait_for_one_another_and_others_do_not(sample: Lab) -> None:
    site = build({"sample": sample})
    runs = [f for f in site.fns.values() if f.concurrency_id == "maths"]
    assert len(runs) == 2  # the page's and the endpoint's
    assert {f.concurrency_limit for f in runs} == {4}


def test_texts_are_escaped(sample: Lab) -> None:
    assert "<b>motion</b>" not in blocks.check_yourself(sample.questions, sample.presets)
    assert blocks.prose("`a<b`") == "<code>a&lt;b</code>"


def test_building_the_site_loads_no_model_library() -> None:
    code = "import sys, playground.shell.site as s; s.build(); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_endpoint_answers_like_the_command_line(server: Server, sample: Lab) -> None:
    client = Client(server.address, verbose=False)
    answer = client.predict(preset="slow", pause=0, cap=6, lengths=[2], api_name="/sample")
    assert list(answer) == ["lab", "preset", "params", "summary", "provenance"]
    assert answer["summary"]["output_tokens"] == 6
    assert (answer["params"]["k"], answer["params"]["lengths"]) == (2, [2])
    with pytest.raises(AppError, match="k must lie between 1 and 8"):
        client.predict(k=99, api_name="/sample")


def config_of(server: Server) -> dict[str, Any]:
    return httpx.get(server.address + "config").json()


def start_run(server: Server, http: httpx.Client, **values: Any) -> str:
    """Press Run as the page does; returns the session."""
    page = httpx.get(server.address + "sample").text
    config = json.loads(page.split("window.gradio_config = ")[1].split(";</script>")[0])
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
    names = {c["id"]: c["props"].get("elem_id", "") for c in config["components"]}
    event = next(d for d in config["dependencies"] if [ids["run"], "click"] in [list(t) for t in d["targets"]])
    defaults = {c["id"]: c["props"].get("value") for c in config["components"]}
    data = [values.get((names[i] or "").removeprefix("param-"), defaults[i]) for i in event["inputs"]]
    session = uuid.uuid4().hex
    body = {"fn_index": event["id"], "data": data, "session_hash": session, "trigger_id": ids["run"]}
    http.post(server.address + "gradio_api/queue/join", json=body).raise_for_status()
    return session


def test_a_run_ends_when_its_page_is_closed(server: Server) -> None:
    before = len(server.ended(1.0))
    with httpx.Client(timeout=60) as http:
        session = start_run(server, http, pause=1.0, cap=40)
        with http.stream("GET", server.address + f"gradio_api/queue/data?session_hash={session}") as stream:
            seen = 0
            for line in stream.iter_lines():
                seen += '"process_generating"' in line
                if seen >= 3:
                    break
    give_up = time.monotonic() + 20
    while len(server.ended(1.0)) == before and time.monotonic() < give_up:
        time.sleep(0.1)
    assert len(server.ended(1.0)) == before + 1
    assert server.ended(1.0)[-1] <= 6  # of about thirty


def test_a_prompt_that_is_too_long_is_refused_by_the_server(server: Server) -> None:
    with httpx.Client(timeout=60) as http:
        session = start_run(server, http, prompt="`" * 9_000)
        with http.stream("GET", server.address + f"gradio_api/queue/data?session_hash={session}") as stream:
            text = "\n".join(stream.iter_lines())
    assert "9,000 characters" in text
