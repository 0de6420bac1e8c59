"""Streaming encoding of the model's audio in the format that a caller requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from voxcpm_grpc.audio import pcm, wav
from voxcpm_grpc.audio.codecs import G711, BarePackets, Codec, Flac, FrameEncoder, OggOpus
from voxcpm_grpc.audio.effects import NO_EFFECTS, Effects, StreamEffects
from voxcpm_grpc.audio.encoder import Encoded, Encoder, PcmEncoder
from voxcpm_grpc.audio.formats import SAMPLE_RATES, AudioFormat, Encoding, usual_rate
from voxcpm_grpc.audio.leading_silence import LeadingSilence
from voxcpm_grpc.audio.resample import StreamResampler
from voxcpm_grpc.errors import FailedPrecondition, Internal

FRAME_SECONDS = 0.02
"""Longest frame of Opus and FLAC, so that the audio of a step is sent with the step."""
OPUS_BITRATE = 64_000
MP3_BITRATES = {48000: 128_000, 44100: 128_000, 32000: 96_000, 24000: 64_000, 22050: 64_000, 16000: 48_000}
MP3_LOW_BITRATE = 32_000  # bits per second at lower rates
COMPRESSION_LEVEL = 5
LAME_FASTEST = 9  # LAME counts the other way round; its slowest two levels take ten times longer than the others
MP3_LOOKAHEAD = 1105  # samples of LAME and its decoders, at every rate: 576 + 529
OPUS_LOOKAHEAD = 312  # samples of libopus, at 48 kHz


def _mp3(format: AudioFormat) -> Encoder:
    rate = format.sample_rate
    bitrate = format.bitrate or MP3_BITRATES.get(rate, MP3_LOW_BITRATE)
    options = {"b": str(bitrate), "compression_level": str(LAME_FASTEST - _level(format))}
    return FrameEncoder(Codec("libmp3lame", rate, "fltp", MP3_LOOKAHEAD, options), BarePackets())


def _opus(format: AudioFormat) -> Encoder:
    rate = format.sample_rate
    options = {
        "b": str(format.bitrate or OPUS_BITRATE),
        "frame_duration": f"{FRAME_SECONDS * 1e3:g}",
        "compression_level": str(_level(format)),
    }
    return FrameEncoder(Codec("libopus", rate, "flt", OPUS_LOOKAHEAD * rate // 48000, options), OggOpus())


def _flac(format: AudioFormat) -> Encoder:
    rate = format.sample_rate
    options = {"frame_size": str(int(FRAME_SECONDS * rate)), "compression_level": str(_level(format))}
    return FrameEncoder(Codec("flac", rate, "s16", options=options), Flac())


def _level(format: AudioFormat) -> int:
    return COMPRESSION_LEVEL if format.compression_level is None else format.compression_level


ENCODERS: Mapping[Encoding, Callable[[AudioFormat], Encoder]] = {  # a new encoding is one more line
    Encoding.PCM_S16LE: lambda format: PcmEncoder(pcm.s16_bytes),
    Encoding.PCM_F32LE: lambda format: PcmEncoder(pcm.f32_bytes),
    Encoding.WAV: lambda format: PcmEncoder(pcm.s16_bytes, wav.header(format.sample_rate)),
    Encoding.MULAW: lambda format: PcmEncoder(G711("pcm_mulaw", format.sample_rate)),
    Encoding.ALAW: lambda format: PcmEncoder(G711("pcm_alaw", format.sample_rate)),
    Encoding.MP3: _mp3,
    Encoding.OGG_OPUS: _opus,
    Encoding.FLAC: _flac,
}


def encoder(format: AudioFormat) -> Encoder:
    """A new encoder for one stream. Raises FailedPrecondition if a package is missing."""
    return ENCODERS[format.encoding](format)


def available_encodings() -> tuple[Encoding, ...]:
    """The encodings for which `encoder` has all packages: without PyAV, PCM and WAV alone."""

    def available(encoding: Encoding) -> bool:
        try:
            encoder(AudioFormat(encoding, usual_rate(encoding, SAMPLE_RATES[0])))
        except FailedPrecondition:
            return False
        return True

    return tuple(filter(available, Encoding))


class OutputPipeline:
    """Applies effects to one stream with all its segments and turns, resamples and encodes it.

    The samples of all parts together are the exact offset. Within a turn the signal is continuous. Effects, resampler
    and encoder keep their last milliseconds until `end_turn`.

    The silence at the start of a turn is left out behind the resampler, so that all samples after it are the same as
    with it, at every rate and speed.
    """

    def __init__(self, native_rate: int, format: AudioFormat) -> None:
        self._rates = native_rate, format.sample_rate
        self._effects = NO_EFFECTS
        self._resamplers = [StreamResampler(*self._rates)] if native_rate != format.sample_rate else []
        self._stages: list[StreamEffects | StreamResampler] = [*self._resamplers]  # samples pass one after the other
        self._encoder = encoder(format)
        self._silence = LeadingSilence(format.sample_rate, 0)
        self._begin = self._pushed = 0  # the position of the present signal, and its samples so far, at the native rate
        self.audible: int | None = None
        """Position of the first audible sample of the turn; None until it is pushed."""

    @property
    def delay(self) -> int:
        """Samples before the first one that a decoder makes and does not remove."""
        return self._encoder.delay

    @property
    def position(self) -> int:
        """Position of the next sample of the encoder, after the delay."""
        return self._encoder.position

    @property
    def end(self) -> int:
        """Position of the end of all samples that were pushed, of which some may still be held."""
        source, target = self._rates
        return self._begin + (2 * self._effects.length(self._pushed) * target + source) // (2 * source)

    @property
    def slow(self) -> bool:
        """True if the methods take long enough to be run in a thread."""
        return self._encoder.slow or self._effects.is_filtered

    @property
    def trimmed(self) -> int:
        """Samples of silence at the start of the turn that were left out."""
        return self._silence.trimmed

    def begin_turn(self, effects: Effects, *, max_silence: float = 0.0) -> None:
        """Apply effects to the signal that begins now, after `end_turn` or `discard`.

        max_silence: seconds of silence at its start that may be left out
        """
        if effects != self._effects:
            self._effects = effects
            changes = [] if effects == NO_EFFECTS else [StreamEffects(self._rates[0], effects)]
            self._stages = [*changes, *self._resamplers]
        self._silence = LeadingSilence(self._rates[1], max_silence, 10 ** (effects.gain_db / 20))
        self.audible = None

    def push(self, samples: np.ndarray) -> Encoded:
        """Encode float32 samples [n] at the native rate. Raises Internal for samples that are not finite."""
        if not np.isfinite(samples).all():  # the resampler would spread them over all samples that follow
            raise Internal
        self._pushed += len(samples)
        for stage in self._stages:
            samples = stage.push(samples)
        return self._encoder.push(self._trim(samples))

    def end_silence(self) -> Encoded:
        """Encode samples that are held because they may be left out. What follows is not left out."""
        return self._encoder.push(self._silence.release())

    def pause(self, samples: int) -> Encoded:
        """Encode the samples that effects and resampler still hold, and then that many samples of silence.

        The signal that follows is a new one.
        """
        rest, silence = self._rest(), self._encoder.push(np.zeros(samples, np.float32))
        self._begin_signal()
        return Encoded(rest.data + silence.data, rest.samples + silence.samples)

    def end_turn(self) -> Encoded:
        """Encode the samples that are still held. The next turn is a new signal in the same stream."""
        rest, end = self._rest(), self._encoder.end_signal()
        self._begin_signal()
        return Encoded(rest.data + end.data, rest.samples + end.samples)

    def discard(self) -> None:
        """Drop the samples that are still held, because no audio of a turn may follow its interrupt."""
        for stage in self._stages:
            stage.reset()
        self._silence.release()
        self._encoder.discard()
        self._begin_signal()

    def _begin_signal(self) -> None:
        self._begin, self._pushed = self._encoder.position, 0

    def flush(self) -> Encoded:
        """End the stream, and return its last part."""
        rest, end = self._rest(), self._encoder.flush()
        return Encoded(rest.data + end.data, rest.samples + end.samples, end.padding)

    def _rest(self) -> Encoded:
        """Encode the samples that effects and resampler still hold, and those that may be left out."""
        rest = np.zeros(0, np.float32)
        for stage in self._stages:
            rest = np.concatenate([stage.push(rest), stage.flush()])
        return self._encoder.push(np.concatenate([self._trim(rest), self._silence.release()]))

    def _trim(self, samples: np.ndarray) -> np.ndarray:
        before = self._silence.trimmed
        passed = self._silence.push(samples)
        self._begin -= self._silence.trimmed - before
        if self.audible is None and self._silence.audible is not None:
            self.audible = self._encoder.position + self._silence.audible
        return passed
