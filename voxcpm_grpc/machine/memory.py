"""Memory of the process that the C library keeps after it was freed. No torch."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h has these options of mallopt
MOST_BLOCK = 32 << 20  # glibc takes no larger block


def keep_freed_memory(*, block: int, unused: int) -> bool:
    """Keep memory that was freed for the next use, instead of giving it back to the system each time.

    The system clears memory that it provides, which took a third of the time of the codec's decoder at eight streams, a
    quarter of that of a front whose chunks arrive in bursts, and a quarter of that of an engine's reports. Affects the
    whole process. Returns False, and changes nothing, where the C library is not glibc.

    block: bytes of the largest block that is kept, at most MOST_BLOCK
    unused: bytes that are kept
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, block) and library.mallopt(M_TRIM_THRESHOLD, unused))
