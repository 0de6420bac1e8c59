"""Recordings judged in several processes, each of which makes its recognizer once."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

from tools.voice import judge
from tools.voice.dataset import RATE
from tools.voice.speak import trim

Item = TypeVar("Item")
Result = TypeVar("Result")

_recognizers: list[judge.Recognizer] = []  # of this process


def is_silent(samples: np.ndarray) -> bool:
    return not len(samples) or not samples.any()


def transcript(samples: np.ndarray) -> str:
    """The words of int16 samples at RATE; none of silence."""
    if is_silent(samples):
        return ""
    if not _recognizers:
        _recognizers.append(judge.Recognizer())
    return _recognizers[0].transcribe(samples)


def seconds(samples: np.ndarray) -> float:
    """From the first sound to the last; 0 for silence."""
    return 0.0 if is_silent(samples) else len(trim(samples)) / RATE


def judged(work: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """The result of `work` for each item, in their order. Prints how far it is."""
    with contextlib.ExitStack() as stack:
        apply = map
        if processes > 1:  # spawned, for a client's threads may be running here
            pool = stack.enter_context(ProcessPoolExecutor(processes, get_context("spawn")))
            apply = partial(pool.map, chunksize=10)
        for done, result in enumerate(apply(work, items), 1):
            yield result
            if done % 100 == 0:
                print(f"{done}/{len(items)} judged", flush=True)
