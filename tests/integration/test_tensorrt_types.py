"""Our calls of TensorRT against its types, since the library itself is nowhere to be had without NVIDIA's index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLERS = ("oasr_backend/plans/build.py", "oasr_backend/runtime/tensorrt.py")

# tensorrt-stubs is made from docstrings, and five of its signatures are no Python.
REPAIRS = (
    (r"channel_axis: int\) -> IScaleLayer", "channel_axis: int = ...) -> IScaleLayer"),
    (r"([(,] ?)in: list", r"\1in_: list"),
)


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("tensorrt", "tensorrt_bindings"):
        shutil.copytree(installed / name, folder / name)
    broken = folder / "tensorrt_bindings" / "tensorrt.pyi"
    text = broken.read_text()
    for pattern, repaired in REPAIRS:
        text = re.sub(pattern, repaired, text)
    broken.write_text(text)
    return folder


def errors_of(types, *paths):
    """Return mypy's errors in the given files; those in the stubs themselves are not ours."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--no-error-summary",
            f"--cache-dir={types / 'cache'}",
            *paths,
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{types}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert not [line for line in lines if "[syntax]" in line], lines
    return [line for line in lines if line.startswith(tuple(map(str, paths)))]


def test_our_calls_are_those_that_tensorrt_has(types):
    assert errors_of(types, *CALLERS) == []


def test_a_call_that_it_has_not_would_be_found(types, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import tensorrt as trt\n\n\n"
        "def build(builder: trt.Builder) -> None:\n"
        '    builder.create_netwerk("typed")\n'
    )
    [error] = errors_of(types, wrong)
    assert 'has no attribute "create_netwerk"' in error
