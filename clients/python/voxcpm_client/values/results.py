"""Results of calls: frozen values of plain Python types."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.encodings import PCM, RAW_SUFFIXES, audio_suffix, samples_of
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.audio.wav import header


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The settings of a stream after the server has filled in all defaults."""

    request_id: str
    """Id of the call in the server's log."""

    encoding: Encoding
    """Encoding of the audio."""

    sample_rate: int
    """Sample rate of the audio in Hz."""

    model: str
    """Name of the model."""

    model_fingerprint: str
    """Digest of the model's weights and configuration."""

    seed: int
    """The seed of the stream, given by the caller or drawn by the server, 0 to 2**63 - 1."""

    voice: str
    """The voice of the stream: the name of a preset, the id of a stored voice, two ids joined by `+`, or `inline` for
    a recording sent with the call. Empty if the model chose the voice."""

    queue_seconds: float
    """Time that the first segment waited for a slot, in seconds."""

    codec_delay_samples: int = 0
    """Samples that a decoder makes before the first sample of the stream. Only MP3 has them, and positions do not
    include them. Default: `0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechWarning:
    """A doubt of the server about a call that it carries out. The client also logs it (logger `voxcpm_client`)."""

    kind: str
    """`short_recording`, `clipped_recording`, `noisy_recording`, `truncated_recording`, `cancelled_channels`,
    `recording_level`, `word_times` for times of words that are estimates, or `language` for text in a language or a
    script that the model does not claim to speak (`ModelInfo.languages`). A newer server may send others."""

    message: str
    """The cause with the measured value, the limit and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    """The start or the end of a segment, which is a piece of text that the model speaks at once."""

    kind: str
    """`started`, `finished`, or `dropped` by an interrupt."""

    turn: int
    """Index of the turn in the stream, from 0."""

    segment: int
    """Index of the segment in its turn, from 0."""

    at_samples: int
    """Position of the event in samples since the start of the stream."""

    text: str
    """Text of the segment as the model speaks it."""

    input_start: int
    """Start of the segment in the text of its turn, in Unicode code points."""

    input_end: int
    """End of the segment in the text of its turn, in Unicode code points; the character there is not included."""

    finish_reason: str
    """For `finished`: `complete`, `max_steps` if a limit cut the speech off, or `nothing_to_say` for a segment that has
    no audio and was not started. For `dropped`: `interrupted`. Empty for `started`."""

    cut_reason: str
    """The reason why the text ends there: `sentence` (a complete sentence), `pause` (no new text for `max_wait`),
    `clause` (the end of a clause, with `first_segment="eager"`), `limit` (longer than `max_segment_chars`) or `flush`
    (a flush or the end of the text)."""

    trimmed_samples: int = 0
    """For `started` of the first segment of a turn: samples of silence before it that were not sent. Positions do not
    count them. Default: `0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTime:
    """The time of a word of the text in the audio."""

    text: str
    """The word as it was written, with the marks behind it."""

    start_samples: int
    """Start of the word in samples since the start of the audio."""

    end_samples: int
    """End of the word, likewise."""

    input_start: int
    """Start of the word in the text of its turn, in Unicode code points."""

    input_end: int
    """End of the word in the text of its turn; the character there is not included."""

    turn: int
    """Index of the turn in the stream, from 0."""

    segment: int
    """Index of the segment in its turn, from 0."""

    estimated: bool = False
    """True if no aligner of the server has found the word in the speech, so that the times are those of an even pace.
    Default: `False`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """The answer to a flush: all audio of the flushed text has been sent."""

    tag: str
    """The tag of the flush."""

    at_samples: int
    """End of the flushed text's audio in samples since the start of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The answer to an interrupt: no more audio of the interrupted turn follows."""

    tag: str
    """The tag of the interrupt."""

    sent_samples: int
    """Samples that the server sent before it stopped, since the start of the stream."""

    heard_input_end: int | None = None
    """End of the text that the listener has heard, in Unicode code points of the text of `heard_turn`: the listener
    has heard `text[:heard_input_end]` of it. Default: `None`, if `interrupt` was not told the position of the
    playback, or if the server is older."""

    heard_turn: int | None = None
    """Index of the turn that the last sample heard belongs to. Nothing of later turns was heard. Default: `None`, as
    for `heard_input_end`."""

    heard_estimated: bool = False
    """True if the listener was within a segment, or if the segment was cut off, and the times of its words are not
    known (`word_timestamps`): then `heard_input_end` is the end of the word that the position is nearest to. False: it
    is exact, to the word. Default: `False`."""

    dropped_flushes: tuple[str, ...] = ()
    """Tags of the flushes that the interrupt dropped, in order, `""` for one without a tag. They get no `Flushed`.
    Default: `()`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """One message of a stream with audio, with events or words, or with all of them."""

    audio: bytes
    """The encoded audio, mono. Empty if the message has events or words only."""

    sequence: int
    """Number of the message in the stream. Messages without audio and events are numbered too, but not returned."""

    offset: int
    """Position of the first sample of `audio`, in samples since the start of the stream."""

    sample_count: int
    """Number of samples that can be decoded with `audio` and not before."""

    sample_rate: int
    """Sample rate in Hz."""

    encoding: Encoding
    """Encoding of `audio`. With `wav`, the first audio of the stream starts with the WAV header."""

    turn: int
    """Index of the turn that the audio belongs to, from 0."""

    segment: int
    """Index of the segment in its turn, from 0."""

    events: tuple[SegmentEvent, ...] = ()
    """Starts and ends of segments up to the end of `audio`, in order. Default: `()`."""

    flushed: Flushed | None = None
    """The answer to a flush, if the message has one. Default: `None`."""

    interrupted: Interrupted | None = None
    """The answer to an interrupt, if the message has one. Default: `None`."""

    words: tuple[WordTime, ...] = ()
    """Words whose times are known now, with `word_timestamps`. They follow their audio within half a second of speech.
    Default: `()`."""

    @property
    def samples(self) -> npt.NDArray[Any]:
        """The audio as an array [sample_count]: float32 for `pcm_f32le`, int16 for `pcm_s16le` and `wav`.

        Raises InvalidArgument for compressed audio.
        """
        if self.encoding not in PCM:
            raise InvalidArgument(
                f"the audio is {self.encoding}, which the client does not decode; use `audio`, or the format pcm_s16le",
                field="format",
            )
        return samples_of(self.audio, self.encoding, self.sample_count)

    @property
    def seconds(self) -> float:
        """Duration of the audio in seconds."""
        return self.sample_count / self.sample_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Totals and times of a stream that ended without an error. The server measures the times."""

    finish_reason: str
    """`complete`, `max_steps` or `interrupted`, as for the last segment; `nothing_to_say` if nothing of the text is
    spoken; `idle` if the server ended the stream because the client sent nothing for too long."""

    total_samples: int
    """Samples sent."""

    total_bytes: int
    """Bytes of audio sent, with the WAV header."""

    turns: int
    """Turns that the stream had."""

    segments: int
    """Segments for which the model started to speak."""

    input_chars: int
    """Text received, in Unicode code points."""

    generated_steps: int
    """Steps of the finished segments, each `ModelInfo.samples_per_step` samples."""

    queue_seconds: float
    """Time that the first segment waited for a slot, in seconds."""

    time_to_first_audio_seconds: float
    """Time from the moment the first segment's text was complete to the first message with its audio, in seconds."""

    text_to_first_audio_seconds: float
    """Time from the first text received to the first audio, in seconds."""

    engine_seconds: float
    """Time that the finished segments spent in slots, in seconds."""

    wall_seconds: float
    """Duration of the stream in seconds."""

    cached_prefix_tokens: int
    """Prompt positions that were not computed because the prefix cache had them."""

    codec_padding_samples: int = 0
    """Samples that a decoder makes after the last sample of the stream. Only MP3 has them. Default: `0`."""

    time_to_first_audible_seconds: float | None = None
    """Time from the moment the first segment's text was complete until somebody who plays all audio as soon as it is
    sent hears the first sound, in seconds. Default: `None`: there was none, or the server is older."""

    text_to_first_audible_seconds: float | None = None
    """Time from the first text received to that first sound, in seconds. Default: `None`."""

    trimmed_samples: int = 0
    """Samples of silence at the starts of turns that were not sent, with `trim_leading_silence`. Default: `0`."""

    continuations: int = 0
    """Times that another engine went on with the stream, because its own was lost or taken out of service.
    Default: `0`."""

    words: tuple[WordTime, ...] = ()
    """All words with their times, with `word_timestamps`; of more than 20,000 words the last ones. Those that an
    interrupt left unsent are not among them. Default: `()`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speech:
    """All the audio of a call."""

    samples: npt.NDArray[Any]
    """The audio as an array [samples], mono: float32 if the encoding is `pcm_f32le`, otherwise int16. Empty for
    compressed audio."""

    sample_rate: int
    """Sample rate in Hz."""

    header: Header
    """The settings of the stream."""

    summary: Summary | None = None
    """Totals and times of the stream. A preview has none. Default: `None`."""

    warnings: tuple[SpeechWarning, ...] = ()
    """Doubts of the server about the recordings and the text. Default: `()`."""

    audio: bytes = b""
    """Compressed audio as it arrived; empty for other formats. Default: `b""`."""

    sample_count: int = 0
    """Number of samples, of compressed audio too. Default: `0`."""

    words: tuple[WordTime, ...] = ()
    """The words with their times in `samples`, with `word_timestamps`. Default: `()`."""

    @property
    def seconds(self) -> float:
        """Duration of the audio in seconds."""
        return (self.sample_count or len(self.samples)) / self.sample_rate

    def save(self, file: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the audio as it is encoded: compressed, 16-bit integers or 32-bit floats.

        The suffix of the name decides for integers and floats: a WAV file for `.wav` and for files without a suffix or
        a name, such as BytesIO; samples alone for `.pcm` and `.raw`. Compressed audio needs a suffix
        of its encoding, which `COMPRESSED_SUFFIXES` lists. Raises InvalidArgument for any other suffix.

        Args:
            file: Path of the file to write, or a file that is open for binary writing. An existing file is replaced.
        """
        path = Path(file) if isinstance(file, str | os.PathLike) else None
        suffix = audio_suffix(path or Path(str(getattr(file, "name", ""))), self.header.encoding)
        data = self.audio if self.header.encoding not in PCM else self._pcm_file(raw=suffix in RAW_SUFFIXES)
        if path is not None:
            path.write_bytes(data)
        elif isinstance(file, io.TextIOBase) or not hasattr(file, "write"):
            raise TypeError("file must be a path or a file that is open for binary writing, such as open(path, 'wb')")
        else:
            cast(IO[bytes], file).write(data)

    def _pcm_file(self, *, raw: bool) -> bytes:
        body = self.samples.astype(self.samples.dtype.newbyteorder("<")).tobytes()
        encoding = Encoding.PCM_F32LE if self.samples.dtype == np.float32 else Encoding.PCM_S16LE
        return body if raw else header(self.sample_rate, encoding, len(body)) + body
