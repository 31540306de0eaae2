"""Notice that the process of a model has died.

tritonserver 2.51 does not: it calls the model ready, refuses each new request with INTERNAL, and leaves those that the
process had accepted without an answer for ever. It knows nothing of what is then to be done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

STUB = re.compile(rb"/(?P<model>[^/\0]+)/\d+/model\.py\0")
"""In the command line of a Python backend's process: the model.py that it runs."""


class ModelWatch:
    """Looks at the children of one tritonserver, a look a second or so."""

    def __init__(self, server_pid: int, proc: Path = Path("/proc")) -> None:
        self._server_pid = server_pid
        self._proc = proc
        self._models: dict[int, str] = {}
        self._suspects: set[int] = set()

    def dead_models(self) -> list[str]:
        """Return the models one of whose processes has died since the last looks.

        Triton collects a process that it has ended itself. One that is dead and uncollected at two looks has died.
        """
        children = dict(self._children())
        dead = {pid for pid, state in children.items() if state == "Z" and pid in self._models}
        for pid in children.keys() - dead - self._models.keys():
            match = STUB.search(self._read(pid, "cmdline"))
            if match:
                self._models[pid] = match["model"].decode()
        found = sorted({self._models.pop(pid) for pid in dead & self._suspects})
        self._suspects = dead
        self._models = {pid: model for pid, model in self._models.items() if pid in children}
        return found

    def _children(self) -> Iterator[tuple[int, str]]:
        """Yield the id and state of the server's children."""
        for entry in self._proc.glob("[0-9]*"):
            fields = self._read(int(entry.name), "stat").rpartition(b")")[2].split()
            if len(fields) > 1 and int(fields[1]) == self._server_pid:
                yield int(entry.name), fields[0].decode()

    def _read(self, pid: int, name: str) -> bytes:
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return b""  # it has just gone
