"""The speech options of the commands, the progress line and the report."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast, get_args

import click

from voxcpm_client import Client, Header, Prompt, SpeechOptions, SpeechWarning, Summary, WordTime
from voxcpm_client.cli.speak.output import Output, Sink, choose
from voxcpm_client.cli.terminal.connect import InputFile, lexicon, subtitle_file
from voxcpm_client.cli.terminal.layout import json_line
from voxcpm_client.texts.text import Text
from voxcpm_client.values.encodings import SUFFIXES, alternatives
from voxcpm_client.values.options import Continuity, FirstSegment, Priority, SegmentationMode
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.text.characters import escaped

ENCODINGS = [str(one) for one in Encoding if one != Encoding.WAV]  # the outputs write the WAV header themselves

VOICE = (
    click.option(
        "--voice",
        multiple=True,
        metavar="NAME|ID",
        help="Name of a preset, or name or id of a stored voice (see `voices list`). Repeat it to combine a prompt and "
        "a reference.",
    ),
    click.option("--no-voice", is_flag=True, default=None, help="Let the model choose the voice; the seed decides."),
    click.option("--prompt", type=InputFile, help="Recording that the speech continues. Needs --prompt-text."),
    click.option("--prompt-text", metavar="TEXT", help="The words of the --prompt recording, exactly as spoken."),
    click.option("--reference", type=InputFile, help="Recording whose timbre the speech takes."),
)
MANNER = (
    click.option(
        "--model",
        envvar="VOXCPM_CLIENT_MODEL",
        show_envvar=True,
        metavar="NAME",
        show_default="the server's default",
        help="Model that speaks (see `models`).",
    ),
    click.option("--style", metavar="TEXT", help='Description of the voice, such as "a calm old man".'),
    click.option(
        "--style-in-text/--no-style-in-text",
        default=None,
        show_default="that of the server",
        help="Let the text begin with a style: (a calm old man)Good evening.",
    ),
    click.option(
        "--speech-language",
        metavar="TAG",
        show_default="found in the text",
        help="Language that the model shall speak, such as de. `info` lists those that it can be told.",
    ),
    click.option(
        "--speed", type=float, metavar="X", show_default="1", help="Speed of the speech at the same pitch, 0.5 to 2."
    ),
    click.option(
        "--volume",
        "volume_gain_db",
        type=float,
        metavar="DB",
        show_default="0",
        help="Change of the volume in dB, -30 to 20. Peaks are limited.",
    ),
    click.option("--normalize", is_flag=True, default=None, help="Speak numbers, dates and symbols in words."),
    click.option(
        "--lora",
        metavar="NAME",
        show_default="that of the voice",
        help="LoRA adapter of the server to speak with; an empty one for none.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="random",
        help="Seed of the random numbers. The same seed gives the same speech.",
    ),
    click.option(
        "--cfg", "cfg_value", type=float, metavar="X", show_default="2", help="Strength of the guidance, 0 to 10."
    ),
    click.option(
        "--timesteps",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="10",
        help="Flow-matching steps; more take longer. `info` lists the allowed values.",
    ),
    click.option(
        "--temperature",
        type=float,
        metavar="X",
        show_default="1",
        help="Scale of the random noise, 0 to 2. The default with Qwen3-TTS is 0.9.",
    ),
    *(
        click.option(name, type=kind, metavar=metavar, show_default="that of the model", help=text)
        for name, kind, metavar, text in (
            ("--top-k", click.IntRange(min=1), "N", "Draw from the N most probable codes (Qwen3-TTS)."),
            ("--top-p", float, "X", "Draw from codes of this probability together, up to 1 (Qwen3-TTS)."),
            ("--repetition-penalty", float, "X", "Make codes less probable that were drawn, 1 to 2 (Qwen3-TTS)."),
            ("--code-temperature", float, "X", "As --temperature, for the other codes of a step (Qwen3-TTS)."),
            ("--code-top-k", click.IntRange(min=1), "N", "As --top-k, for the other codes of a step (Qwen3-TTS)."),
            ("--code-top-p", float, "X", "As --top-p, for the other codes of a step (Qwen3-TTS)."),
        )
    ),
    click.option(
        "--min-steps",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="2",
        help="The model cannot end a segment in its first N + 1 steps, as for --max-steps.",
    ),
    click.option(
        "--max-steps",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="the limit of the model",
        help="Longest segment in steps, of 160 ms with VoxCPM2 and 80 ms with Qwen3-TTS.",
    ),
    click.option(
        "--retry-badcase",
        is_flag=True,
        default=None,
        help="Generate a segment again if its speech runs on. Audio starts later.",
    ),
    click.option(
        "--max-silence",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        show_default="that of the model",
        help="End a segment after this much silence.",
    ),
    click.option(
        "--trim-leading-silence",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        show_default="1",
        help="Silence at the start of speech that is left out at most, none with --priority batch. 0: none.",
    ),
    click.option(
        "--rate",
        "sample_rate",
        type=click.IntRange(min=1),
        metavar="HZ",
        show_default="the rate of the model",
        help="Sample rate of the audio.",
    ),
)
ENCODING = (
    click.option(
        "--encoding",
        "format",
        type=click.Choice(ENCODINGS),
        show_default="pcm_s16le",
        help="Encoding of the audio, unless the suffix of --out names one.",
    ),
    click.option("--bitrate", type=click.IntRange(min=1), metavar="BPS", help="Bits per second of mp3 and ogg_opus."),
    click.option(
        "--compression-level",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="5",
        help="Effort of the encoder: up to 7 for mp3, 10 for ogg_opus, 12 for flac.",
    ),
)
PACE = (
    click.option(
        "--segmentation",
        type=click.Choice(get_args(SegmentationMode)),
        show_default="sentence",
        help="Speak sentence by sentence, the whole text at its end (manual), or each word as it comes (tokens), with "
        "models that can.",
    ),
    click.option(
        "--language",
        metavar="TAG",
        show_default="by the script",
        help="Language of the text, such as de or German. It decides where sentences end and how numbers are read.",
    ),
    click.option(
        "--max-wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        show_default="0.25",
        help="Pause of the text after which a complete sentence is spoken. 0: never.",
    ),
    click.option(
        "--first-segment",
        type=click.Choice(get_args(FirstSegment)),
        show_default="sentence",
        help="First segment: a whole sentence, or perhaps a clause, so that audio starts earlier (eager).",
    ),
    click.option(
        "--lexicon",
        type=InputFile,
        callback=lexicon,
        metavar="FILE",
        help="Words and the spellings that are spoken instead of them, in a file of JSON or TOML.",
    ),
    click.option(
        "--continuity",
        type=click.Choice(get_args(Continuity)),
        show_default="carry",
        help="Each segment continues the one before it, or depends on the voice alone (independent).",
    ),
    click.option(
        "--priority",
        type=click.Choice(get_args(Priority)),
        show_default="interactive",
        help="batch: nobody waits for the audio; interactive calls come first.",
    ),
)
DELIVERY = (*MANNER, *ENCODING, *PACE)
OUTPUT = (
    click.option(
        "--out",
        "-o",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"A file whose name ends in {alternatives(SUFFIXES)}, or - for stdout. Default: the speakers, or "
        "speech.wav if there are none.",
    ),
    click.option("--play", is_flag=True, help="Play the audio on the speakers as it arrives."),
    click.option("--raw", is_flag=True, help="Write samples without a WAV header."),
    click.option(
        "--subtitles",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=subtitle_file,
        metavar="FILE",
        help="Also write what is said as subtitles: FILE.vtt (WebVTT) or FILE.srt.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
)


def speech_options(*groups: tuple[Callable[..., Any], ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of `groups` to a command, and pass it their values as `speech` and `choose_output()`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_speech(
            *args: Any, out: Path | None, play: bool, raw: bool, subtitles: Path | None, **options: Any
        ) -> Any:
            speech = pop_speech_options(options)
            if subtitles is not None:
                speech["word_timestamps"] = True
            choose_output = functools.partial(
                choose, out, play=play, raw=raw, encoding=speech.get("format"), subtitles=subtitles
            )
            return command(*args, speech=speech, choose_output=choose_output, **options)

        for option in reversed([option for group in (*groups, OUTPUT) for option in group]):
            with_speech = option(with_speech)
        return with_speech

    return decorate


def pop_speech_options(options: dict[str, Any]) -> SpeechOptions:
    """Remove the speech options from a command's options and return those that were given."""
    prompt, transcript = options.pop("prompt", None), options.pop("prompt_text", None)
    if (prompt is None) != (transcript is None):
        raise click.UsageError("--prompt and --prompt-text need each other")
    # The timeout is an option of the connection here.
    names = SpeechOptions.__annotations__.keys() & options.keys() - {"timeout"}
    speech = {name: options.pop(name) for name in names}
    if prompt is not None:
        speech["prompt"] = Prompt(prompt, transcript)
    return cast(SpeechOptions, {name: value for name, value in speech.items() if value not in (None, ())})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a call, with the times that the client measured, in seconds from the start of the call."""

    output: str
    audio_seconds: float
    time_to_first_audio_seconds: float
    wall_seconds: float
    header: Header
    summary: Summary | None
    warnings: tuple[SpeechWarning, ...]

    @property
    def rtf(self) -> float:
        """The real-time factor: seconds that one second of audio took. Below 1 is faster than real time."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else float("inf")

    def line(self) -> str:
        return (
            f"{self.output}: {self.audio_seconds:.2f} s of audio, first audio after "
            f"{1000 * self.time_to_first_audio_seconds:.0f} ms, real-time factor {self.rtf:.2f}"
        )

    def json(self) -> str:
        rtf = self.rtf if self.audio_seconds else None
        return json_line({**dataclasses.asdict(self), "rtf": rtf})


def speak_into(output: Output, client: Client, text: Text, speech: SpeechOptions) -> Report:
    """Speak `text` into `output` as the audio arrives. After an error or Ctrl-C, a file is still playable."""
    started = time.perf_counter()
    samples, first, sinks, shown = 0, 0.0, list[Sink](), 0
    words: list[WordTime] = []
    with ExitStack() as stack:
        stream = stack.enter_context(client.speak(text, **speech | {"format": output.encoding}))
        progress = stack.enter_context(Progress())
        for chunk in stream:
            if not sinks and stream.header is not None:
                first = time.perf_counter() - started
                sinks = stack.enter_context(output.open(stream.header))
                stack.enter_context(output.subtitled(stream.header, words))
            words += chunk.words
            for sink in sinks:
                sink.write(chunk.audio)
            samples += chunk.sample_count
            shown = print_warnings(stream.warnings, shown, progress)
            progress.show(samples / chunk.sample_rate, first)
        wall = time.perf_counter() - started
        print_warnings(stream.warnings, shown, progress)
        header, summary = stream.header, stream.summary
    if output.subtitles is not None and not words:
        click.echo(f"warning: {output.subtitles} is empty: the server sent no times of words", err=True)
    if header is None or not samples:
        raise click.ClickException(f"the server sent no audio for this text (request {escaped(stream.request_id)})")
    return Report(
        output=output.name,
        audio_seconds=samples / header.sample_rate,
        time_to_first_audio_seconds=first,
        wall_seconds=wall,
        header=header,
        summary=summary,
        warnings=stream.warnings,
    )


def print_report(report: Report, output: Output, *, as_json: bool) -> None:
    """Print the report to stdout, or to stderr if stdout has the audio."""
    click.echo(report.json() if as_json else report.line(), err=output.stdout)


def print_warnings(warnings: Sequence[SpeechWarning], shown: int = 0, progress: Progress | None = None) -> int:
    """Print the warnings from index `shown` on to stderr, and return their number."""
    for warning in warnings[shown:]:
        if progress is not None:
            progress.clear()
        click.echo(f"warning: {escaped(warning.message)}", err=True)
    return len(warnings)


class Progress:
    """A line on stderr that shows the progress and is removed at the end. Only terminals get it."""

    def __init__(self) -> None:
        self._shown = False
        self._visible = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, seconds: float, first: float) -> None:
        if self._visible:
            self._shown = True
            click.echo(f"\r\x1b[K{seconds:.1f} s of audio, the first after {1000 * first:.0f} ms", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            click.echo("\r\x1b[K", err=True, nl=False)

    def __exit__(self, *_: object) -> None:
        self.clear()
