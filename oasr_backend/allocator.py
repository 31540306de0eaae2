"""Tell glibc to keep the memory that a forward frees, the kernel to back it with huge pages, and Python to leave alone
what was loaded.

By default glibc maps every large block anew and gives it back when it is freed, so that the kernel zeroes each layer's
activations page by page again, which costs a Whisper encoder on a CPU a good part of its time; and in pages of 4 kB a
processor spends some more on looking up addresses. It knows nothing of what allocates.
"""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

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

_RESERVED_BYTES = 1 << 30
"""Of addresses, which are no memory until they are used."""

COLLECT_AFTER = 50_000
"""Objects that are made and not freed again."""

# <sys/mman.h>
_MADV_HUGEPAGE = 14
_HUGE_PAGE_BYTES = 2 << 20


def prepare_heap() -> bool:
    """Set it up for this process, for threads that start from now on; return False where libc is not glibc.

    The process then stays at the most memory that it ever needed at once, the first gigabyte of it in huge pages where
    the kernel has them (/sys/kernel/mm/transparent_hugepage/enabled not "never").
    """
    try:
        libc = ctypes.CDLL(None)
        is_set = all(libc.mallopt(option, value) == 1 for option, value in _SETTINGS)
    except (OSError, AttributeError):
        return False
    if is_set:
        _grow_heap(libc)
        _use_huge_pages(libc)
    return is_set


def _grow_heap(libc: ctypes.CDLL) -> None:
    """Have the heap's addresses reach far, so that they can be advised on before they are used."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(_RESERVED_BYTES))  # malloc may refuse, and free takes that too


def _use_huge_pages(libc: ctypes.CDLL) -> None:
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    maps = Path("/proc/self/maps").read_text("utf-8")
    for start, end in re.findall(r"^(\w+)-(\w+) .*\[heap\]$", maps, re.MULTILINE):
        first = -(-int(start, 16) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        length = (int(end, 16) - first) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if length > 0:
            # A kernel without them refuses, and nothing is lost.
            libc.madvise(first, length, _MADV_HUGEPAGE)


def freeze_loaded_objects() -> None:
    """Keep Python's collector from walking through all that is there by now again and again; it stays for good.

    And from looking after every few requests for cycles, of which they make none.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
