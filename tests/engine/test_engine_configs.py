"""What the tables for serving engines say, parsed back."""

from __future__ import annotations

import json

import pytest

from playground.engine.engine_configs import runs, sglang, sglang_flags, vllm

RANGES = [(1, 64, 3), (65, 128, 1), (129, 512, 0)]


@pytest.mark.parametrize(
    ("drafter", "method", "has_model"),
    [("eagle", "eagle", True), ("medusa", "medusa", True), ("mtp", "mtp", False), ("ngram", "ngram", False),
     ("llama-3.2-1b", "draft_model", True)],
)  # fmt: skip
def test_the_vllm_value_is_json_with_the_ranges(drafter, method, has_model):
    config = json.loads(vllm(drafter, RANGES))
    assert config["method"] == method
    assert ("model" in config) == has_model
    assert config["num_speculative_tokens"] == 3
    assert config["num_speculative_tokens_per_batch_size"] == [list(r) for r in RANGES]


def test_the_sglang_file_names_the_first_batch_of_each_range():
    steps = {first: entry["candidate_steps"] for first, entry in json.loads(sglang("eagle3", RANGES)).items()}
    assert steps == {"1": [3], "65": [1], "129": [0]}
    flags = sglang_flags("eagle3", RANGES).replace("\\\n", "").split()
    assert flags[flags.index("--speculative-num-steps") + 1] == "3"
    assert flags[flags.index("--speculative-num-draft-tokens") + 1] == "4"
    assert sglang("medusa", RANGES) is None


def test_ranges_leave_no_gap():
    assert runs([(1, 1, 5), (4, 4, 2)]) == [(1, 3, 5), (4, 4, 2)]
    assert runs([]) == []
