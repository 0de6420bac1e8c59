"""Speaking from the command line: the options of speech, the progress line, the report."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast, get_args

import click

from voxcpm_client import Client, Header, Prompt, SpeechOptions, Summary
from voxcpm_client.cli.connect import InputFile
from voxcpm_client.cli.output import Output, Sink, choose
from voxcpm_client.options import Continuity, FirstSegment, SegmentationMode
from voxcpm_client.text import Text
from voxcpm_grpc.audio import Encoding

PCM = [str(Encoding.PCM_S16LE), str(Encoding.PCM_F32LE)]  # what sinks take; the WAV header is theirs

VOICE = (
    click.option(
        "--voice",
        multiple=True,
        metavar="NAME|ID",
        help="Preset of the model, as `info` lists them, or stored voice; a prompt and a reference may be combined.",
    ),
    click.option("--no-voice", is_flag=True, default=None, help="Let the model choose the voice, by the seed."),
    click.option("--prompt", type=InputFile, help="Recording to continue; needs --prompt-text."),
    click.option("--prompt-text", metavar="TEXT", help="What is said in the --prompt recording, word by word."),
    click.option("--reference", type=InputFile, help="Recording whose timbre to take."),
)
DELIVERY = (
    click.option("--style", metavar="TEXT", help='Description of the voice, such as "a calm old man".'),
    click.option("--seed", type=click.IntRange(min=0), help="Makes the speech repeatable."),
    click.option("--cfg", "cfg_value", type=float, help="Strength of the guidance, 0 to 10."),
    click.option("--timesteps", type=click.IntRange(min=1), help="Flow-matching steps; `info` lists what is allowed."),
    click.option("--temperature", type=float, help="Scale of the noise, 0 to 2."),
    click.option("--min-steps", type=click.IntRange(min=0), help="Shortest segment, in steps of 160 ms."),
    click.option("--max-steps", type=click.IntRange(min=1), help="Longest segment, in steps of 160 ms."),
    click.option("--rate", "sample_rate", type=click.IntRange(min=1), metavar="HZ", help="Sample rate of the audio."),
    click.option("--encoding", "format", type=click.Choice(PCM), help="Sample type; default pcm_s16le."),
    click.option("--segmentation", type=click.Choice(get_args(SegmentationMode)), help="Where text is cut."),
    click.option("--language", metavar="TAG", help="Language of the text, such as de, for the ends of sentences."),
    click.option(
        "--max-wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Pause after which a sentence is spoken."
    ),
    click.option("--first-segment", type=click.Choice(get_args(FirstSegment)), help="Whether to begin with a clause."),
    click.option("--continuity", type=click.Choice(get_args(Continuity)), help="What a segment knows of the last one."),
)
OUTPUT = (
    click.option(
        "--out",
        "-o",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="FILE.wav, FILE.pcm, or - for stdout (WAV). Default: the speakers, else speech.wav.",
    ),
    click.option("--play", is_flag=True, help="Play on the speakers while it is spoken."),
    click.option("--raw", is_flag=True, help="Write samples without a WAV header."),
    click.option("--json", "as_json", is_flag=True, help="Report as JSON."),
)


def speaks(*groups: tuple[Callable[..., Any], ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of `groups`, and what they come to: its `speech` and a `choose_output()`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_speech(*args: Any, out: Path | None, play: bool, raw: bool, **options: Any) -> Any:
            speech = _take_speech(options)
            choose_output = functools.partial(choose, out, play=play, raw=raw)
            return command(*args, speech=speech, choose_output=choose_output, **options)

        for option in reversed([option for group in (*groups, OUTPUT) for option in group]):
            with_speech = option(with_speech)
        return with_speech

    return decorate


def _take_speech(options: dict[str, Any]) -> SpeechOptions:
    """Move what belongs to the speech out of a command's options; what was not given stays the server's choice."""
    prompt, transcript = options.pop("prompt", None), options.pop("prompt_text", None)
    if (prompt is None) != (transcript is None):
        raise click.UsageError("--prompt and --prompt-text go together")
    names = SpeechOptions.__annotations__.keys() & options.keys() - {"timeout"}  # the connection's, as a flag
    speech = {name: options.pop(name) for name in names}
    if prompt is not None:
        speech["prompt"] = Prompt(prompt, transcript)
    return cast(SpeechOptions, {name: value for name, value in speech.items() if value not in (None, ())})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was spoken, with times as this side saw them, in seconds since the call began."""

    output: str
    audio_seconds: float
    time_to_first_audio_seconds: float
    wall_seconds: float
    header: Header
    summary: Summary | None

    @property
    def rtf(self) -> float:
        """Seconds of work for one second of audio; below 1 is faster than real time."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else float("inf")

    def line(self) -> str:
        return (
            f"{self.output}: {self.audio_seconds:.2f} s of audio, first audio after "
            f"{1000 * self.time_to_first_audio_seconds:.0f} ms, real-time factor {self.rtf:.2f}"
        )

    def json(self) -> str:
        rtf = self.rtf if self.audio_seconds else None
        return json.dumps({**dataclasses.asdict(self), "rtf": rtf}, ensure_ascii=False)


def speak_to(output: Output, client: Client, text: Text, speech: SpeechOptions) -> Report:
    """Speak `text` into `output` while it is made. An error or Ctrl-C cancels the call and leaves a playable file."""
    begun = time.perf_counter()
    samples, first, sinks = 0, 0.0, list[Sink]()
    with ExitStack() as stack:
        stream = stack.enter_context(client.speak(text, **speech))
        progress = stack.enter_context(Progress())
        for chunk in stream:
            if not sinks and stream.header is not None:
                first = time.perf_counter() - begun
                sinks = stack.enter_context(output.open(stream.header))
            for sink in sinks:
                sink.write(chunk.audio)
            samples += chunk.sample_count
            progress.show(samples / chunk.sample_rate, first)
        wall = time.perf_counter() - begun
        header, summary = stream.header, stream.summary
    if header is None or not samples:
        raise click.ClickException(f"the server sent no audio for this text (request {stream.request_id})")
    return Report(
        output=output.name,
        audio_seconds=samples / header.sample_rate,
        time_to_first_audio_seconds=first,
        wall_seconds=wall,
        header=header,
        summary=summary,
    )


def tell(report: Report, output: Output, *, as_json: bool) -> None:
    """The last line, on stdout unless the audio went there."""
    click.echo(report.json() if as_json else report.line(), err=output.stdout)


class Progress:
    """One line on a terminal's stderr that is rewritten as audio comes, and removed at the end; quiet elsewhere."""

    def __init__(self) -> None:
        self._shown = False
        self._visible = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, seconds: float, first: float) -> None:
        if self._visible:
            self._shown = True
            click.echo(f"\r\x1b[K{seconds:.1f} s of audio, the first after {1000 * first:.0f} ms", err=True, nl=False)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
