"""Write a page of results: a text in which {{NAME}} stands for what the step NAME printed.

{{machine}} stands for the machine and the versions that ran. A step that has not run is named as such.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from oasr_backend.cores import num_cores
from oasr_backend.errors import ConfigError
from oasr_backend.files import write_whole

PACKAGES = ("onnxruntime", "ctranslate2", "faster-whisper", "sherpa-onnx", "tritonclient", "numpy")
EXTENSIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8")
PLOT = re.compile(r"!\[[^]]*\]\((.*)\)")
PLACE = re.compile(r"\{\{([\w-]+)\}\}")


def write_page(template: Path, steps: Path, page: Path) -> None:
    """Fill `template` with what lies in the folder `steps`; the plots that it shows are copied beside the page.

    STEP/MODEL-WHAT.png becomes performance/STEP-WHAT.png.
    """

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        if name == "machine":
            return machine()
        printed = steps / f"{name}.txt"
        return printed.read_text("utf-8").strip() if printed.exists() else not_run(name)

    def show(plot: re.Match[str]) -> str:
        return plot[0] if (page.parent / plot[1]).exists() else f"{plot[1]}: not drawn yet"

    if not steps.is_dir():
        raise ConfigError(f"{steps} is no folder: name the one in which the steps' outputs lie")
    plots = page.parent / "performance"
    plots.mkdir(parents=True, exist_ok=True)
    content = template.read_text("utf-8")
    for plot in sorted(steps.glob("*/*.png")):
        name = f"{plot.parent.name}-{plot.name.partition('-')[2]}"
        if f"(performance/{name})" in content:
            shutil.copy(plot, plots / name)
    text = PLOT.sub(show, PLACE.sub(fill, content))
    write_whole(page, text.encode())


def not_run(name: str) -> str:
    """Return what stands in place of a step's output: how to get it."""
    return f"not run on this machine: ./scripts/benchmark.sh {name}"


def machine() -> str:
    """Return the processor, the cores in use and the versions, a line each."""
    lines = [
        f"{processor(Path('/proc/cpuinfo').read_text())}, {num_cores()} cores in use",
        f"{platform.platform()}, Python {platform.python_version()}",
        *(f"{name} {_version(name)}" for name in PACKAGES),
    ]
    return "\n".join(lines)


def processor(cpuinfo: str) -> str:
    """Return a processor's name and those of its extensions that decide how fast it multiplies matrices."""
    models = re.findall(r"model name\s*: (.*)", cpuinfo)
    flags = set(" ".join(re.findall(r"flags\s*: (.*)", cpuinfo)[:1]).split())
    extensions = " ".join(name for name in EXTENSIONS if name in flags)
    name = models[0] if models else platform.machine()
    return f"{name} ({extensions})" if extensions else name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("error: three paths are needed: the template, the folder of steps, the page")
    try:
        write_page(*map(Path, sys.argv[1:4]))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        sys.exit(f"error: {error}")
