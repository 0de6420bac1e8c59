"""Outputs for audio: a WAV file, a raw file, stdout, the speakers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import click

from voxcpm_client import Header, WordTime
from voxcpm_client.texts.subtitles import rendered, subtitles
from voxcpm_client.values.encodings import COMPRESSED_SUFFIXES, PCM, RAW_SUFFIXES, alternatives, suffixes
from voxcpm_grpc.audio import Encoding, WavWriter

DEFAULT_FILE = Path("speech.wav")
STDOUT = Path("-")
PLAY_REMEDY = "install the sound library with: pip install 'voxcpm-grpc[play]'"


class Sink(Protocol):
    def write(self, pcm: bytes, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Output:
    """The chosen outputs: at most one file or stdout, and perhaps the speakers. `open` opens them.

    Raises UsageError if audio would be written to a terminal.
    """

    path: Path | None
    raw: bool
    play: bool
    encoding: Encoding = Encoding.PCM_S16LE
    subtitles: Path | None = None

    def __post_init__(self) -> None:
        if self.stdout and sys.stdout is None:
            raise click.ClickException("stdout is closed; write a file with --out FILE.wav, or open stdout")
        if self.stdout and sys.stdout.isatty():
            raise click.UsageError(
                "audio is binary and stdout is a terminal; write a file with --out FILE.wav, or pipe it to a player: "
                "--out - | aplay"
            )

    @property
    def stdout(self) -> bool:
        return self.path == STDOUT

    @property
    def name(self) -> str:
        names = [("stdout" if self.stdout else str(self.path))] if self.path else []
        return " and ".join(names + ["speakers"] * self.play)

    @contextmanager
    def open(self, header: Header) -> Generator[list[Sink]]:
        """Open the outputs for audio as `header` describes it. After an error, a file is still playable."""
        with ExitStack() as stack:
            sinks: list[Sink] = []
            if self.path is not None:
                file: BinaryIO = sys.stdout.buffer if self.stdout else stack.enter_context(self.path.open("wb"))
                wav = (
                    None
                    if self.raw or self.encoding not in PCM
                    else WavWriter(file, header.sample_rate, header.encoding)
                )
                sinks.append(_FlushedFile(file, stack.enter_context(wav) if wav else file))
            if self.play:
                sinks.append(stack.enter_context(_speakers(header)))
            yield sinks

    @contextmanager
    def subtitled(self, header: Header, words: Sequence[WordTime]) -> Generator[None]:
        """Write the subtitles of all words at the end of the block, also after an error. They fit the file of audio."""
        try:
            yield
        finally:
            if self.subtitles is not None:
                found = subtitles(words, header.sample_rate, delay_samples=header.codec_delay_samples)
                self.subtitles.write_text(rendered(found, self.subtitles.suffix), "utf-8")


@dataclass(frozen=True, slots=True)
class _FlushedFile:
    """A file that is flushed after every chunk, so that other programs can read it while it grows."""

    file: BinaryIO
    writer: Sink

    def write(self, pcm: bytes, /) -> None:
        self.writer.write(pcm)
        self.file.flush()


def choose(
    out: Path | None, *, play: bool, raw: bool, encoding: str | None = None, subtitles: Path | None = None
) -> Output:
    """The outputs for the flags. Without flags: the speakers, or a file if there are none.

    encoding: the one that was asked for; None lets the suffix of `out` decide
    """
    suffix = out.suffix.lower() if out and out != STDOUT else None
    chosen = Encoding(encoding) if encoding else COMPRESSED_SUFFIXES.get(suffix or "", Encoding.PCM_S16LE)
    if play:
        if chosen not in PCM:
            raise click.UsageError(
                f"--play cannot play {chosen}; play a file that --out writes, or leave --encoding out"
            )
        _sound_library()  # a missing library is reported before the call
    if out is None and not play:
        play = chosen in PCM and _can_play()
        out = None if play else DEFAULT_FILE.with_suffix(suffixes(chosen)[0])
    elif suffix is not None and suffix not in suffixes(chosen):
        known = (".wav", *RAW_SUFFIXES, *COMPRESSED_SUFFIXES) if encoding is None else suffixes(chosen)
        raise click.BadParameter(f"{out} must end in {alternatives(known)}; use - for stdout", param_hint="--out")
    return Output(path=out, raw=raw or suffix in RAW_SUFFIXES, play=play, encoding=chosen, subtitles=subtitles)


def _sound_library() -> Any:
    try:
        return importlib.import_module("sounddevice")
    except ImportError:
        raise click.ClickException(f"cannot play: {PLAY_REMEDY}") from None
    except OSError:  # the Python package is installed, but its C library is not
        raise click.ClickException(
            "cannot play: the PortAudio library is missing; install it (Debian: apt install libportaudio2) or use --out"
        ) from None


def _can_play() -> bool:
    try:
        _sound_library().query_devices(kind="output")
    except Exception:  # the sound system has failed: a file is used instead
        return False
    return True


@contextmanager
def _speakers(header: Header) -> Generator[Sink]:
    library = _sound_library()
    dtype = "float32" if header.encoding == Encoding.PCM_F32LE else "int16"
    try:
        stream = library.RawOutputStream(samplerate=header.sample_rate, channels=1, dtype=dtype)
        stream.start()
    except library.PortAudioError as error:
        raise click.ClickException(f"cannot play: {error}; use --out FILE.wav") from None
    try:
        yield stream
        stream.stop()  # `stop` waits until all audio has been played
    finally:
        stream.close()
