"""The progress of one request in an engine. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from voxcpm_grpc.engine.scheduling.adapters import NO_BANK, Lora
from voxcpm_grpc.errors import Internal
from voxcpm_grpc.events import NOT_SPOKEN, Admitted, AudioChunk, FinishReason, History
from voxcpm_grpc.request import RISE_CHUNKS, Request

SILENCE_RMS = 10 ** (-50 / 20)  # this is a share of full scale; the quietest speech of a step is far louder

NO_LIMIT = 1 << 62

if TYPE_CHECKING:
    from voxcpm_grpc.kernels.launch.host_copy import SavedSlot
    from voxcpm_grpc.models.base import Plan


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its progress.

    `launched` steps may still run on the device; `delivered` steps have reached the host. At its limit a sequence is
    paused. It keeps its slot until another sequence needs it; then it is swapped out. So is one that waits for text.
    """

    request: Request
    plan: Plan
    limit: int  # steps that may be launched so far; it never falls
    queued_at: float  # the time is monotonic, as the other ones
    history: History | None = None  # another engine has made these steps
    resumed: int = 0  # steps that another engine has made
    keys: list[bytes] = field(default_factory=list)  # each page of its prompt has a key
    is_queued: bool = False  # the scheduler knows it; otherwise it waits for text
    admitted_at: float = 0.0  # 0.0: it waits for its first slot; later the time that it was swapped out is added
    slot: int | None = None
    lora: Lora | None = None
    saved: SavedSlot | None = None  # the slot had this state before it was swapped out
    swapped_at: float = 0.0
    pages: list[int] = field(default_factory=list)
    uploaded_pages: int = 0  # pages in the device's block table
    filled: int = 0  # KV positions that are written, or will be by launched work
    cached: int = 0  # positions found in the prefix cache at admission
    launched: int = 0
    delivered: int = 0
    unspoken: int = 0  # steps without audio, of the delivered ones
    untold: bytes = b""  # bytes of those since the last chunk
    room: int = field(init=False)  # steps that fit into the KV cache
    max_steps: int = field(init=False)  # steps with audio, at most
    spoke: bool = False  # its audio was not silent all the time
    silent: int = 0  # steps since then that were silent
    stops: bool = False  # it ends with the last launched step, which may not have reached the host
    stepped_at: float = 0.0  # its last step was launched at this time
    ended: bool = False
    id: str = field(init=False)
    is_batch: bool = field(init=False)
    streams_text: bool = field(init=False)  # its text was not complete at first
    is_slow: bool = False  # its client does not take the audio as it is made
    first_limit: int = field(init=False)
    plays_until: float = field(init=False)  # a listener who plays audio at once has played all of the stream then

    def __post_init__(self) -> None:
        self.id, self.is_batch = self.request.id, self.request.is_batch
        self.streams_text = self.request.open
        self.first_limit = self.limit
        self.arrive(self.queued_at)
        self.set_room(NO_LIMIT)

    def arrive(self, now: float) -> None:
        """It waits for its first slot from now on."""
        self.queued_at = now
        self.plays_until = now + self.request.lead_seconds

    def resume(self, history: History, step_bytes: int) -> None:
        """Go on behind the steps of another engine, before it waits for a slot. Raises Internal for broken ones."""
        self.history, (self.resumed, rest) = history, divmod(len(history.steps), step_bytes)
        if rest or self.resumed < history.chunks:
            raise Internal
        self.launched = self.delivered = self.resumed
        self.unspoken = self.resumed - history.chunks
        self.spoke, self.silent = history.silent > NOT_SPOKEN, max(0, history.silent)
        self.first_limit -= history.chunks  # its client has taken these, as far as is known

    def extend(self, plan: Plan, text: str, *, last: bool) -> None:
        """Take more text, and the plan with it. With `last` the text is complete."""
        self.plan = plan
        self.request = replace(self.request, text=self.request.text + text, open=not last)
        self.set_room(self.room)

    def set_room(self, steps: int) -> None:
        """Set the number of steps that fit into the KV cache, and the limit of those with audio.

        By the text alone, there is no limit before that is complete.
        """
        self.room = steps
        own = self.request.sampling.max_steps
        by_text = self.plan.max_steps if not self.request.open else NO_LIMIT if own is None else own
        self.max_steps = min(by_text, steps)

    def on_audio(self, seconds: float, now: float) -> None:
        """A listener gets audio of this length."""
        self.plays_until = max(self.plays_until, now) + self.request.heard(seconds)

    def launch(self, now: float) -> None:
        """Count a step that is launched."""
        self.stepped_at = now
        self.launched += 1
        self.filled += 1
        self.is_slow = self.is_slow or self.unsent > 2 * RISE_CHUNKS

    def allow(self, limit: int, step_seconds: float, now: float) -> None:
        """Raise the limit by the chunks that its client has taken, each with so many seconds of audio.

        A slow client plays them from now on. A lower limit than before changes nothing.
        """
        taken = max(0, limit - self.limit)
        if self.is_slow:
            self.plays_until = max(self.plays_until, now + self.request.heard(taken * step_seconds))
        self.limit += taken
        self.is_slow = self.is_slow and self.unsent >= RISE_CHUNKS

    def note_stop(self, *, stop: bool) -> None:
        """Take note of the stop flag of the last launched step, whose audio has not reached the host."""
        self.stops = stop and self.launched > self.plan.least_steps

    def deliver(self, samples: np.ndarray | None, *, stop: bool) -> FinishReason | None:
        """Count a step that has reached the host, with its audio if it has any.

        Returns why the speech ends with it, if it does. A step without audio counts for no limit.
        """
        self.delivered += 1
        self.unspoken += samples is None
        if stop and self.delivered > self.plan.least_steps:
            return FinishReason.STOP
        if self.sent == self.max_steps or self.delivered == self.room:
            return FinishReason.MAX_STEPS
        return FinishReason.SILENCE if samples is not None and self.fell_silent(samples) else None

    @property
    def admission(self) -> Admitted:
        """The event of its first slot."""
        wait, prompt = self.admitted_at - self.queued_at, self.plan.positions
        return Admitted(queue_seconds=wait, prompt_tokens=prompt, cached_tokens=self.cached)

    def chunk(self, samples: np.ndarray, *, last: bool) -> AudioChunk:
        """The chunk of a step that was delivered, with the content of all steps since the last one."""
        steps, self.untold = self.untold, b""
        silent = self.silent if self.spoke else NOT_SPOKEN
        return AudioChunk(index=self.sent - 1, samples=samples, steps=steps, silent=silent, last=last)

    def fell_silent(self, samples: np.ndarray) -> bool:
        """Take note of the audio of a step. True if the silence after the speech is as long as the request allows."""
        if (limit := self.request.sampling.max_silent_steps) is None:
            return False
        if float(np.dot(samples, samples)) > SILENCE_RMS**2 * len(samples):
            self.spoke, self.silent = True, 0
        else:
            self.silent += self.spoke
        return self.silent >= limit

    @property
    def bank(self) -> int:
        """The bank of its adapter on the device, or NO_BANK."""
        return NO_BANK if self.lora is None else self.lora.bank

    @property
    def waits_for_adapter(self) -> bool:
        """Its adapter is not read yet."""
        return self.lora is not None and not self.lora.is_read

    @property
    def names(self) -> dict[str, str]:
        """The fields of its log lines."""
        return {"request": self.id, **({"request_id": self.request.log_id} if self.request.log_id else {})}

    @property
    def admitted(self) -> bool:
        """It has, or has had, a slot."""
        return self.admitted_at > 0.0

    @property
    def is_new(self) -> bool:
        """No audio of its stream has been sent so far."""
        return not self.admitted and not self.request.continues

    @property
    def length(self) -> int:
        """Positions that must be in the KV cache before the next step."""
        return self.plan.positions + self.launched

    @property
    def prefilled(self) -> bool:
        return self.filled == self.length

    @property
    def starting(self) -> bool:
        """Its prompt is in the cache, and its first step on this engine was not launched."""
        return self.prefilled and self.launched == self.resumed

    def needs_page(self, page_size: int) -> bool:
        """True if the position of the next step is not in its pages."""
        return len(self.pages) * page_size <= self.length

    @property
    def unsent(self) -> int:
        """Chunks that its client has not taken, by the last report of the front, which covers RISE_CHUNKS or more."""
        return self.made - (self.limit - self.first_limit)

    @property
    def made(self) -> int:
        """Chunks that are made, or will be by launched steps if these have audio."""
        return self.launched - self.unspoken

    @property
    def sent(self) -> int:
        """Chunks that have reached the host."""
        return self.delivered - self.unspoken

    @property
    def can_step(self) -> bool:
        """Another step may be launched as soon as the context is in the cache."""
        made, launched = self.made, self.launched
        allowed = made < self.limit and launched < self.plan.ready_steps
        return allowed and made < self.max_steps and launched < self.room and not self.stops

    @property
    def paused(self) -> bool:
        """Another step needs a higher limit, or more text."""
        return self.made < self.max_steps and self.launched < self.room and not (self.stops or self.can_step)

    @property
    def needs_text(self) -> bool:
        """Another step needs more text, whether it needs a higher limit or not."""
        return self.paused and self.launched >= self.plan.ready_steps
