"""The process of aligners: it answers one message after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection

import numpy as np

from voxcpm_grpc.audio.resample import StreamResampler
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.helper_process import READY
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.logs import LogOptions
from voxcpm_server.aligners.aligner import Aligner, Alignment, Timed
from voxcpm_server.aligners.known import load
from voxcpm_server.aligners.messages import Begin, Drop, Finish, Found, Message, Outcome, Push

log = logging.getLogger(__name__)
ROUNDING = 1e-6  # seconds by which a word may begin before the end of the one before it


def serve(pipe: Connection, names: Sequence[str], log_options: LogOptions) -> None:
    """Align until the parent closes the pipe. The first message is READY, or says why there are no aligners."""
    set_up(log_options)
    with suppress(EOFError, OSError):
        try:
            alignments = Alignments([load(name) for name in names])
        except StartupError as error:
            pipe.send_bytes(str(error).encode())
            return
        pipe.send_bytes(READY)
        while True:
            pipe.send(alignments.answer(pipe.recv()))


@dataclass(slots=True)
class _Open:
    """An alignment of so many words. next: the first word that may be found; until: the end of the one before it"""

    alignment: Alignment
    resampler: StreamResampler
    words: int
    next: int = 0
    until: float = 0.0

    def push(self, samples: np.ndarray) -> list[Timed]:
        """Pass speech on, if the resampler has any. Raises ValueError for words that cannot be."""
        return self._checked(self.alignment.push(samples) if len(samples) else ())

    def finish(self, *, complete: bool) -> list[Timed]:
        rest = self.push(self.resampler.flush())
        return [*rest, *self._checked(self.alignment.finish(complete=complete))]

    def _checked(self, found: Sequence[Timed]) -> list[Timed]:
        for one in found:
            in_order = self.next <= one.word < self.words and self.until <= one.begin + ROUNDING
            if not (in_order and one.begin <= one.end < inf):
                raise ValueError(f"{one} follows word {self.next - 1}, which ends at {self.until}")
            self.next, self.until = one.word + 1, one.end
        return list(found)


class Alignments:
    """The alignments in progress. A fault of an aligner ends the alignment in question."""

    def __init__(self, aligners: Sequence[Aligner]) -> None:
        self._aligners = aligners
        self._open: dict[int, _Open] = {}

    def answer(self, message: Message) -> Found:
        """Carry a message out."""
        try:
            return self._answer(message)
        except Exception:
            log.exception("an aligner failed; the times of the words of one segment are estimated")
            self._open.pop(message.id, None)
            return Found(outcome=Outcome.ENDED)

    def _answer(self, message: Message) -> Found:
        if isinstance(message, Begin):
            return Found(outcome=Outcome.GOES_ON if self._begin(message) else Outcome.REFUSED)
        if message.id not in self._open:
            return Found(outcome=Outcome.ENDED)
        one = self._open[message.id]
        match message:
            case Push(_, samples):
                return Found(one.push(one.resampler.push(np.frombuffer(samples, np.float32))))
            case Finish(_, complete):
                del self._open[message.id]
                return Found(one.finish(complete=complete), Outcome.ENDED)
            case Drop():
                del self._open[message.id]
                one.alignment.finish(complete=False)
                return Found(outcome=Outcome.ENDED)

    def _begin(self, message: Begin) -> bool:
        for aligner in self._aligners:
            if message.language and message.language not in aligner.languages:
                continue
            if (alignment := aligner.begin(message.words, message.language)) is not None:
                resampler = StreamResampler(message.rate, aligner.rate)
                self._open[message.id] = _Open(alignment, resampler, len(message.words))
                return True
        return False
