"""Work at fixed shapes: buffers that stay where they are, captured once as a graph and replayed from then on.

Which shape takes a batch, what is padded, and what is counted. It knows nothing of what is computed, nor of which
device does it: `Device` is CUDA, or a test's.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger(__name__)

Key = tuple[int, ...]
"""What a shape is known by: rows, and their length where it varies."""

Array = Any
Buffer = Any
Replay = Callable[[], None]


class CaptureError(Exception):
    """The device could not capture some work as a graph."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A buffer: its shape, and its element type by numpy's name ("bfloat16" where that is meant)."""

    shape: tuple[int, ...]
    dtype: str


class Device(Protocol):
    """Memory and work of one device, in order."""

    def buffer(self, spec: Spec) -> Buffer:
        """Return memory full of zeros that stays at its address."""

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy an array of the same shape into a buffer."""

    def read(self, buffer: Buffer) -> Array:
        """Return what a buffer holds once all work so far is done."""

    def run(self, work: Callable[[], None]) -> None:
        """Do work that only this device's memory is used for."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Do such work once and return what does it again, on the same buffers; CaptureError where it cannot be."""


class Computation(Protocol):
    """Something that is computed at any of some shapes."""

    def inputs(self, key: Key) -> Mapping[str, Spec]:
        """Return what it reads at a shape."""

    def outputs(self, key: Key) -> Mapping[str, Spec]:
        """Return what it writes."""

    def launch(self, key: Key, buffers: Mapping[str, Buffer]) -> None:
        """Compute it from buffers to buffers."""


class StaticCall:
    """A computation at one shape, with buffers of its own but for those that are shared."""

    def __init__(
        self,
        device: Device,
        computation: Computation,
        key: Key,
        shared: Mapping[str, Buffer] | None = None,
    ) -> None:
        self._device, self._computation, self._key = device, computation, key
        specs = {**computation.inputs(key), **computation.outputs(key)}
        shared = shared or {}
        self.buffers: dict[str, Buffer] = {
            name: shared[name] if name in shared else device.buffer(spec)
            for name, spec in specs.items()
        }
        self._replay: Replay | None = None

    def capture(self) -> None:
        """Capture it, so that every call replays it; CaptureError where that cannot be."""
        self._replay = self._device.capture(self._launch)

    @property
    def is_captured(self) -> bool:
        return self._replay is not None

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Fill buffers from arrays of their shape."""
        for name, array in arrays.items():
            self._device.write(self.buffers[name], array)

    def read(self, *names: str) -> list[Array]:
        """Return what outputs hold."""
        return [self._device.read(self.buffers[name]) for name in names]

    def run(self) -> None:
        """Compute the outputs of what the inputs hold now."""
        if self._replay is not None:
            self._replay()
        else:
            self._device.run(self._launch)

    def _launch(self) -> None:
        self._computation.launch(self._key, self.buffers)


class StaticCalls:
    """The calls of a computation, by shape; those that are prepared are replayed, any other one runs as it is.

    num_replays, num_eager: runs so far, of each kind.
    """

    def __init__(
        self,
        device: Device,
        computation: Computation,
        name: str,
        shared: Mapping[str, Buffer] | None = None,
    ) -> None:
        self._device, self._computation, self._name = device, computation, name
        self._shared = shared
        self._calls: dict[Key, StaticCall] = {}
        self._can_capture = True
        self.num_replays = self.num_eager = 0

    def prepare(self, keys: Iterable[Key]) -> None:
        """Lay out the buffers of these shapes and capture them; where the device refuses, only log it."""
        for key in keys:
            call = self._calls[key] = self._new(key)
            if not self._can_capture:
                continue
            try:
                call.capture()
            except CaptureError as error:
                self._can_capture = False
                log.warning(
                    "%s %s cannot be captured as a graph (%s): it runs without one, slower",
                    self._name,
                    key,
                    error,
                )

    def at(self, key: Key) -> StaticCall:
        """Return the call of a shape: the prepared one, else one with buffers of its own for this once."""
        return self._calls.get(key) or self._new(key)

    def run(self, call: StaticCall) -> None:
        """Run a call and count it."""
        call.run()
        if call.is_captured:
            self.num_replays += 1
        else:
            self.num_eager += 1

    def _new(self, key: Key) -> StaticCall:
        return StaticCall(self._device, self._computation, key, self._shared)


def next_above(sizes: Sequence[int], wanted: int) -> int:
    """Return the least of ascending sizes that is `wanted` at least; `wanted` itself beyond them all."""
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else wanted
