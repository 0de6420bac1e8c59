"""The conditioning of each segment: the voice of the stream and, under CARRY, the speech before it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from voxcpm_grpc.abilities import Abilities
from voxcpm_grpc.request import Adapter, Conditioning, Finished, FinishReason, VoicePart, content_of, joined
from voxcpm_server.wire.outputs import Segment


class Context:
    """Gives the segments of a stream their conditioning, in the order of their speech.

    A stream has one voice. If neither a prompt nor a reference gives it, the model chooses it for the first segment,
    and that speech becomes the prompt of all later segments. If its text does not match, because a cap or an interrupt
    cut it off, or if it is longer than `max_steps`, it becomes the reference instead, which keeps the timbre.

    Under CARRY the prompt of a segment is the prompt of the voice and whole segments before it, also of earlier turns,
    with at most `max_steps` of them; their texts are joined as the caller wrote them. Segments that a cap cut off or
    that are longer than `max_steps` alone are not carried. The reference stays. Segments with a prompt have no style
    if the model cannot combine them: in a continuation VoxCPM would read it aloud. A turn with another
    style therefore continues no speech before it, and the model chooses its voice anew unless the caller gave one.
    The same holds for a turn with another LoRA adapter, or with none after one.

    Without references, as with a model that takes none, speech of which the text does not match does not decide the
    voice: the next segment does. Speech that is too long remains the prompt.

    An engine refuses a segment that has no room behind its conditioning. `shorten` then leaves out speech of the stream
    itself: the oldest carried segments, and at last the voice that the model chose.

    wants_timbre: True if speech that was cut off can become the voice
    has_voice: True if the voice is known; if not, the next speech decides it
    needs_speech: True if later segments depend on the speech of the next one
    """

    def __init__(
        self,
        voice: Conditioning,
        *,
        style: str,
        carry: bool,
        max_steps: int,
        abilities: Abilities,
        adapter: Adapter | None = None,
    ) -> None:
        self._carry = carry
        self._set_voice(voice, is_own=False)
        self._style, self._adapter = style, content_of(adapter)
        self._max_steps = max_steps
        self._references = not abilities.reference
        self._style_with_prompt = not abilities.style_with_prompt
        self._carried: deque[VoicePart] = deque()

    @property
    def wants_timbre(self) -> bool:
        return self._references and not self.has_voice

    def conditioning_for(self, segment: Segment) -> tuple[str, str, Conditioning]:
        """The text to generate, its style and its conditioning."""
        text, conditioning = self._continued(segment)
        styled = conditioning.prompt is None or self._style_with_prompt
        return text, self._style if styled else "", conditioning

    def _continued(self, segment: Segment) -> tuple[str, Conditioning]:
        if self.begins_anew(segment):
            self._carried.clear()
            if self._voice_is_own:
                self._set_voice(Conditioning(), is_own=False)
        self._style, self._adapter = segment.turn_config.style, content_of(segment.turn_config.adapter)
        stored = self._voice.prompt
        if not self._carried:
            follows = stored is not None and self._voice_is_own
            return (_spaced(segment) if follows else segment.text), self._voice
        text = "".join(prompt.text for prompt in self._carried)
        if stored is None or not self._voice_is_own:  # stored prompts end with a space where their language has them
            text = text.lstrip()
        parts = [*self._carried]
        if stored is not None:
            text, parts = stored.text + text, [stored, *parts]
        prompt = joined(parts, text)
        return _spaced(segment), Conditioning(prompt=prompt, reference=self._voice.reference)

    def begins_anew(self, segment: Segment) -> bool:
        """True if a segment has another style or LoRA adapter than the segments before it."""
        config = segment.turn_config
        return config.style not in ("", self._style) or content_of(config.adapter) != self._adapter

    def remember(self, segment: Segment, finished: Finished) -> None:
        """Record a segment that has finished."""
        speech = finished.speech
        if speech is None or not speech.steps:
            return
        complete = finished.reason is FinishReason.STOP
        whole = complete and speech.steps <= self._max_steps
        if not self.has_voice:
            if whole or (complete and not self._references):
                self._set_voice(Conditioning(prompt=replace(speech, text=segment.text)), is_own=True)
            else:
                self.remember_timbre(speech)
            return
        if not self._carry or not whole:
            return
        self._carried.append(replace(speech, text=_spaced(segment)))
        while sum(part.steps for part in self._carried) > self._max_steps:
            self._carried.popleft()

    def remember_timbre(self, speech: VoicePart) -> None:
        """Record speech that was cut off as the voice if the voice is not known yet."""
        if self.wants_timbre:
            self._set_voice(Conditioning(reference=speech.first(self._max_steps)), is_own=True)

    def shorten(self, excess: int) -> bool:
        """Leave out speech for which the engine has no room; False if there is none left.

        `excess` is the number of positions that are missing. A step takes one, and the text of a segment takes more.
        """
        if self._carried:
            freed = 0
            while self._carried and 2 * freed < excess:  # half, because the texts may free the rest
                freed += self._carried.popleft().steps
            return True
        if not (self.has_voice and self._voice_is_own):
            return False
        if (prompt := self._voice.prompt) is not None:
            self._set_voice(Conditioning(reference=replace(prompt, text="") if self._references else None), is_own=True)
            return True
        assert self._voice.reference is not None
        kept = self._voice.reference.first(max(0, self._voice.reference.steps - excess))
        self._set_voice(Conditioning(reference=kept if kept.steps else None), is_own=True)
        return True

    def _set_voice(self, voice: Conditioning, *, is_own: bool) -> None:
        self._voice = voice
        self._voice_is_own = is_own  # the voice is speech of this stream
        self.has_voice = voice.prompt is not None or voice.reference is not None
        self.needs_speech = self._carry or not self.has_voice

    def reset(self) -> None:
        """Forget all speech but the voice."""
        self._carried.clear()


def _spaced(segment: Segment) -> str:
    return f" {segment.text}" if segment.spaced else segment.text
