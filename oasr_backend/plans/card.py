"""The card at hand, asked of NVIDIA's driver without any of its Python packages."""

from __future__ import annotations

import ctypes

from oasr_backend.errors import ConfigError

# <cuda.h>
_MAJOR, _MINOR = 75, 76


def compute_capability() -> str:
    """Return the compute capability of this machine's first card, as "8.9"; ConfigError where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ConfigError(
            f"there is no NVIDIA driver here ({error}): run this where the card is"
        ) from error
    device, values = ctypes.c_int(), []
    _check(driver.cuInit(0), "cuInit")
    _check(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        _check(
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device),
            "cuDeviceGetAttribute",
        )
        values.append(str(value.value))
    return ".".join(values)


def _check(code: int, call: str) -> None:
    if code != 0:
        raise ConfigError(f"NVIDIA's driver answers {call} with error {code}: see nvidia-smi")
