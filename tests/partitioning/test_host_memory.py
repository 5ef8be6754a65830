from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GROWTH = """
import sys, torch
if sys.argv[1] == "fixed":
    from treetrain.partitioning.host_memory import give_back_freed_blocks
    assert give_back_freed_blocks()

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024

del (large := [torch.ones(2**22)])[:]  # a block of 16 MiB, which raises the threshold
blocks = [torch.ones(2**20) for _ in range(64)]
full = resident()
kept = blocks[-1]
del blocks
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the threshold")
def test_freed_blocks_go_back_below_one_that_is_kept():
    freed = {
        name: int(
            subprocess.run(
                [sys.executable, "-c", GROWTH, name], capture_output=True, text=True, check=True
            ).stdout
        )
        for name in ("fixed", "as_it_is")
    }
    assert freed["fixed"] > 60 * 2**22
    assert freed["as_it_is"] < freed["fixed"] / 2
