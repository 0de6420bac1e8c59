"""`voxcpm-grpc say`."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from voxcpm_client import Client, Pause, SpeechOptions
from voxcpm_client.cli.speak.output import Output
from voxcpm_client.cli.speak.speech import DELIVERY, VOICE, print_report, speak_into, speech_options
from voxcpm_client.cli.terminal.connect import InputFile, with_client
from voxcpm_client.texts.text import MAX_PAUSE_SECONDS, Text

READ_BYTES = 4096
_BLANK_LINE = re.compile(r"\s*\n\s*\n\s*")


@click.command()
@click.argument("text", required=False)
@click.option("--file", "-f", type=InputFile, help="Read the text from a UTF-8 file.")
@click.option(
    "--paragraph-pause",
    type=click.FloatRange(min=0.001, max=MAX_PAUSE_SECONDS),
    metavar="SECONDS",
    help="Silence between paragraphs, which blank lines divide.",
)
@speech_options(VOICE, DELIVERY)
@with_client
@click.pass_context
def say(
    context: click.Context,
    client: Client,
    *,
    text: str | None,
    file: Path | None,
    paragraph_pause: float | None,
    speech: SpeechOptions,
    choose_output: Callable[[], Output],
    as_json: bool,
) -> None:
    """Speak a text to a file, to stdout or on the speakers.

    Without TEXT and --file, the text comes from stdin and is spoken as it arrives. A text may have any length: it is
    sent as it is spoken. Text of a file or of stdin has no timeout, unless --timeout sets one. Defaults in parentheses
    are those of the server.

    \b
    Examples:
      voxcpm-grpc say "Hello." --out hello.wav
      voxcpm-grpc say "Hello." --out - | aplay
      cat book.txt | voxcpm-grpc say --paragraph-pause 0.8 --out book.wav
      tail -f story.txt | voxcpm-grpc say --play
    """
    source, output = _source(text, file), choose_output()
    if not isinstance(source, str) and context.get_parameter_source("timeout") == ParameterSource.DEFAULT:
        speech["timeout"] = None  # a book takes hours, and text on stdin may arrive at any time
    spoken: Text = source
    if paragraph_pause is not None:
        spoken = _paragraphs((source,) if isinstance(source, str) else source, Pause(paragraph_pause))
    print_report(speak_into(output, client, spoken, speech), output, as_json=as_json)


def _source(text: str | None, file: Path | None) -> str | Iterator[str]:
    if file is not None:
        if text is not None:
            raise click.UsageError("give either TEXT or --file, not both")
        return _read_file(file)
    if text in (None, "-") and sys.stdin is None:
        raise click.ClickException("there is no text: stdin is closed; give TEXT, --file FILE, or open stdin")
    if text is None and sys.stdin.isatty():
        raise click.UsageError("there is no text: give TEXT, --file FILE, or text on stdin (use - to type it)")
    return _read_stdin() if text in (None, "-") else str(text)


def _paragraphs(pieces: Iterable[str], pause: Pause) -> Iterator[str | Pause]:
    """The text with a pause instead of each blank line between two paragraphs."""
    space, begun = "", False
    for piece in pieces:
        whole = space + piece
        visible = whole.rstrip()
        space = whole[len(visible) :]
        for number, part in enumerate(_BLANK_LINE.split(visible if begun else visible.lstrip())):
            if number:
                yield pause
            if part:
                begun = True
                yield part


def _read_file(file: Path) -> Iterator[str]:
    with file.open("rb") as opened:
        yield from _decoded(lambda: opened.read(READ_BYTES))


def _read_stdin() -> Iterator[str]:
    """The text on stdin, as soon as it arrives."""
    return _decoded(_reader())


def _decoded(read: Callable[[], bytes]) -> Iterator[str]:
    """The text of a file in whole characters."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while data := read():
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _reader() -> Callable[[], bytes]:
    """A function that reads bytes from stdin without Python's buffer.

    A thread that waits for input holds the lock of that buffer, and Python aborts if it cannot take the lock at exit.
    """
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # it is not a file of the operating system
        return lambda: sys.stdin.buffer.read(READ_BYTES)
    return lambda: os.read(descriptor, READ_BYTES)
