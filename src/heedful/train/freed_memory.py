"""Memory that a training step frees is kept for the next step."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Of mallopt(3): what is freed at the heap's end before it goes back, and what has a map of its own
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MOST_TRIMMED, LARGEST = 1 << 30, 32 << 20  # bytes; glibc allows no larger maps in its heap


def keep_freed_memory() -> bool:
    """Tell glibc to give freed memory back late; whether it is glibc, and could be told.

    Each step takes and frees the same tensors. By default glibc returns the larger ones to the
    system, which must fill them with zeros again: some 2,500 page faults a step of 12 × 64 tokens
    and width 128. It holds for the whole process; the most that it has in use at once is the same.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library, or no Unix
        libc = ctypes.CDLL("libc.so.6")
        told = libc.mallopt(TRIM_THRESHOLD, MOST_TRIMMED), libc.mallopt(MMAP_THRESHOLD, LARGEST)
        return all(told)
    return False
