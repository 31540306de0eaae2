"""What a request's parameters may say, and the exact words that refuse the rest."""

import json
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oasr_backend.errors import ClientError
from oasr_backend.triton.requests import RequestOptions, read_options, read_rows

KNOWN = "sample_rate, language, task, priority, scheduling_priority, tenant, deadline_ms (this one not with streams)"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, RequestOptions(16000, None, "transcribe", 0, None, inf)),
        ({"sample_rate": 8000}, RequestOptions(sample_rate_hz=8000)),
        (
            {"sample_rate": "44100"},
            RequestOptions(sample_rate_hz=44100),
        ),  # as forwarded headers come
        ({"language": "en", "task": "translate"}, RequestOptions(language="en", task="translate")),
        ({"language": "EN"}, RequestOptions(language="en")),
        ({"priority": 2}, RequestOptions(priority=2)),
        ({"scheduling_priority": 3, "priority": 2}, RequestOptions(priority=3)),
        ({"scheduling_priority": 0, "priority": 2}, RequestOptions(priority=0)),
        ({"scheduling_priority": -1}, RequestOptions(priority=-1)),  # the scheduler clamps it
        ({"tenant": "acme", "deadline_ms": 250}, RequestOptions(tenant="acme", deadline_s=0.25)),
        ({"triton_enable_empty_final_response": True}, RequestOptions()),
    ],
)
def test_parameters_are_read(parameters, expected):
    assert read_options(json.dumps(parameters)) == expected


def test_no_parameters_at_all_are_the_defaults():
    assert read_options("") == RequestOptions()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"samplerate": 8000},
            f"parameter 'samplerate' (value 8000) is unknown; known are {KNOWN}: correct or remove it",
        ),
        (
            {"sample_rate": "fast"},
            "parameter 'sample_rate' is 'fast'; it must be a whole number: send an integer",
        ),
        (
            {"sample_rate": 16000.0},
            "parameter 'sample_rate' is 16000.0; it must be a whole number: send an integer",
        ),
        (
            {"sample_rate": True},
            "parameter 'sample_rate' is True; it must be a whole number: send an integer",
        ),
        ({"sample_rate": 0}, "parameter 'sample_rate' is 0; it must be at least 1: raise it"),
        ({"deadline_ms": 0}, "parameter 'deadline_ms' is 0; it must be at least 1: raise it"),
        (
            {"deadline_ms": 2**63 - 1},
            "parameter 'deadline_ms' is 9223372036854775807; it must be at most 86400000: lower it",
        ),
        (
            {"scheduling_priority": 10**400},
            f"parameter 'scheduling_priority' is 1{'0' * 99}...; it must be at most 2147483647: lower it",
        ),
        (
            {"tenant": "x" * 20000},
            f"parameter 'tenant' is '{'x' * 99}...; it must be a text of 1 to 128 characters: correct or remove it",
        ),
        (
            {"\u00e9" * 5000: 1},
            "parameter '"
            + "\\xe9" * 24
            + "\\xe... (value 1) is unknown; known are "
            + KNOWN
            + ": correct or remove it",
        ),
        (
            {"language": 7},
            "parameter 'language' is 7; it must be a text of 1 to 128 characters: correct or remove it",
        ),
        (
            {"tenant": ""},
            "parameter 'tenant' is ''; it must be a text of 1 to 128 characters: correct or remove it",
        ),
    ],
)
def test_a_bad_parameter_is_refused_by_name(parameters, text):
    with pytest.raises(ClientError) as caught:
        read_options(json.dumps(parameters))
    assert str(caught.value) == text


class Request:
    """A request's tensors."""

    def __init__(self, wav: np.ndarray, lengths: list[int]) -> None:
        self.arrays = {"WAV": wav, "WAV_LENS": np.array(lengths, np.int32).reshape(-1, 1)}

    def inputs(self) -> list[Any]:
        return [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda array=array: array)
            for name, array in self.arrays.items()
        ]


def test_samples_that_python_holds_are_not_copied():
    held = np.arange(10, dtype=np.float32)
    [row] = read_rows(Request(held.reshape(1, 10).view(), [8]))
    assert row.tolist() == list(range(8))
    assert np.shares_memory(row, held)


def test_samples_in_memory_of_somebody_else_are_copied():
    theirs = bytearray(np.arange(10, dtype=np.float32).tobytes())
    [row] = read_rows(Request(np.frombuffer(theirs, np.float32).reshape(1, 10), [10]))
    theirs[:] = bytes(40)
    assert row.tolist() == list(range(10))


def test_a_few_samples_do_not_hold_the_memory_of_many():
    wav = np.arange(20, dtype=np.float32).reshape(2, 10)
    for row, begin in zip(read_rows(Request(wav, [9, 9])), (0, 10), strict=True):
        assert row.tolist() == list(range(begin, begin + 9))
        assert not np.shares_memory(row, wav)
    [row] = read_rows(Request(np.zeros((1, 10), np.float32), [0]))
    assert row.size == 0
