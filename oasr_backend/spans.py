"""Names for what the program is doing, in NVIDIA's profilers: NVTX ranges, where they are on.

It knows nothing of what is named. Where they are off, a span is one shared object that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from oasr_backend.errors import ConfigError

Annotate = Callable[[str], AbstractContextManager[Any]]

_OFF: AbstractContextManager[Any] = nullcontext()


class Spans:
    """Opens spans, once they are switched on."""

    def __init__(self) -> None:
        self._annotate: Annotate | None = None

    def switch_on(self, annotate: Annotate | None = None) -> None:
        """Open NVTX ranges from now on, or what `annotate` opens; ConfigError where the package is missing."""
        self._annotate = annotate or _nvtx()

    def __call__(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that names what happens within it."""
        return _OFF if self._annotate is None else self._annotate(name)


span = Spans()
"""The process has one: a profiler sees all of it or nothing."""


def _nvtx() -> Annotate:
    try:
        import nvtx
    except ImportError as error:
        raise ConfigError(
            "nvtx is true; the package nvtx is not installed: pip install nvtx, or set it to false"
        ) from error
    return lambda name: nvtx.annotate(name, domain="oasr")
