"""Find a tritonserver on this machine and what it needs to run our Python models.

Knows where NVIDIA's container and the nvidia-pytriton wheel keep things; knows nothing of models, ports or processes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTAINER_BINARY = Path("/opt/tritonserver/bin/tritonserver")
STUB_NAME = "triton_python_backend_stub"
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGE_PARENT = Path(__file__).resolve().parents[2]


def checkout_repository() -> Path | None:
    """Return the model repository beside this package, None where the package was installed without one."""
    directory = PACKAGE_PARENT / "model_repository"
    return directory if directory.is_dir() else None


class LaunchError(Exception):
    """The server cannot be started: says what is wrong, the value, and the remedy."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver that can be started.

    `backend_directory` is None where the binary finds its own. `stub` is the process that runs a Python model, None
    where we do not know its place. `library_directories` must be searched for the stub's shared libraries.
    """

    description: str
    binary: Path
    backend_directory: Path | None
    stub: Path | None
    library_directories: tuple[Path, ...] = ()


def find_installation(cache_directory: Path | None = None) -> Installation:
    """Take the machine's own tritonserver where there is one, else the wheel's.

    `cache_directory` holds the backend folder assembled from the wheel; by default inside the running environment.
    Raises LaunchError where neither is there or the wheel has no stub for this Python.
    """
    native = native_binary()
    if native is not None:
        return _native_installation(native)
    wheel = _wheel_directory()
    if wheel is None:
        raise LaunchError(
            f"No tritonserver on PATH, in {CONTAINER_BINARY.parent} or in {sys.prefix}. "
            "Start with ./scripts/serve.sh, which installs one, or run: pip install 'oasr-backend[server]'"
        )
    return _wheel_installation(wheel, cache_directory or default_cache_directory())


def native_binary(container_binary: Path = CONTAINER_BINARY) -> Path | None:
    """Return the tritonserver on PATH, else the one in NVIDIA's container, else None."""
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return Path(on_path).resolve()
    return container_binary if os.access(container_binary, os.X_OK) else None


def default_cache_directory() -> Path:
    """Return the running environment's own cache folder, or the user's where that one cannot be written."""
    if os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "oasr_backend"
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "oasr_backend"


def _native_installation(binary: Path) -> Installation:
    stub = binary.parent.parent / "backends" / "python" / STUB_NAME
    return Installation(
        description="this machine's own tritonserver",
        binary=binary,
        backend_directory=None,
        stub=stub if stub.exists() else None,
    )


def _wheel_directory() -> Path | None:
    """Return pytriton/tritonserver in site-packages without importing pytriton, which would start much else."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0]) / "tritonserver"
    return directory if (directory / "bin" / "tritonserver").exists() else None


def _wheel_installation(wheel: Path, cache_directory: Path) -> Installation:
    version = importlib.metadata.version("nvidia-pytriton")
    backend_directory = assemble_backend(
        wheel, cache_directory / f"backends-{version}-python{PYTHON_VERSION}"
    )
    site_packages = wheel.parent.parent
    return Installation(
        description=f"the tritonserver of nvidia-pytriton {version}",
        binary=wheel / "bin" / "tritonserver",
        backend_directory=backend_directory,
        stub=backend_directory / "python" / STUB_NAME,
        library_directories=(site_packages / "nvidia_pytriton.libs", *_libpython_directory()),
    )


def _libpython_directory() -> tuple[Path, ...]:
    """Return the folder of this Python's shared library where the loader does not look (pyenv, uv, conda)."""
    directory = Path(sysconfig.get_config_var("LIBDIR") or "")
    return (directory,) if (directory / f"libpython{PYTHON_VERSION}.so.1.0").exists() else ()


def assemble_backend(wheel: Path, target: Path) -> Path:
    """Put the Python backend and the stub of the running Python into one folder, as tritonserver wants them.

    A finished folder is kept. Two servers may do this at once: each builds its own, the first to rename it wins, and
    a folder is never seen half filled.
    """
    if target.exists():
        return target
    stub = wheel / "python_backend_stubs" / PYTHON_VERSION / STUB_NAME
    if not stub.exists():
        available = ", ".join(
            sorted((path.name for path in stub.parent.parent.glob("3.*")), key=_minor_version)
        )
        raise LaunchError(
            f"This tritonserver cannot run models in Python {PYTHON_VERSION}, only in {available}. "
            "Remove .venv and start with one of these: PYTHON=python3.11 ./scripts/serve.sh"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".assembling-") as scratch:
        built = Path(scratch) / target.name
        shutil.copytree(
            wheel / "backends" / "python",
            built / "python",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy2(stub, built / "python" / STUB_NAME)
        (built / "python" / STUB_NAME).chmod(0o755)
        _rename_unless_there(built, target)
    return target


def _minor_version(version: str) -> int:
    return int(version.split(".")[1])


def _rename_unless_there(built: Path, target: Path) -> None:
    try:
        built.rename(target)
    except OSError:
        if not target.exists():
            raise


def server_environment(
    installation: Installation, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables under which tritonserver and its stubs run in this very Python environment.

    The stub is no venv's python: it takes its packages from the first python3 on PATH, and finds `oasr_backend` of a
    checkout through PYTHONPATH.
    """
    variables = dict(os.environ if base is None else base)
    _prepend(variables, "PATH", [Path(sys.prefix) / "bin"])
    _prepend(variables, "LD_LIBRARY_PATH", installation.library_directories)
    if not {"site-packages", "dist-packages"} & set(PACKAGE_PARENT.parts):
        _prepend(variables, "PYTHONPATH", [PACKAGE_PARENT])
    return variables


def _prepend(
    variables: dict[str, str], name: str, directories: tuple[Path, ...] | list[Path]
) -> None:
    parts = [str(directory) for directory in directories]
    parts += [variables[name]] if variables.get(name) else []
    if parts:
        variables[name] = os.pathsep.join(parts)


def check_stub(installation: Installation, environment: Mapping[str, str]) -> None:
    """Raise LaunchError where the process that runs Python models would not start for want of a library."""
    if installation.stub is None:
        return
    libraries = _loaded_libraries(installation.stub, environment)
    linked = re.search(r"libpython(3\.\d+)", " ".join(libraries))
    if linked and linked[1] != PYTHON_VERSION:
        raise LaunchError(
            f"{installation.description} runs models in Python {linked[1]}, but this environment ({sys.prefix}) is "
            f"Python {PYTHON_VERSION}. Remove .venv and start with PYTHON=python{linked[1]} ./scripts/serve.sh"
        )
    missing = [name for name, place in libraries.items() if place == "not found"]
    if missing:
        raise LaunchError(_missing_libraries_text(missing))


def known_flags(installation: Installation, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the flags that this release of tritonserver knows, by its own help text."""
    shown = subprocess.run(
        [str(installation.binary), "--help"],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    return frozenset(re.findall(r"^\s*(--[a-z][a-z0-9-]+)", shown.stdout, re.MULTILINE))


def _loaded_libraries(binary: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Ask the dynamic loader, as ldd does, where each shared library of `binary` comes from, without running it."""
    traced = subprocess.run(
        [str(binary)],
        env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    lines = (line.split("=>", 1) for line in traced.stdout.splitlines() if "=>" in line)
    return {name.strip(): place.split("(")[0].strip() for name, place in lines}


def _missing_libraries_text(missing: list[str]) -> str:
    if any(name.startswith("libpython") for name in missing):
        return (
            f"Python {PYTHON_VERSION} has no shared library on this machine (libpython{PYTHON_VERSION}.so.1.0), which "
            f"tritonserver needs to run models. Run: sudo apt-get install libpython{PYTHON_VERSION}"
        )
    return (
        f"tritonserver needs shared libraries that this machine lacks: {', '.join(missing)}. Install the packages that "
        "bring them (apt-file search NAME finds them), or use NVIDIA's container"
    )
