"""Codec jobs, which run beside the streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.errors import Internal, VoxCPMError
from voxcpm_grpc.events import CodecChunk
from voxcpm_grpc.kernels.launch.graph import Priority, stream
from voxcpm_grpc.kernels.launch.host_copy import HostCopy

logger = logging.getLogger(__name__)


class CodecJobs:
    """Runs one chunk of a job at a time, on the stream of the lowest priority. Jobs take turns.

    Captured steps have a higher priority (see kernels.graph), and no step waits for a chunk.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = stream(Priority.SPARE, device) if device.type == "cuda" else None
        self._jobs: dict[str, Iterator[tuple[str, Tensor]]] = {}  # the first one is running
        self._copy: HostCopy | None = None  # the first job has this chunk
        self._name = ""  # the chunk is a part of the array of this name

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __contains__(self, id: str) -> bool:
        return id in self._jobs

    def add(self, id: str, job: Iterator[tuple[str, Tensor]]) -> None:
        self._jobs[id] = job

    def cancel(self, id: str) -> None:
        """Remove a job. Unknown ids are ignored."""
        if id == next(iter(self._jobs), None):
            self._copy = None
        self._jobs.pop(id, None)

    def advance(self, *, wait: bool) -> list[tuple[str, CodecChunk | VoxCPMError]]:
        """The next chunk or the error of the running job, if it is available or `wait` is set."""
        if not self._jobs:
            return []
        id, job = next(iter(self._jobs.items()))
        try:
            result = self._next_chunk(job, wait)
        except VoxCPMError as error:
            result = error.with_traceback(None)  # the traceback refers to this frame, and so to the memory of the job
        except Exception:
            logger.exception("codec job %s failed", id)
            result = Internal()
        if result is None:
            return []
        self.cancel(id)
        if isinstance(result, CodecChunk) and not result.last:
            self._jobs[id] = job  # the job runs after the other ones
        return [(id, result)]

    def _next_chunk(self, job: Iterator[tuple[str, Tensor]], wait: bool) -> CodecChunk | None:
        if self._copy is None:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                chunk = next(job, None)
                if chunk is None:
                    return CodecChunk(np.zeros(0, np.float32), last=True)
                self._name, self._copy = chunk[0], HostCopy(chunk[1])
        return CodecChunk(self._copy.wait(), last=False, name=self._name) if wait or self._copy.ready() else None
