"""The conditioning of each segment: the voice of the stream and, under CARRY, the speech before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from voxcpm_grpc.events import Finished, FinishReason
from voxcpm_grpc.request import Conditioning, ModelInfo, VoicePart, content_of, joined
from voxcpm_server.text.words.characters import is_speakable
from voxcpm_server.values.inputs import Continuity, GenerateConfig
from voxcpm_server.values.outputs import RequestWarning, Segment, WarningKind


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
    The same holds for a turn with another language, and for one with another LoRA adapter, or with none after one.

    Without references, as with a model that takes none, speech of which the text does not match does not decide the
    voice: the next segment does. Speech that is too long remains the prompt. With a model that takes no prompts either,
    each segment speaks for itself, with the built-in voice of the stream if the model has such voices.

    An engine refuses a segment that has no room behind its conditioning. `shorten` then leaves out speech of the stream
    itself: the oldest carried segments, and at last the voice that the model chose.

    wants_timbre: True if speech that was cut off can become the voice
    has_voice: True if the voice is known; if not, the next speech decides it
    needs_speech: True if later segments depend on the speech of the next one
    """

    def __init__(self, voice: Conditioning, config: GenerateConfig, info: ModelInfo, max_seconds: float) -> None:
        """max_seconds: speech of `max_steps`"""
        self._prompts, self._references = info.can("prompt"), info.can("reference")
        self._carry = config.continuity is Continuity.CARRY and self._prompts
        self._set_voice(voice, is_own=False)
        turn = config.turn
        self._style, self._language, self._adapter = turn.style, turn.language, content_of(turn.adapter)
        self._max_steps = int(max_seconds * info.input_sample_rate / info.input_samples_per_step)
        self._style_with_prompt = info.can("style_with_prompt")
        self._carried: deque[VoicePart] = deque()
        self._first_speech: list[np.ndarray] = []  # audio of the segment that decides the voice, at the output rate

    def conditioning_for(self, segment: Segment) -> tuple[str, str, Conditioning]:
        """The text to generate, its style and its conditioning."""
        if self.begins_anew(segment):
            self._carried.clear()
            if self._voice_is_own:
                self._set_voice(Conditioning(), is_own=False)
        config = segment.turn_config
        self._style, self._language, self._adapter = config.style, config.language, content_of(config.adapter)
        voice, stored = self._voice, self._voice.prompt
        follows = stored is not None and self._voice_is_own
        if self._carried:
            spoken = "".join(prompt.text for prompt in self._carried)
            if not follows:  # a caller's prompt ends with a space where its language has them
                spoken = spoken.lstrip()
            parts = [*self._carried]
            if stored is not None:
                spoken, parts = stored.text + spoken, [stored, *parts]
            voice = Conditioning(prompt=joined(parts, spoken), reference=voice.reference)
        text = _spaced(segment) if follows or self._carried else segment.text
        styled = voice.prompt is None or self._style_with_prompt
        return text, self._style if styled else "", voice

    def begins_anew(self, segment: Segment) -> bool:
        """True if a segment has another style, language or LoRA adapter than the segments before it."""
        config = segment.turn_config
        restyled = config.style not in ("", self._style) or config.language not in ("", self._language)
        return restyled or content_of(config.adapter) != self._adapter

    def remember(self, segment: Segment, finished: Finished) -> None:
        """Record a segment that has finished."""
        self._first_speech.clear()
        speech = finished.speech
        if speech is None or not speech.steps:
            return
        complete = finished.reason is FinishReason.STOP and not is_speakable(finished.unread)
        whole = complete and speech.steps <= self._max_steps
        if not self.has_voice:
            if self._prompts and (whole or (complete and not self._references)):
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

    def hear(self, samples: np.ndarray) -> None:
        """Note audio of the segment in progress, float32 [n] at the output rate."""
        if self.wants_timbre:
            self._first_speech.append(samples)

    async def keep_timbre(self, encode: Callable[[np.ndarray], Awaitable[VoicePart]], least: float) -> None:
        """Keep the voice of first speech that an interrupt cut off, if at least so many samples of it were made."""
        if self.wants_timbre and sum(map(len, self._first_speech)) >= least:
            self.remember_timbre(await encode(np.concatenate(self._first_speech)))
        # An earlier `clear` would lose it, because another interrupt may cancel the encoding.
        self._first_speech.clear()

    def shorten(self, excess: int) -> bool:
        """Leave out speech for which the engine has no room; False if there is none left.

        `excess` is the number of positions that are missing. A step takes one, and the text of a segment takes more.
        """
        if self._carried:
            freed = 0
            while self._carried and 2 * freed < excess:  # half of it may do, because the texts may free the rest
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
        self.has_voice = voice.prompt is not None or voice.reference is not None or bool(voice.speaker)
        self.wants_timbre = self._references and not self.has_voice
        self.needs_speech = self._carry or (not self.has_voice and (self._prompts or self._references))

    def reset(self) -> None:
        """Forget all speech but the voice."""
        self._carried.clear()


def not_carried(config: GenerateConfig, info: ModelInfo) -> tuple[RequestWarning, ...]:
    """A warning to a caller who asks for CARRY from a model that continues no speech."""
    if not config.asks_to_carry or info.can("prompt"):
        return ()
    voice = "in the voice of the stream" if info.speakers else "and may have another voice"
    message = (
        f"continuity is CARRY, and {info.name} continues no speech: each segment speaks for itself, {voice}; let text "
        "that belongs together be one segment (SEGMENTATION_MODE_TOKENS or MANUAL)"
    )
    return (RequestWarning(WarningKind.CONTINUITY, message),)


def _spaced(segment: Segment) -> str:
    return f" {segment.text}" if segment.spaced else segment.text
