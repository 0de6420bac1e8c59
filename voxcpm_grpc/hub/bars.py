"""The progress bars of huggingface_hub: hidden, or replaced by reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from voxcpm_grpc.progress import Progress, listener

DOWNLOADING = "the model is being downloaded"
"""The step of a start in which a download reports its progress."""


def reporting_bars(base: int, total: int) -> type[Any]:
    """A class of progress bars that print nothing and report the bytes of a download to this context.

    `base` bytes of `total` are here before. With a total of 0 the bars' own is used; versions of huggingface_hub that
    count files only make no bar of bytes, then files are reported.
    """
    from tqdm.auto import tqdm

    receive, lock = listener(), threading.Lock()
    bars: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self.in_bytes = options.get("unit") == "B"
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            bars.append(self)

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.n += n or 0
                most = max(bars, key=lambda bar: (bar.in_bytes and bar.n > 0, bar.n))
                if total and most.in_bytes:
                    receive(Progress(DOWNLOADING, min(base + int(most.n), total), total, in_bytes=True))
                elif not total:
                    receive(Progress(DOWNLOADING, int(most.n), int(most.total or 0), in_bytes=most.in_bytes))

    return Bar


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Hides the progress bars unless `shown`. The switch of huggingface_hub is global, so it is reset afterwards."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
