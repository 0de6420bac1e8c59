"""Faults of the launches of an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voxcpm_grpc.engine.runner import OUT_OF_MEMORY, PrefillError, Runner
from voxcpm_grpc.engine.scheduling.blocks import BlockManager
from voxcpm_grpc.engine.scheduling.round import Round
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.errors import Internal, Reason, Unavailable, VoxCPMError
from voxcpm_grpc.logs import LogLine

logger = logging.getLogger(__name__)

Fail = Callable[[Sequence, VoxCPMError], None]

MAX_CONSECUTIVE = 3  # launches that fail in a row; the device is then considered lost


class LaunchFaults:
    """Ends the sequences of launches that fail, until too many have failed one after the other.

    blocks: the pages, whose content is unknown after a fault

    `fail` ends a sequence with an error. It is a method of the owner, who would not be freed at once if this kept it.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._consecutive = 0

    def reset(self) -> None:
        """A whole round was launched."""
        self._consecutive = 0

    @contextmanager
    def end(self, affected: set[Sequence], fail: Fail) -> Iterator[None]:
        """End these sequences if the launch in the block fails. Raises the fault if too many followed each other."""
        try:
            yield
        except OUT_OF_MEMORY:
            raise
        except Exception:
            self._consecutive += 1
            running = [sequence for sequence in affected if not sequence.ended]
            logger.exception("a step failed and ends %d requests", len(running))
            for sequence in running:
                failure = "the engine failed in a step that served this request; try again"
                fail(sequence, Unavailable(failure, reason=Reason.NO_ENGINE))
            self._blocks.clear_cache()
            if self._consecutive >= MAX_CONSECUTIVE:
                raise

    def prefill_each(self, runner: Runner, work: Round, fail: Fail) -> None:
        """Prefill one sequence after the other, and end those whose own prefill fails."""
        self._blocks.clear_cache()
        for sequence, alone in work.prefills():
            try:
                runner.prefill(alone)
            except PrefillError as fault:
                logger.error(LogLine("the prefill failed", **sequence.names), exc_info=fault.__cause__)
                fail(sequence, Internal())
