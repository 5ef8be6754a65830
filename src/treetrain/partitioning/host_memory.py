"""Letting the C library give large blocks back to the system, so that a process holds what it uses.

glibc gives blocks above a threshold a mapping of their own, which is gone when they are freed; but
it raises the threshold to the largest block that was freed, up to 32 MiB, and what is freed below
it stays with the process in pieces. A training step on the CPU then holds up to twice the bytes of
its tensors.
"""

from __future__ import annotations

import ctypes
import platform

#: Bytes from which a block has a mapping of its own: what glibc starts with.
MAPPED_FROM = 2**17
_M_MMAP_THRESHOLD = -3


def give_back_freed_blocks() -> bool:
    """Fix the threshold of this process, and give back what is free now.

    Large tensors cost system calls then, a tenth or so of a small model's step.

    Returns:
        Whether the C library is one that has such a threshold.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
    library.malloc_trim(0)
    return True
