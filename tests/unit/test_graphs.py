"""Work at fixed shapes: what is captured, replayed, padded and counted, on a device that behaves as CUDA does there."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from oasr_backend.runtime.graphs import CaptureError, Spec, StaticCall, StaticCalls, next_above


class FakeDevice:
    """Captured work reads and writes the memory that it was captured with, and whatever that holds at a replay.

    Work is a function that is run again; what it reads by name is bound when it is captured, as addresses are.
    """

    def __init__(self, refuses=False):
        self.refuses = refuses
        self.num_allocations = 0

    def buffer(self, spec):
        self.num_allocations += 1
        return np.zeros(spec.shape, spec.dtype)

    def write(self, buffer, array):
        assert buffer.shape == np.shape(array)
        buffer[...] = array

    def read(self, buffer):
        return buffer.copy()

    def run(self, work):
        work()

    def capture(self, work):
        if self.refuses:
            raise CaptureError("operation not permitted")
        work()
        return work


class Doubling:
    """Doubles every number of (rows, length)."""

    def __init__(self):
        self.addresses = []

    def inputs(self, key):
        return {"x": Spec(key, "float32")}

    def outputs(self, key):
        return {"y": Spec(key, "float32")}

    def launch(self, _key, buffers):
        self.addresses.append((id(buffers["x"]), id(buffers["y"])))
        buffers["y"][...] = 2 * buffers["x"]


def test_a_replay_reads_what_the_buffers_hold_then():
    computation = Doubling()
    call = StaticCall(FakeDevice(), computation, (2, 3))
    call.capture()
    for value in (1.0, 5.0):
        call.write({"x": np.full((2, 3), value)})
        call.run()
        assert (call.read("y")[0] == 2 * value).all()
    assert len(set(computation.addresses)) == 1


def test_shared_buffers_are_one_memory_for_all_calls():
    device = FakeDevice()
    pool = device.buffer(Spec((2, 3), "float32"))
    calls = StaticCalls(device, Doubling(), "doubling", {"x": pool})
    pool[...] = 4
    call = calls.at((2, 3))
    calls.run(call)
    assert (call.read("y")[0] == 8).all()


def test_what_is_prepared_is_replayed_without_an_allocation_and_counted():
    device = FakeDevice()
    calls = StaticCalls(device, Doubling(), "doubling")
    calls.prepare([(1, 3), (2, 3)])
    allocated = device.num_allocations
    for key in ((1, 3), (2, 3), (2, 3)):
        calls.run(calls.at(key))
    assert (calls.num_replays, calls.num_eager) == (3, 0)
    assert device.num_allocations == allocated


def test_another_shape_runs_as_it_is_and_is_counted():
    calls = StaticCalls(FakeDevice(), Doubling(), "doubling")
    calls.prepare([(1, 3)])
    call = calls.at((7, 3))
    call.write({"x": np.ones((7, 3))})
    calls.run(call)
    assert (call.read("y")[0] == 2).all()
    assert (calls.num_replays, calls.num_eager) == (0, 1)


def test_a_capture_that_fails_is_a_warning_and_not_an_outage(caplog):
    caplog.set_level(logging.WARNING)
    calls = StaticCalls(FakeDevice(refuses=True), Doubling(), "doubling")
    calls.prepare([(1, 3), (2, 3)])
    call = calls.at((2, 3))
    call.write({"x": np.ones((2, 3))})
    calls.run(call)
    assert (call.read("y")[0] == 2).all()
    assert (calls.num_replays, calls.num_eager) == (0, 1)
    assert caplog.messages == [
        "doubling (1, 3) cannot be captured as a graph (operation not permitted): it runs without one, slower"
    ]


@pytest.mark.parametrize(
    ("wanted", "found"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 9)]
)
def test_a_batch_between_rungs_takes_the_next_one(wanted, found):
    assert next_above((1, 2, 4, 8), wanted) == found


def test_without_rungs_nothing_is_padded():
    assert next_above((), 7) == 7
