"""The folder in which a load test keeps what it measures: one at a time, and never another's figures."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from oasr_backend.errors import ConfigError
from oasr_backend.files import write_whole

SETTINGS = "settings.json"
KEPT = ("conformer.jsonl", "whisper.jsonl", "streams.jsonl", SETTINGS)
"""What a folder holds of earlier runs, beside `*-alone.csv`; nothing else in it is touched."""


class Folder:
    """A folder that is held from `with` on; ConfigError where another load test holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Folder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written to ({error.strerror}): name another folder with --output"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"{self.path} is in use by another load test: wait for it, or name another folder with --output"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def begin(self, settings: Mapping[str, Any], resume: bool) -> None:
        """Forget what earlier runs have measured, or go on from it; ConfigError where that was under other settings."""
        for model in self.path.glob("servers/*/repository/asr/config.pbtxt"):
            shutil.rmtree(model.parents[2])
        path = self.path / SETTINGS
        wanted = json.loads(json.dumps(settings, default=str))
        if resume and path.exists():
            _check_same(path, wanted)
            return
        if not resume:
            for name in KEPT:
                (self.path / name).unlink(missing_ok=True)
            for alone in self.path.glob("*-alone.csv"):
                alone.unlink()
        write_whole(path, (json.dumps(wanted, indent=1) + "\n").encode())


def _check_same(path: Path, wanted: Mapping[str, Any]) -> None:
    try:
        kept = json.loads(path.read_text("utf-8"))
        changed = [name for name in wanted if kept.get(name) != wanted[name]]
    except (ValueError, AttributeError):
        raise ConfigError(
            f"{path} holds no settings: leave --resume out, to measure anew"
        ) from None
    if changed:
        name = changed[0]
        raise ConfigError(
            f"{path.parent} was measured with {name} {kept.get(name)!r}, not {wanted[name]!r}: leave --resume out, or "
            "name another folder with --output"
        )
