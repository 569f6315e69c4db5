"""``/metrics`` of the running app: Prometheus text under vLLM's names, also while a run streams."""

from __future__ import annotations

import time

import httpx
from gradio_client import Client
from prometheus_client.parser import text_string_to_metric_families

from tests.shell.serving import Server


def scrape(server: Server) -> dict[str, float]:
    answer = httpx.get(server.address + "metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_counters_grow_while_a_run_streams_and_cover_all_of_it(server: Server) -> None:
    name = "vllm:generation_tokens_total"
    before = scrape(server).get(name, 0)
    client = Client(server.address, verbose=False)
    job = client.submit(preset="", pause=0.1, cap=12, k=1, api_name="/sample")
    seen = set()
    while not job.done():
        seen.add(scrape(server).get(name, 0) - before)
        time.sleep(0.1)
    assert scrape(server)[name] - before == job.result()["summary"]["output_tokens"] == 12
    assert any(0 < value < 12 for value in seen)
    assert (
        scrape(server)["vllm:spec_decode_num_draft_tokens_total"] >= scrape(server)["vllm:spec_decode_num_drafts_total"]
    )


def test_the_lab_reads_them(server: Server) -> None:
    client = Client(server.address, verbose=False)
    client.predict(preset="", cap=5, api_name="/sample")
    found = client.predict(scrapes=1, api_name="/acceptance_metrics")["summary"]
    assert found["counters"]["generation"] == scrape(server)["vllm:generation_tokens_total"]
    assert found["rejected_windows"] == []


def test_the_lab_reads_them_while_a_run_streams(server: Server) -> None:
    name = "vllm:generation_tokens_total"
    before = scrape(server).get(name, 0)
    job = Client(server.address, verbose=False).submit(preset="", pause=0.4, cap=30, k=1, api_name="/sample")
    while scrape(server).get(name, 0) == before:
        time.sleep(0.05)
    reader = Client(server.address, verbose=False)
    found = reader.predict(scrapes=4, every_s=0.6, api_name="/acceptance_metrics")["summary"]
    assert not job.done(), "the run ended before the lab had scraped"
    assert any(window["tokens_per_s"] for window in found["windows"][1:]), found["windows"]
    assert found["rejected_windows"] == []
    job.cancel()
