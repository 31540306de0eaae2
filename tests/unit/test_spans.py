"""NVTX ranges: what is named, and that nothing is done where they are off."""

import builtins
from contextlib import contextmanager

import pytest

from oasr_backend.errors import ConfigError
from oasr_backend.spans import Spans


def test_a_span_that_is_off_is_one_object_that_does_nothing():
    span = Spans()
    assert span("step") is span("decode")
    with span("step"), span("decode"):
        pass


def test_spans_nest_by_their_names():
    entered = []

    @contextmanager
    def annotate(name):
        entered.append(f"begin {name}")
        yield
        entered.append(f"end {name}")

    span = Spans()
    span.switch_on(annotate)
    with span("step"), span("forward"):
        pass
    assert entered == ["begin step", "begin forward", "end forward", "end step"]


def test_without_the_package_switching_on_is_refused(monkeypatch):
    real_import = builtins.__import__

    def fail(name, *arguments, **keywords):
        if name == "nvtx":
            raise ImportError(name)
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ConfigError) as caught:
        Spans().switch_on()
    assert str(caught.value) == (
        "nvtx is true; the package nvtx is not installed: pip install nvtx, or set it to false"
    )
