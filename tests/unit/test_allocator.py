"""Freed memory is kept: what is allocated again costs no page faults."""

import subprocess
import sys

PROGRAM = """
import ctypes, resource, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "keep":
    from oasr_backend.allocator import keep_freed_memory
    assert keep_freed_memory()

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
    assert second + third < 100 < first


def test_without_it_every_round_faults_everything_in():
    assert min(faults_of_three_rounds("default")) > 100
