"""Freed memory is kept: what is allocated again costs no page faults. And what is used comes in huge pages."""

import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PROGRAM = """
import ctypes, resource, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "keep":
    from oasr_backend.allocator import prepare_heap
    assert prepare_heap()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    for _ in range(3):
        before = faults()
        block = libc.malloc(64 << 20)
        libc.memset(block, 1, 64 << 20)
        libc.free(block)
        seen.append(faults() - before)

seen = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*seen)
"""


def faults_of_three_rounds(mode):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True
    )
    return [int(word) for word in result.stdout.split()]


def test_memory_that_was_freed_is_not_faulted_in_again():
    first, second, third = faults_of_three_rounds("keep")
    assert second + third < 20 < first  # 32 huge pages make 64 MB


def test_without_it_every_round_faults_everything_in():
    assert min(faults_of_three_rounds("default")) > 100


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(),
    reason="this kernel gives no huge pages",
)
def test_the_heap_comes_in_huge_pages():
    """A page fault brings 2 MB, not 4 kB."""
    first, _, _ = faults_of_three_rounds("keep")
    assert first < 1000  # 16384 are 64 MB
