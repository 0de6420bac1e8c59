"""The conditioning of each segment: the stream's voice and, under CARRY, the speech before it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.request import Conditioning, Finished, FinishReason, Prompt
from voxcpm_server.wire.outputs import Segment


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    text: str
    latents: np.ndarray  # [patches, P, D]


class Context:
    """Conditions the segments of a stream, in the order in which they are spoken.

    A stream has one voice. Where neither a prompt nor a reference gives it, the model chooses it for the first segment,
    whose speech is the prompt of all later ones. Of speech that its text does not match, because its cap or an
    interrupt cut it off, or that is longer than `max_patches`, the timbre is kept instead, as a reference.

    Under CARRY the prompt of a segment is that of the voice and whole segments before it, across turns, at most
    `max_patches` of them; texts are joined as the caller wrote them. A segment that its cap cut off, or that is longer
    than `max_patches` alone, is not carried. The reference stays. A style is written before the text of segments
    without a prompt only: in a continuation it would be read aloud.
    """

    def __init__(self, voice: Conditioning, *, style: str, carry: bool, max_patches: int) -> None:
        self.carry = carry
        self._voice = voice
        self._chosen = False  # whether the voice is speech of this stream
        self._style = f"({style})" if style else ""
        self._max_patches = max_patches
        self._spoken: deque[_Spoken] = deque()

    @property
    def has_voice(self) -> bool:
        """True if the voice is known; if not, the next speech decides it."""
        return self._voice.prompt is not None or self._voice.reference is not None

    @property
    def needs_latents(self) -> bool:
        """True if later segments depend on the latents of the next one."""
        return self.carry or not self.has_voice

    def conditioning_for(self, segment: Segment) -> tuple[str, Conditioning]:
        """The text to generate and its conditioning."""
        stored = self._voice.prompt
        if not self._spoken:
            if stored is None:
                return self._style + segment.text, self._voice
            return (_spaced(segment) if self._chosen else segment.text), self._voice
        text = "".join(spoken.text for spoken in self._spoken)
        if stored is None or not self._chosen:  # stored prompts end with a space where their language has them
            text = text.lstrip()
        latents = [spoken.latents for spoken in self._spoken]
        if stored is not None:
            text, latents = stored.text + text, [stored.latents, *latents]
        prompt = Prompt(text=text, latents=np.concatenate(latents))
        return _spaced(segment), Conditioning(prompt=prompt, reference=self._voice.reference)

    def remember(self, segment: Segment, finished: Finished) -> None:
        """Take note of a segment that was generated to its end."""
        latents = finished.latents
        if latents is None or not len(latents):
            return
        whole = finished.reason is not FinishReason.MAX_STEPS and len(latents) <= self._max_patches
        if not self.has_voice:
            if whole:
                self._choose(Conditioning(prompt=Prompt(text=segment.text, latents=latents)))
            else:
                self.remember_timbre(latents)
            return
        if not self.carry or not whole:
            return
        self._spoken.append(_Spoken(_spaced(segment), latents))
        while sum(len(spoken.latents) for spoken in self._spoken) > self._max_patches:
            self._spoken.popleft()

    def remember_timbre(self, latents: np.ndarray) -> None:
        """Keep the timbre of speech that was cut off, float32 [patches, P, D], if the voice is not known yet."""
        if not self.has_voice:
            self._choose(Conditioning(reference=latents[: self._max_patches]))

    def _choose(self, voice: Conditioning) -> None:
        self._voice, self._chosen = voice, True

    def reset(self) -> None:
        """Forget all speech but the voice."""
        self._spoken.clear()


def _spaced(segment: Segment) -> str:
    return f" {segment.text}" if segment.spaced else segment.text
