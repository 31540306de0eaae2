"""The container's description: linted, and naming only what is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yaml"],
    ],
    ids=lambda command: command[0],
)
def test_its_linter_is_content(command):
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DL" not in done.stdout


def test_what_is_copied_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    sources = [
        source
        for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE)
        for source in [part for part in line.split() if not part.startswith("--")][:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in kept, source


def test_its_commands_can_run():
    [entry_point] = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    [health] = re.findall(r"CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    for command in (json.loads(entry_point), json.loads(health)):
        assert os.access(ROOT / command[0], os.X_OK)


def test_it_is_served_by_a_user_of_its_own():
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[-1].split(":")[0] not in (
        "root",
        "0",
    )


def test_requirements_of_the_gpu_are_those_of_the_package():
    extras = (ROOT / "pyproject.toml").read_text()
    for line in (ROOT / "requirements" / "gpu.txt").read_text().splitlines():
        name = line.split("==")[0]
        if "==" in line and not name.startswith("tensorrt"):
            assert f'"{line}"' in extras, line
