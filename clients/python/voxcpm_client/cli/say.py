"""`voxcpm-grpc say`."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from voxcpm_client import Client, SpeechOptions
from voxcpm_client.cli.connect import InputFile, with_client
from voxcpm_client.cli.output import Output
from voxcpm_client.cli.speech import DELIVERY, VOICE, speak_to, speaks, tell
from voxcpm_client.text import Text

READ_BYTES = 4096


@click.command()
@click.argument("text", required=False)
@click.option("--file", "-f", type=InputFile, help="Read the text from a UTF-8 file.")
@speaks(VOICE, DELIVERY)
@with_client
@click.pass_context
def say(
    context: click.Context,
    client: Client,
    *,
    text: str | None,
    file: Path | None,
    speech: SpeechOptions,
    choose_output: Callable[[], Output],
    as_json: bool,
) -> None:
    """Speak TEXT, or a file, or what comes on stdin while it comes.

    \b
    voxcpm-grpc say "Hello." --out hello.wav
    voxcpm-grpc say "Hello." --out - | aplay
    tail -f story.txt | voxcpm-grpc say --play
    """
    source, output = _source(text, file), choose_output()
    if not isinstance(source, str) and context.get_parameter_source("timeout") == ParameterSource.DEFAULT:
        speech["timeout"] = None  # whoever writes may take all the time there is
    tell(speak_to(output, client, source, speech), output, as_json=as_json)


def _source(text: str | None, file: Path | None) -> Text:
    if file is not None:
        if text is not None:
            raise click.UsageError("give TEXT or --file, not both")
        return file.read_text("utf-8", errors="replace")
    if text is None and sys.stdin.isatty():
        raise click.UsageError("nothing to say: give TEXT, --file FILE, or text on stdin (- reads a terminal)")
    return _as_it_comes() if text in (None, "-") else str(text)


def _as_it_comes() -> Iterator[str]:
    """Whatever has arrived on stdin, as soon as it has, cut between characters."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    read = _reader()
    while data := read():
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _reader() -> Callable[[], bytes]:
    """Past Python's own buffer: its lock, held by a thread that waits for input, would abort the program's end."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # not a file of the system's
        return lambda: sys.stdin.buffer.read(READ_BYTES)
    return lambda: os.read(descriptor, READ_BYTES)
