"""The events of a request and the results of a codec job, as an engine reports them."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np

from voxcpm_grpc.request import VoicePart

NOT_SPOKEN = -1
"""The number of silent steps after speech, before there was speech."""


class FinishReason(StrEnum):
    """The reason for the end of a segment."""

    STOP = "stop"  # the model ended the speech
    MAX_STEPS = "max_steps"  # the request or its text length sets this limit
    SILENCE = "silence"  # the request allows no more silent patches after speech


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that one engine has made of a stream, behind which another one goes on."""

    steps: bytes  # bytes of the model, `SpeechModel.step_bytes` for each step
    chunks: int  # chunks of audio that they have made
    silent: int = NOT_SPOKEN  # silent steps after speech


# Events are tagged structs, so that messages between processes carry them as they are.


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request has a slot. Sent once, before its audio."""

    queue_seconds: float
    prompt_tokens: int  # positions of the prompt
    cached_tokens: int  # positions of these, found in the prefix cache


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The audio of one step, and what another engine needs of it to go on with the stream: see `History`.

    Chunks that follow each other may be merged into one that counts as so many `chunks`.
    """

    index: int  # chunks before it
    samples: np.ndarray  # float32 [samples] at the model's output rate
    steps: bytes = b""  # bytes of this step, behind those of the steps without audio since the last chunk
    silent: int = NOT_SPOKEN  # silent steps after speech
    last: bool = False  # the speech ends with it
    chunks: int = 1

    @property
    def end(self) -> int:
        """Chunks of the stream up to the end of this one."""
        return self.index + self.chunks


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a request. Sent once, after its audio."""

    reason: FinishReason
    steps: int
    engine_seconds: float  # seconds in a slot
    speech: VoicePart | None = None  # the text is left out if the request keeps it
    ran_on: bool = False  # it has `steps_per_token` for its text or more, as speech that goes wrong often has
    unread: str = ""  # the model has not read this end of the text
    characters: int = 0  # all its text so far has so many


class CodecChunk(msgspec.Struct, frozen=True, tag=True):
    """A part of the result of a codec job. Parts come in order, and the last one is empty."""

    array: np.ndarray  # samples float32 [samples], or a part of an array of a voice
    last: bool
    name: str = ""  # the array of a voice has this name


Event = Admitted | AudioChunk | Finished
