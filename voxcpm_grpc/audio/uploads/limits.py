"""Resource limits of a decode worker, which it sets for itself. Files that exceed them are refused.

Linux enforces all of them. Other systems may not enforce the limit of memory; the duration of a job is limited anyway.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from voxcpm_grpc.audio.uploads.decode import MAX_RATE

try:
    import resource
except ImportError:  # the system is not a Unix
    resource = None

MIB = 1 << 20
DECODER_BYTES = 64 * MIB  # bytes of any codec, and of Python itself
SPARE_BYTES = 128 * MIB  # bytes that earlier jobs have freed and not returned to the system
BYTES_PER_BYTE = 16  # 8-bit samples become float32 in a few steps, some of which need a copy
BYTES_PER_SAMPLE = 16  # float32 samples: in pieces, as a whole, and resampled
SPARE_FILES = 8


def memory_for(size: int, max_seconds: float) -> int:
    """The bytes that decoding a recording of `size` bytes, and of at most `max_seconds`, can need."""
    return DECODER_BYTES + BYTES_PER_BYTE * size + round(BYTES_PER_SAMPLE * max_seconds * MAX_RATE)


class WorkerLimits:
    """Limits of this process. Make it once all libraries are loaded; it forbids core dumps and more open files."""

    def __init__(self) -> None:
        self._base = _data_bytes()
        if resource is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain the recording
            files = _highest_descriptor() + 1 + SPARE_FILES
            with suppress(ValueError, OSError):  # the limit is lower already
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    def begin_job(self, memory_bytes: int, cpu_seconds: float) -> None:
        """Limit the next job. Beyond `memory_bytes` allocations fail; beyond `cpu_seconds` SIGXCPU ends the process."""
        if resource is None:
            return
        if self._base is not None:
            _set_soft(resource.RLIMIT_DATA, self._base + SPARE_BYTES + memory_bytes)
        _set_soft(resource.RLIMIT_CPU, math.ceil(time.process_time() + cpu_seconds))

    @property
    def worn_out(self) -> bool:
        """True if earlier jobs left so much memory behind that a new process should do the next one."""
        return self._base is not None and (_data_bytes() or 0) > self._base + SPARE_BYTES


def _set_soft(kind: int, value: int) -> None:
    assert resource is not None
    _, hard = resource.getrlimit(kind)
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (allowed, hard))


def _data_bytes() -> int | None:
    """The private memory of this process, as RLIMIT_DATA counts it; None if the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return None
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return (int(found[1]) << 10 if found else 0) or None


def _highest_descriptor() -> int:
    folder = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"
    return max((int(name) for name in os.listdir(folder)), default=2)  # noqa: PTH208 - needs names, not paths
