"""A call captured for several sizes and replayed at the next larger one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool

T = TypeVar("T")

MAX_ENTRIES = 256  # rows of a prefill that are encoded at once


class StepGraph(Generic[T]):
    """A call captured for several sizes, largest first, in one pool. Another size uses the next larger one.

    sizes: those that are captured so far, ascending
    """

    def __init__(
        self,
        call: Callable[[int], T],
        sizes: Sequence[int],
        pool: GraphPool,
        on_captured: Callable[[], None] = lambda: None,
        later: Collection[int] = (),
    ) -> None:
        """`on_captured` is called after each capture. The sizes in `later` are left to `capture_next`."""
        self.sizes: list[int] = []
        self._call = call
        self._pool = pool
        self._graphs: dict[int, Graph[T]] = {}
        self._later = sorted(later)
        for size in sorted(set(sizes) - set(later), reverse=True):
            self._capture(size)
            on_captured()

    @property
    def complete(self) -> bool:
        """True if no size is left for later."""
        return not self._later

    def capture_next(self) -> None:
        """Capture the largest of the sizes that were left for later."""
        self._capture(self._later.pop())

    def _capture(self, size: int) -> None:
        self._graphs[size] = Graph(lambda: self._call(size), self._pool)
        insort(self.sizes, size)

    def bucket(self, count: int) -> int:
        """The captured size for `count` rows."""
        return bucket(self.sizes, count)

    def replay(self, count: int) -> T:
        return self._graphs[self.bucket(count)].replay()


def bucket(sizes: Sequence[int], count: int) -> int:
    """The smallest of ascending sizes that is no smaller than `count`."""
    return sizes[bisect_left(sizes, count)]


def intermediate(sizes: Sequence[int]) -> set[int]:
    """The sizes that an engine can do without for a while: all but the powers of two and the largest."""
    return {size for size in sizes if size & (size - 1) and size != max(sizes)}


def generate_buckets(most: int) -> list[int]:
    """Numbers of streams that generate at once: every size up to 8, then multiples of 8, and `most`."""
    return sorted({*range(1, min(8, most) + 1), *range(16, most, 8), most})


def advance_buckets(most: int) -> list[int]:
    """Numbers of streams that the language models advance at once, up to `most`; each is one of `generate_buckets`.

    Up to 8 they are those for which a language model may be one kernel: that of 4 or 8 streams takes less time than the
    layers of 3 or 5 one by one, which on their own take hardly longer for 8 streams than for 5.
    """
    return [size for size in generate_buckets(most) if size not in (3, 5, 6, 7) or size == most]


def prime_buckets(most: int) -> list[int]:
    """Numbers of streams that are primed at once: one, and `most`; none if that is 0."""
    return sorted({1, most}) if most else []


def entry_buckets(most: int) -> list[int]:
    """Numbers of rows of a prefill that are encoded at once, up to `most` or `MAX_ENTRIES`."""
    most = min(most, MAX_ENTRIES)
    return sorted({size for size in (8, 32, 64, 128) if size < most} | {most})


def token_buckets(most: int) -> list[int]:
    """Numbers of prompt rows of a prefill. At most half of a small bucket is padding, and an eighth of a large one."""
    sizes = (
        16,
        32,
        48,
        64,
        96,
        128,
        160,
        192,
        256,
        320,
        384,
        448,
        512,
        *range(640, 2048, 128),
        *range(2048, most, 256),
    )
    return sorted({size for size in sizes if size < most} | {most})
