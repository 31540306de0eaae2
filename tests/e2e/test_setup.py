"""How the scripts make .venv: once, whole, and with one clear error where that cannot be.

Each test works on a copy of the scripts with a lock of its own, mostly an empty one, so that no package is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_fixture import ROOT

BASE_PYTHON = Path(sys.base_prefix) / "bin" / "python3"
PREPARE = 'set -euo pipefail; . scripts/environment.sh; prepare_environment "$1"; echo ready'


class Checkout:
    """A folder with the scripts and locks of a clone, and nothing else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / "scripts", root / "scripts")
        (root / "requirements").mkdir()
        for name in ("base", "serve", "test"):
            self.write_lock(name, "# nothing\n")

    def write_lock(self, name: str, text: str) -> None:
        (self.root / "requirements" / f"{name}.txt").write_text(text)

    def start(self, lock: str = "serve", **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", PREPARE, "prepare", lock],
            cwd=self.root,
            env={**os.environ, "PYTHON": str(BASE_PYTHON), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def prepare(self, lock: str = "serve", **variables: str) -> subprocess.CompletedProcess[str]:
        started = self.start(lock, **variables)
        output, _ = started.communicate()
        return subprocess.CompletedProcess([], started.returncode, output)

    def stamps(self) -> list[str]:
        return sorted(path.name for path in (self.root / ".venv").glob(".in*"))


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "clone")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One checkout for the tests that need an environment, since making one takes seconds."""
    return Checkout(tmp_path_factory.mktemp("setup") / "clone")


@pytest.fixture
def prepared(shared):
    """The shared checkout, its environment ready."""
    shared.write_lock("serve", "# nothing\n")
    shared.prepare()
    return shared


def test_asking_for_help_installs_nothing(checkout):
    (checkout.root / "oasr_backend").symlink_to(ROOT / "oasr_backend")
    result = subprocess.run(
        ["./scripts/serve.sh", "--http-port", "1", "--help"],
        cwd=checkout.root,
        env={**os.environ, "PYTHON": str(BASE_PYTHON)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "--model-repository DIR" in result.stdout
    assert not (checkout.root / ".venv").exists()


def fake_python(path: Path, version: str, *, refuses: str = "nothing at all") -> Path:
    """Write a python3 that says `version`, lets every check pass but one that mentions `refuses`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *{refuses}*) exit 1 ;; *--version*) echo "Python {version}" ;; '
        f'*) exec {BASE_PYTHON} "$@" ;; esac\n'
    )
    path.chmod(0o755)
    return path


def test_two_starts_at_once_install_once_and_later_ones_nothing(checkout):
    starts = [checkout.start() for _ in range(2)]
    outputs = [start.communicate()[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert sorted("Installing" in output for output in outputs) == [False, True]
    assert checkout.stamps() == [".installed-base", ".installed-serve"]
    assert checkout.prepare().stdout == "ready\n"
    assert checkout.prepare("base").stdout == "ready\n", (
        "what serving needs holds what a container needs"
    )


def test_models_and_tools_find_the_package_of_the_checkout(prepared):
    package = prepared.root / "oasr_backend"
    package.mkdir()
    (package / "__init__.py").touch()
    python = prepared.root / ".venv" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import oasr_backend; print(oasr_backend.__file__)"],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{package}/__init__.py\n"


def test_interrupted_installation_is_redone_from_the_start(prepared):
    (prepared.root / ".venv" / ".installing").touch()
    (prepared.root / ".venv" / "half").touch()
    again = prepared.prepare()
    assert (
        again.stdout.splitlines()[0] == "The last installation was interrupted: .venv is made anew"
    )
    assert again.returncode == 0
    assert not (prepared.root / ".venv" / "half").exists()
    assert prepared.stamps() == [".installed-base", ".installed-serve"]


def test_changed_lock_is_installed_into_the_same_environment(prepared):
    (prepared.root / ".venv" / "kept").touch()
    prepared.write_lock("serve", "# another\n")
    assert "Installing" in prepared.prepare().stdout
    assert (prepared.root / ".venv" / "kept").exists()
    assert prepared.prepare().stdout == "ready\n"


def test_failed_installation_says_so_and_is_not_taken_for_done(prepared):
    prepared.write_lock("serve", f"sortedcontainers==2.4.0 --hash=sha256:{'0' * 64}\n")
    failed = prepared.prepare(PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1].startswith(
        "error: The packages of requirements/serve.txt could not be installed (see above)."
    )
    assert prepared.stamps() == [".installing"]


def test_unsupported_python_is_refused_by_name(checkout, tmp_path):
    python = fake_python(tmp_path / "bin" / "python3.9", "3.9.18", refuses="version_info")
    refused = checkout.prepare(PYTHON=str(python))
    assert (refused.returncode, refused.stdout) == (
        1,
        (
            f"error: {python} is Python 3.9.18: Python 3.11 or 3.12 is needed, for which all pinned packages have "
            "wheels.\n"
        ),
    )


def test_python_that_is_not_there_is_refused_by_name(checkout):
    refused = checkout.prepare(PYTHON="python3.99")
    assert (refused.returncode, refused.stdout) == (
        1,
        "error: PYTHON names python3.99, which is not on PATH.\n",
    )


def test_missing_venv_module_is_refused_with_the_command_that_installs_it(checkout, tmp_path):
    python = fake_python(tmp_path / "bin" / "python3", "3.11.2", refuses="ensurepip")
    refused = checkout.prepare(PYTHON=str(python))
    version = f"python3.{sys.version_info.minor}"
    assert (refused.returncode, refused.stdout) == (
        1,
        f"error: {python} has no venv module. Run: sudo apt-get install {version}-venv\n",
    )
    assert not (checkout.root / ".venv").exists()


def test_missing_python_is_refused_with_the_command_that_installs_it(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cut", "flock", "mkdir", "sha256sum"):
        (tools / name).symlink_to(shutil.which(name))
    refused = checkout.prepare(PYTHON="", PATH=str(tools))
    assert (refused.returncode, refused.stdout) == (
        1,
        "error: python3 is not on PATH. Run: sudo apt-get install python3 python3-venv\n",
    )
