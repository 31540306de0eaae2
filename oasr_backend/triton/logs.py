"""Our log records in Triton's log. `pb_utils` is Triton's module, handed in."""

from __future__ import annotations

import logging
from typing import Any


class TritonLogHandler(logging.Handler):
    """Writes records through the Python backend's logger, at the level they have."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            self._logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.log_warn(text)
        else:
            self._logger.log_info(text)


def log_to_triton(pb_utils: Any) -> None:
    """Send our log records to Triton's log from now on."""
    root = logging.getLogger("oasr_backend")
    root.handlers = [TritonLogHandler(pb_utils.Logger)]
    root.setLevel(logging.INFO)
    root.propagate = False
