"""What a segment is conditioned on: the stream's voice and, under CARRY, the speech before it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.request import Conditioning, Finished, FinishReason, Prompt
from voxcpm_server.outputs import Segment


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    text: str
    latents: np.ndarray  # [patches, P, D]


class Context:
    """Says how each segment of a stream is to be generated, in the order in which they are spoken.

    Under CARRY the prompt of a segment is the stored prompt and whole segments before it, across turns, at most
    `max_patches` of them; texts are joined as the caller wrote them. A segment that its cap cut off, or that is longer
    than `max_patches` alone, is not carried. The reference stays. A style is written before the text of segments
    without a prompt only: in a continuation it would be read aloud.
    """

    def __init__(self, voice: Conditioning, *, style: str, carry: bool, max_patches: int) -> None:
        self.carry = carry
        self._voice = voice
        self._style = f"({style})" if style else ""
        self._max_patches = max_patches
        self._spoken: deque[_Spoken] = deque()

    def of(self, segment: Segment) -> tuple[str, Conditioning]:
        """The text to generate and its conditioning."""
        if not self._spoken:
            return (segment.text if self._voice.prompt else self._style + segment.text), self._voice
        stored = self._voice.prompt
        text = "".join(spoken.text for spoken in self._spoken).lstrip()
        latents = [spoken.latents for spoken in self._spoken]
        if stored is not None:
            text, latents = stored.text + text, [stored.latents, *latents]
        prompt = Prompt(text=text, latents=np.concatenate(latents))
        return _spaced(segment), Conditioning(prompt=prompt, reference=self._voice.reference)

    def spoke(self, segment: Segment, finished: Finished) -> None:
        """A segment was generated to its end."""
        latents = finished.latents
        if not self.carry or latents is None or finished.reason is FinishReason.MAX_STEPS:
            return
        if not 0 < len(latents) <= self._max_patches:
            return
        self._spoken.append(_Spoken(_spaced(segment), latents))
        while sum(len(spoken.latents) for spoken in self._spoken) > self._max_patches:
            self._spoken.popleft()

    def reset(self) -> None:
        """Back to the stream's voice alone."""
        self._spoken.clear()


def _spaced(segment: Segment) -> str:
    return f" {segment.text}" if segment.spaced else segment.text
