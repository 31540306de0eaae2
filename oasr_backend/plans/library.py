"""TensorRT's Python module, of either flavour."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasr_backend.errors import ConfigError

FLAVOURS: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    # NVIDIA's own package, and what it is made of.
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}


def load_flavour(flavour: str) -> Any:
    """Return TensorRT's Python module; ConfigError where it is not installed."""
    library = _find(flavour)
    if library is not None:
        return library
    raise ConfigError(f"{FLAVOURS[flavour][0]} is not installed: docs/tensorrt.md says how")


def is_installed(flavour: str) -> bool:
    """Tell whether TensorRT of that flavour can be imported."""
    return _find(flavour) is not None


def _find(flavour: str) -> Any | None:
    for name in FLAVOURS[flavour]:
        try:
            _load_libraries(f"{FLAVOURS[flavour][0]}_libs")
            library = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(library, "Builder"):  # type stubs alone can be imported too
            return library
    return None


def _load_libraries(package: str) -> None:
    """Load the shared libraries that a wheel carries, since nothing tells the dynamic linker where they lie."""
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        for library in sorted(Path(folder).glob("*.so*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
