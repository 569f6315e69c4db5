"""The beam lab: summary names, edges of blocks and pools, refusals in one sentence, frames that fit their step."""

from __future__ import annotations

import json
import re

import pytest

from models.load import Models
from playground.engine.kv import BlockPool, BlockTable, Write
from playground.engine.trace import Trace
from playground.lab import BadInput, execute, read_params
from playground.labs import beam_kv
from playground.labs.beam_kv import LAB

TOY = {"target": "table", "prompt": "the cat sees a small bird", "block_size": 4, "max_new_tokens": 8}
KEYS = (
    "bytes_copied_lane bytes_shared_lane bytes_vllm_lane peak_blocks copies frees recomputed_tokens same_beams "
    "best_text scores priced_mib"
)


def traces(**raw) -> list[Trace]:
    updates = execute(LAB, read_params(LAB.params, {**TOY, **raw}), Models())
    return [update for update in updates if isinstance(update, Trace)]


def result(**raw) -> dict:
    return LAB.summary(traces(**raw)[-1])


def test_summary():
    found = result()
    assert set(KEYS.split()) <= set(found)
    assert set(found["priced_mib"]) == {"separate", "best", "worst", "this_run"}
    assert found["same_beams"] is True
    assert found["largest_gap"] == 0
    assert found["bytes_shared_lane"] == found["peak_blocks"] * 4 * 16
    assert found["bytes_shared_lane"] < found["bytes_copied_lane"]
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert found["priced_mib"]["best"] <= found["priced_mib"]["this_run"] <= found["priced_mib"]["worst"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("beams", [1, 2, 8])
@pytest.mark.parametrize("block_size", [1, 5, 32])
def test_every_width_and_block_size(beams, block_size):
    found = result(beams=beams, block_size=block_size)
    assert found["same_beams"] is True
    assert found["blocks_left"] == 0
    assert found["first_fork_copies"] == (beams - 1 if 6 % block_size else 0)
    assert found["blocks"]["vllm"] == found["blocks"]["shared"] <= found["blocks"]["copied"]


@pytest.mark.parametrize(("tokens", "copies"), [(1000, 3), (992, 0), (1008, 0)])
def test_priced_fork(tokens, copies):
    assert result(block_size=16, priced_prompt_tokens=tokens)["priced_fork_copies"] == copies


def test_one_new_token_needs_no_beam():
    found = result(max_new_tokens=1)
    assert found["bytes_copied_lane"] is None
    assert found["peak_blocks"] == 2
    assert found["output_tokens"] == 1
    assert found["priced_mib"]["this_run"] is None


def test_a_missing_copy_on_write_is_seen(monkeypatch):
    class WritesInPlace(BlockPool):
        def append(self, table):
            if offset := table.num_tokens % self.block_size:
                return BlockTable(table.blocks, table.num_tokens + 1), Write(table.blocks[-1], offset)
            return super().append(table)

    monkeypatch.setattr(beam_kv, "BlockPool", WritesInPlace)
    assert result()["same_beams"] is False


def test_a_pool_that_runs_out_says_so_and_frees_everything():
    trace = traces(block_size=2, pool_blocks=7, max_new_tokens=12)[-1]
    found = LAB.summary(trace)
    assert found["finish_reason"] == "out of blocks"
    assert (found["blocks_left"], found["peak_blocks"]) == (0, 7)
    last = LAB.frame(trace, LAB.num_frames(trace) - 1)
    assert "the pool has run out" in last.status
    assert "All 7 blocks of 2 rows are in use." in last.html


def test_frames():
    for trace in traces():
        assert LAB.figures(LAB.summary(trace))
        for i in range(LAB.num_frames(trace)):
            assert LAB.frame(trace, i).status
    assert LAB.num_frames(trace) == 8
    first, last = LAB.frame(trace, 0), LAB.frame(trace, 7)
    assert first.status.startswith("Step 1: 4 beams kept, 4 pruned; 3 forks, 3 copied, 0 freed; 5 blocks in use, 8 if")
    assert first.html.count("<small> 3 rows</small>") == 4  # the seventh token is the third row of the second block
    assert first.html.count("← 1") == 3
    assert "every block is given back" in last.status
    assert "Outputs" in last.html
    assert all(chart.draw(trace) is not None for chart in LAB.charts)
    assert Trace.from_json(trace.to_json()) == trace


def test_the_grid_shows_each_block_with_its_holders():
    trace = traces()[-1]
    now = beam_kv.steps_of(trace, "blocks")[0]
    grid = re.search(r'<div class="pool".*?</div>', LAB.frame(trace, 0).html).group()
    cells = re.findall(r'<i class="(\w+)">(\d*)</i>', grid)
    assert [int(held or 0) for _, held in cells] == [now.ref_count(i) for i in range(trace.provenance["num_blocks"])]
    assert cells[0] == ("shared", "4")
    assert [kind for kind, _ in cells].count("copied") == 3


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"beams": 9}, "beams must lie"),
        ({"beams": 0}, "beams must lie"),
        ({"block_size": 33}, "block_size must lie"),
        ({"max_new_tokens": 0}, "max_new_tokens must lie"),
        ({"early_stopping": "maybe"}, "early_stopping must be one of"),
        ({"length_penalty": "nan"}, "length_penalty must be a number"),
        ({"pool_blocks": 1}, "The prompt alone needs 2 blocks; the pool has 1"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "the dodo"}, "dodo"),
        ({"prompt": "the cat " * 255}, "510 tokens and 8 new ones are more than the 512"),
        ({"priced_target": "gpt-9"}, "'gpt-9'"),
    ],
)
def test_refusals_are_one_sentence(raw, says):
    with pytest.raises(BadInput) as caught:
        result(**raw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "meant"), [(True, True), (False, False), ("Never", "never"), ("true", True)])
def test_early_stopping_is_read_from_json_too(given, meant):
    assert read_params(LAB.params, {"early_stopping": given}).search["early_stopping"] is meant


def test_hostile_token_text_is_escaped():
    trace = traces()[-1]
    spoilt = Trace(trace.lanes, dict.fromkeys(trace.texts, "<img src=x onerror=1>${x}"), trace.provenance)
    for i in range(LAB.num_frames(spoilt)):
        assert "<img" not in LAB.frame(spoilt, i).html
