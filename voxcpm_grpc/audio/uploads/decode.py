"""Decoding of recordings of any format to mono float32 at the model's sample rate."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxcpm_grpc.audio import codecs, containers, pcm, wav
from voxcpm_grpc.audio.formats import AudioFormat, BadAudio, Encoding
from voxcpm_grpc.audio.mixdown import Mixdown
from voxcpm_grpc.audio.resample import resample
from voxcpm_grpc.audio.uploads.voice_check import FULL_SCALE, Flaw, channels_flaw, truncated_flaw
from voxcpm_grpc.errors import FailedPrecondition, Reason

MIN_RATE, MAX_RATE = 4000, 192000
MAX_CHANNELS = 32
# The recording has this share of the declared length; with less it is another one than its caller means.
MIN_PART = 0.25
MAX_PEAK = 16.0  # 24 dB over full scale; larger float samples are probably integers
MICROSECONDS = 1e6  # containers give their duration in this unit
ESTIMATED = ("aac", "amr")  # these demuxers guess the duration from the bit rate of the first packets; mp3 may, too
RAW_WIDTHS = {Encoding.PCM_S16LE: 2, Encoding.PCM_F32LE: 4, Encoding.MULAW: 1, Encoding.ALAW: 1}
# Uploads may use these demuxers and decoders. Others are not allowed: playlists would open files and addresses that the
# upload names, and image codecs would decode cover art.
DEMUXERS = "aac,aiff,amr,au,caf,flac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,mp3,ogg,w64,wav"
DECODERS = (
    "aac,alac,adpcm_ima_wav,adpcm_ms,amrnb,amrwb,flac,gsm_ms,libgsm_ms,libopus,libvorbis,mp1float,mp2,mp2float,mp3,"
    "mp3float,opus,pcm_alaw,pcm_f32be,pcm_f32le,pcm_f64be,pcm_f64le,pcm_mulaw,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,"
    "pcm_s32be,pcm_s32le,pcm_s8,pcm_u8,vorbis"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """A decoded recording.

    waveform: float32 mono [samples] at the target rate. source_rate: in Hz. seconds: the length at the source's rate.
    flaws: those of the file; the decode pool adds those of the sound.
    """

    waveform: np.ndarray
    source_rate: int
    seconds: float
    full_scale: float = 0.0
    """The share of the samples at full scale, before resampling, 0 to 1."""
    gain: float = 0.0
    """The output gain in dB that the file's Opus header asks for, and that the samples have."""
    flaws: tuple[Flaw, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """The facts of a file about its recording. promised: its length in seconds; 0 if it does not tell."""

    rate: int
    promised: float = 0.0
    has_end: bool = True
    gain: float = 0.0


def decode(
    data: bytes, *, format_hint: AudioFormat | None = None, target_rate: int, max_seconds: float, max_bytes: int
) -> Decoded:
    """Decode a whole recording, mix it to mono (mean of the channels) and resample it.

    format_hint: the format of raw PCM; None for a file whose container names the format. target_rate: in Hz.
    WAV and raw PCM need numpy only, other formats PyAV. Of several audio tracks it takes the one that FFmpeg takes for
    the best, which is the default one if the file marks one. If the mean of the channels loses most of the sound, it
    takes the loudest one. A truncated file is decoded up to its end, but refused if less than a quarter of the length
    that it declares is left. `max_seconds` limits the memory of the samples, whatever length the file declares. Only
    the limits of a process bound the memory of a file's index.
    Raises BadAudio, MemoryError, and FailedPrecondition if a required package is not installed.
    """
    if not data:
        raise BadAudio("the audio is empty: 0 bytes")
    if len(data) > max_bytes:
        raise BadAudio(
            f"the audio has {len(data)} bytes and the limit is {max_bytes}; send a shorter or compressed one"
        )
    mixdown = Mixdown()
    source = _read(data, format_hint, max_seconds, mixdown)
    lost = mixdown.lost
    if lost is not None:
        mixdown = Mixdown(only=lost.channel)
        _read(data, format_hint, max_seconds, mixdown)
    samples, rate = mixdown.samples, source.rate
    _check_samples(samples)
    seconds = len(samples) / rate
    found = (truncated_flaw(seconds, source.promised, has_end=source.has_end), lost and channels_flaw(lost))
    return Decoded(
        waveform=resample(samples, rate, target_rate),
        source_rate=rate,
        seconds=seconds,
        full_scale=float(np.mean(np.abs(samples) >= FULL_SCALE)),
        gain=source.gain,
        flaws=tuple(flaw for flaw in found if flaw is not None),
    )


def _read(data: bytes, format_hint: AudioFormat | None, max_seconds: float, mixdown: Mixdown) -> _Source:
    if format_hint is not None and format_hint.encoding in RAW_WIDTHS:
        return _raw(data, format_hint, max_seconds, mixdown)
    data = containers.without_tags(data)
    if wav.is_wav(data) and (wave := wav.parse(data)) is not None:
        return _wav(wave, max_seconds, mixdown)
    return _container(data, max_seconds, mixdown)


def _raw(data: bytes, format: AudioFormat, max_seconds: float, mixdown: Mixdown) -> _Source:
    width = RAW_WIDTHS[format.encoding]
    if len(data) % width:
        raise BadAudio(f"{len(data)} bytes are not a whole number of {format.encoding} samples of {width} bytes")
    _check_length(len(data) // width, format.sample_rate, max_seconds)
    if format.encoding in (Encoding.MULAW, Encoding.ALAW):
        samples = codecs.decode_g711(data, f"pcm_{format.encoding}")
    else:
        samples = pcm.decode_pcm(data, width=width, floating=format.encoding == Encoding.PCM_F32LE)
    mixdown.add(samples[None])
    return _Source(format.sample_rate)


def _wav(wave: wav.Wave, max_seconds: float, mixdown: Mixdown) -> _Source:
    _check_layout(wave.sample_rate, wave.channels)
    frame = wave.width * wave.channels
    count = len(wave.data) // frame
    _check_length(count, wave.sample_rate, max_seconds)
    promised = wave.declared / frame / wave.sample_rate
    if count:
        _check_promise(count / wave.sample_rate, promised)
    samples = pcm.decode_pcm(wave.data, width=wave.width, floating=wave.floating)
    mixdown.add(samples.reshape(-1, wave.channels).T)
    return _Source(wave.sample_rate, promised)


def _container(data: bytes, max_seconds: float, mixdown: Mixdown) -> _Source:
    try:
        import av
    except ImportError:
        raise FailedPrecondition(
            "this server reads only WAV and raw PCM, because PyAV is missing: pip install 'voxcpm-grpc[server]'",
            reason=Reason.PACKAGE_MISSING,
            extra="server",
        ) from None
    options = {"format_whitelist": DEMUXERS, "codec_whitelist": DECODERS}
    try:
        with av.open(io.BytesIO(data), container_options=options, metadata_errors="replace") as container:
            return _collect(container, data, max_seconds, mixdown)
    except (BadAudio, MemoryError):
        raise
    except Exception as error:  # any error of the library is an error of the bytes, which may be hostile
        if containers.lacks_index(data):
            raise BadAudio(
                "the audio is cut off: the file ends before its index (moov), which it needs; upload the whole file"
            ) from error
        raise BadAudio("the audio could not be decoded: it is broken or of an unsupported format") from error


def _collect(container: Any, data: bytes, max_seconds: float, mixdown: Mixdown) -> _Source:
    """Decode the best audio stream. Stops at the first limit that is exceeded."""
    # `best` finds no stream without a rate.
    stream = container.streams.best("audio") or next(iter(container.streams.audio), None)
    if stream is None:
        raise BadAudio("the file has no audio stream")
    if stream.codec_context is None or stream.codec_context.name not in DECODERS.split(","):
        raise BadAudio("the file's audio codec is not supported")
    rate = total = 0
    packets = _Packets(container, stream, exact=container.format.name != "mp3" or containers.counts_frames(data))
    for frame in packets.frames():
        rate = rate or frame.sample_rate
        if frame.sample_rate != rate:
            raise BadAudio(f"the sample rate changes from {rate} to {frame.sample_rate} Hz within the file")
        channels = frame.layout.nb_channels
        _check_layout(rate, channels)
        total += frame.samples
        _check_length(total, rate, max_seconds)
        samples = pcm.to_float(frame.to_ndarray())
        mixdown.add(samples if frame.format.is_planar else samples.reshape(-1, channels).T)
    if not rate and stream.frames:
        raise BadAudio(
            f"none of the {stream.frames} frames that the file lists could be decoded: it is damaged, or its index "
            "needs more memory than a recording may take; send it as WAV or FLAC"
        )
    if not rate:
        raise BadAudio("the file contains no audio: it is broken or truncated")
    promised = max(packets.promised_seconds, _wav_promise(data, total / rate))
    _check_promise(total / rate, promised)
    gain = containers.opus_gain(stream.codec_context.extradata) if "opus" in stream.codec_context.name else 0.0
    return _Source(rate, promised, has_end=not containers.lacks_end(data), gain=gain)


def _wav_promise(data: bytes, seconds: float) -> float:
    """The length that a WAV file of any codec declares, by the share of its bytes that are there; 0 for others."""
    present, declared = wav.payload_bytes(data) if wav.is_wav(data) else (0, 0)
    return seconds * declared / present if present else 0.0


class _Packets:
    """The packets of an audio stream, and the length that the file promises for it."""

    def __init__(self, container: Any, stream: Any, *, exact: bool) -> None:
        self._container = container
        self._stream = stream
        self._exact = exact and container.format.name not in ESTIMATED
        self._time = 0  # all packets so far have this length, in the time base of the stream

    def frames(self) -> Iterator[Any]:
        """The decoded frames, up to the end of the file or of what can be read."""
        from av.error import FFmpegError, InvalidDataError

        try:
            for packet in self._container.demux(self._stream):
                self._time += packet.duration or 0
                try:
                    yield from packet.decode()
                except InvalidDataError:
                    continue  # a bad packet loses only its own samples, as in any player
        except FFmpegError as error:
            if isinstance(error, MemoryError):
                raise
            return  # a truncated file ends here

    @property
    def promised_seconds(self) -> float:
        """The length by the packets so far, or by the container if that is longer; 0 if neither tells it."""
        stream, container = self._stream, self._container
        base = float(stream.time_base or 0)
        found = [self._time * base]
        if self._exact:
            found.append((stream.duration or 0) * base)
            if container.format.name == "caf":  # CAF counts samples
                found.append((stream.frames or 0) / stream.rate)
            if len(container.streams) == 1:  # otherwise it is the length of the longest stream
                found.append((container.duration or 0) / MICROSECONDS)
        return max(found)


def _check_layout(rate: int, channels: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadAudio(f"the audio's sample rate is {rate} Hz; it must be from {MIN_RATE} to {MAX_RATE}")
    if not 1 <= channels <= MAX_CHANNELS:
        raise BadAudio(f"the audio has {channels} channels; it must have from 1 to {MAX_CHANNELS}")


def _check_length(samples: int, rate: int, max_seconds: float) -> None:
    if samples > max_seconds * rate:
        raise BadAudio(
            f"the audio lasts {samples / rate:.1f} s or more and the limit is {max_seconds:g} s; send a shorter one"
        )


def _check_promise(seconds: float, promised: float) -> None:
    if seconds < MIN_PART * promised:
        raise BadAudio(
            f"{seconds:.2f} s of the {promised:.2f} s that the file declares could be decoded, and at least "
            f"{MIN_PART:.0%} must be: it is damaged; send the whole recording as WAV or FLAC"
        )


def _check_samples(samples: np.ndarray) -> None:
    if not len(samples):
        raise BadAudio("the audio has no samples")
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise BadAudio("the audio has samples that are not finite (NaN or infinity)")
    if peak > MAX_PEAK:
        raise BadAudio(f"the audio's float samples reach {peak:.3g}; full scale is 1 and the limit is {MAX_PEAK:g}")
