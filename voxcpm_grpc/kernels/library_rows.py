"""Row counts with which the library's products are faster than with fewer rows.

Found by `python -m benchmarks.padding` on one H200 with cuBLAS 13, and kept if a step as a whole is faster. The library
picks a kernel by the number of rows, and its choice for some numbers is slow.
"""

from __future__ import annotations

from collections.abc import Mapping

# By (inputs, outputs): the number of rows to compute in place of the key.
_FASTER: Mapping[tuple[int, int], Mapping[int, int]] = {
    (1024, 2560): {1760: 1792},
    (2048, 1024): {704: 768, 832: 880, 1056: 1072, 1232: 1264, 1408: 1424},
    (4096, 1024): {576: 672, 600: 672, 640: 672, 704: 784, 768: 784, 832: 896, 1232: 1280, 1408: 1520},
}


def rows_to_compute(rows: int, outputs: int, inputs: int) -> int:
    """The number of rows, `rows` or more, with which a product of `inputs` by `outputs` takes the least time."""
    return _FASTER.get((inputs, outputs), {}).get(rows, rows)
