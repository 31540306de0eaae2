"""CUDA through PyTorch: memory that stays where it is, one stream, and graphs of work that was captured on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oasr_backend.runtime.graphs import CaptureError, Replay, Spec


class CudaDevice:
    """One card. Not for several threads at once: its owner runs one batch at a time."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._graph_memory = torch.cuda.graph_pool_handle()
        # Pinned memory on the way to a buffer and from it, by the buffer's address.
        self._staging: dict[int, Tensor] = {}

    def buffer(self, spec: Spec) -> Tensor:
        with torch.cuda.stream(self.stream):
            return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=self.device)

    def write(self, buffer: Tensor, array: Any) -> None:
        staging = self._staging_of(buffer)
        # What was staged before has been read by now: every batch ends with `read`, which waits.
        staging.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        with torch.cuda.stream(self.stream):
            buffer.copy_(staging, non_blocking=True)

    def read(self, buffer: Tensor) -> Any:
        staging = self._staging_of(buffer)
        with torch.cuda.stream(self.stream):
            staging.copy_(buffer, non_blocking=True)
        self.stream.synchronize()
        return staging.numpy().copy()

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            work()

    def capture(self, work: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        try:
            self.run(work)  # kernels are loaded and libraries set up by the first run
            self.stream.synchronize()
            with torch.cuda.graph(graph, pool=self._graph_memory, stream=self.stream):
                work()
        except RuntimeError as error:
            raise CaptureError(str(error).splitlines()[0]) from error
        return lambda: self.run(graph.replay)

    def _staging_of(self, buffer: Tensor) -> Tensor:
        address = buffer.data_ptr()
        if address not in self._staging:
            self._staging[address] = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        return self._staging[address]


class EagerCudaDevice(CudaDevice):
    """A card that captures nothing: every kernel is launched anew. What graphs gain is the difference."""

    def capture(self, _work: Callable[[], None]) -> Replay:
        raise CaptureError("graphs are switched off")
