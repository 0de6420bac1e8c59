"""Speech recognition of recordings, in several processes that load the recognizer once each."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

from tools.voice import judge
from tools.voice.trimming import trim

Item = TypeVar("Item")
Result = TypeVar("Result")

_recognizers: list[judge.Recognizer] = []  # of this process


def is_silent(samples: np.ndarray) -> bool:
    """True if there is no sample other than 0."""
    return not len(samples) or not samples.any()


def transcript(samples: np.ndarray) -> str:
    """The words that the recognizer finds; empty for silence. samples: int16 at judge.RATE."""
    if is_silent(samples):
        return ""
    if not _recognizers:
        _recognizers.append(judge.Recognizer())
    return _recognizers[0].transcribe(samples)


def seconds(samples: np.ndarray) -> float:
    """The seconds from the first sound to the last; 0 for silence."""
    return 0.0 if is_silent(samples) else len(trim(samples, judge.RATE)) / judge.RATE


def evaluated(work: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """Yield the result of `work` for each item, in order, and print the progress."""
    with contextlib.ExitStack() as stack:
        apply = map
        if processes > 1:  # spawned, because threads of a client may run here
            pool = stack.enter_context(ProcessPoolExecutor(processes, get_context("spawn")))
            apply = partial(pool.map, chunksize=10)
        for done, result in enumerate(apply(work, items), 1):
            yield result
            if done % 100 == 0:
                print(f"{done}/{len(items)} evaluated", flush=True)
