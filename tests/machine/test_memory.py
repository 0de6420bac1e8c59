"""A process keeps the memory that it has freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from voxcpm_grpc.machine.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(30_720) for _ in range(600)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory(block=8 << 20, unused=64 << 20)
print(faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told to keep memory")
def test_freed_audio_needs_no_new_pages():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    first, second = map(int, result.stdout.split())
    assert first > 1000  # 18 MB in pages of 4 KiB at most
    assert second < first / 10
