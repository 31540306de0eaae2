"""Model repositories made for a run: copies of a shipped model folder with other options."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path


def copy_model(
    source: Path,
    repository: Path,
    name: str,
    parameters: Mapping[str, str | None],
    ladder: tuple[int, ...] = (),
    queue_delay_us: int | None = None,
    num_instances: int = 1,
) -> Path:
    """Copy a model folder into `repository`; set its ladder (empty: its own), queue delay (None: its own), instances,
    and parameters (None: removed). `max_batch_size` grows where the ladder needs it."""
    folder = repository / name
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "config.pbtxt"
    text = path.read_text()
    if ladder:
        largest = max(*ladder, *map(int, re.findall(r"max_batch_size: (\d+)", text)))
        text = _set(text, r"max_batch_size: \d+", f"max_batch_size: {largest}")
        sizes = ", ".join(map(str, ladder))
        text = _set(text, r"preferred_batch_size: \[[^]]*\]", f"preferred_batch_size: [ {sizes} ]")
    if queue_delay_us is not None:
        delay = f"max_queue_delay_microseconds: {queue_delay_us}"
        text = _set(text, r"max_queue_delay_microseconds: \d+", delay)
    text = _set(text, r"KIND_CPU count: \d+", f"KIND_CPU count: {num_instances}")
    for key, value in parameters.items():
        text = _without(text, key)
        if value is not None:
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    path.write_text(text)
    return folder


def _set(text: str, pattern: str, field: str) -> str:
    edited, found = re.subn(pattern, field, text)
    if found != 1:
        raise ValueError(f"config.pbtxt has {found} of {pattern!r}; it must have one")
    return edited


def _without(text: str, key: str) -> str:
    return re.sub(rf'parameters {{ key: "{key}" value {{ string_value: "[^"]*" }} }}\n', "", text)
