"""Servers for the end-to-end tests. `serve` starts any number; `asr_server` is one for all tests that only ask it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.server_fixture import SERVED_MODELS, RunningServer, running_server

Serve = Callable[..., RunningServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers: `serve(model_repository, ["--flag=..."])`; each must end with exit code 0 when the test ends."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def start(
            model_repository: Path, extra_flags: Sequence[str] = (), **options: int
        ) -> RunningServer:
            log_path = tmp_path / f"server-{next(numbers)}.log"
            return stack.enter_context(
                running_server(model_repository, log_path, extra_flags, **options)
            )

        yield start


@pytest.fixture(scope="session")
def asr_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The models that a clone serves, shared by every test that neither stops nor overloads the server."""
    log_path = tmp_path_factory.mktemp("asr-server") / "server.log"
    with running_server(SERVED_MODELS, log_path) as server:
        yield server
