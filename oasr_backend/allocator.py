"""Tell glibc to keep the memory that a forward frees, and Python to leave alone what was loaded.

By default glibc maps every large block anew and gives it back when it is freed, so that the kernel zeroes each layer's
activations page by page again, which costs a Whisper encoder on a CPU a good part of its time. It knows nothing of what
allocates.
"""

from __future__ import annotations

import ctypes
import gc

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8

_SETTINGS = (
    (_M_MMAP_MAX, 0),  # large blocks come from the heap too
    (_M_TRIM_THRESHOLD, 2**31 - 1),  # and the heap keeps what is freed
    (_M_TOP_PAD, 64 << 20),
    (_M_ARENA_MAX, 1),  # only the main heap can grow past 64 MB
)


def keep_freed_memory() -> bool:
    """Set it up for this process, for threads that start from now on; return False where libc is not glibc.

    The process then stays at the most memory that it ever needed at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, value) == 1 for option, value in _SETTINGS)


def freeze_loaded_objects() -> None:
    """Keep Python's collector from walking through all that is there by now again and again; it stays for good."""
    gc.collect()
    gc.freeze()
