"""Parameters from a URL, a preset, the command line: checked alike, written back without loss."""

from __future__ import annotations

import itertools
import shlex
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.lab import BadInput, Lab
from playground.shell import share
from playground.shell.request import read_address, read_request


def test_an_address_without_a_query_is_the_defaults(sample: Lab) -> None:
    address = read_address(sample, {})
    assert address.request.params == sample.params()
    assert (address.request.preset, address.hidden, address.problems) == ("", frozenset(), ())


def test_a_preset_is_the_base_and_values_lie_over_it(sample: Lab) -> None:
    params = read_address(sample, {"preset": "slow", "k": "5"}).request.params
    assert (params.pause, params.k, params.lengths) == (0.25, 5, (1, 3))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"k": "99"}, "k must lie between 1 and 8"),
        ({"k": "nan"}, "k must be a whole number"),
        ({"marks": "red,grey"}, "marks must be one of red, green, blue, not 'grey'"),
        ({"rule": "other"}, "rule must be one of sampling, greedy"),
        ({"nothing": "1"}, "no parameter 'nothing'"),
        ({"preset": "other"}, "no preset 'other'"),
        ({"prompt": "x" * 9000}, "9,000 characters"),
    ],
)
def test_a_bad_value_is_told_in_one_sentence_and_its_default_stands(sample: Lab, query: dict, word: str) -> None:
    address = read_address(sample, {"seed": "7", **query})
    assert len(address.problems) == 1
    assert word in address.problems[0]
    assert address.request.params == sample.params(seed=7)


def test_gradio_and_shell_words_are_no_parameters(sample: Lab) -> None:
    assert read_address(sample, {"__theme": "dark", "run": "1", "step": "3", "hide": "k"}).problems == ()


def test_hide_names_controls_only(sample: Lab) -> None:
    assert read_address(sample, {"hide": "k, seed,preset,bogus"}).hidden == {"k", "seed", "preset"}


def test_parameters_equal_to_a_preset_show_its_name(sample: Lab) -> None:
    assert read_address(sample, {"pause": "0.25", "k": "2", "lengths": "1,3"}).request.preset == "slow"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "prompt": st.text(max_size=40),
            "k": st.integers(1, 8),
            "pause": st.floats(0, 2),
            "cap": st.integers(1, 40),
            "breaks": st.booleans(),
            "lengths": st.lists(st.integers(1, 4), min_size=1, max_size=3),
            "marks": st.lists(st.sampled_from(["red", "green", "blue"]), max_size=3, unique=True),
        },
    ),
    st.sampled_from(["", "slow"]),
)
def test_link_and_command_line_give_the_same_parameters_back(sample: Lab, values: dict, preset: str) -> None:
    request = read_request(sample, values, preset)
    query = dict(parse_qsl(share.query(request), keep_blank_values=True))
    assert read_address(sample, query).request.params == request.params
    words = shlex.split(share.command(request))
    settings = dict(word.split("=", 1) for before, word in itertools.pairwise(words) if before == "--set")
    assert read_request(sample, settings, preset).params == request.params


def test_the_api_call_is_python_that_names_what_differs(sample: Lab) -> None:
    request = read_request(sample, {"prompt": "a'\n`", "lengths": [2]}, "slow")
    text = share.api_call(request, "http://localhost:1/")
    compile(text, "call", "exec")
    assert "preset='slow'" in text
    assert 'prompt="a\'\\n`"' in text
    assert "lengths=[2]" in text
    assert "pause" not in text


def test_an_unknown_preset_is_refused(sample: Lab) -> None:
    with pytest.raises(BadInput, match="there are slow"):
        read_request(sample, {}, "fast")


@pytest.mark.parametrize("value", [True, {"a": 1}, object()])
def test_a_number_must_be_a_number(sample: Lab, value: object) -> None:
    with pytest.raises(BadInput, match="k must be a whole number"):
        read_request(sample, {"k": value})


@pytest.mark.parametrize("preset", [["small"], {"a": 1}, 7])
def test_a_preset_that_is_no_name_is_refused(sample: Lab, preset: object) -> None:
    with pytest.raises(BadInput, match="There is no preset"):
        read_request(sample, {}, preset)
