"""`voxcpm-grpc demo`: starts a server, speaks one text with it and stops it."""

from __future__ import annotations

import collections
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from voxcpm_client import Client, SpeechOptions
from voxcpm_client.cli.speak.output import Output
from voxcpm_client.cli.speak.speech import print_report, speak_into
from voxcpm_grpc.text.characters import escaped

TEXT = "Welcome. The first words are spoken before the last ones are written."
SEED = 1  # the speech is the same every time
LISTENING = re.compile(r"listening on (\S+:\d+)")
START_SECONDS = 180.0  # seconds for a cold start of the engine on a slow machine
STOP_SECONDS = 15.0


@click.command()
@click.option(
    "--out",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default="demo.wav",
    show_default=True,
    help="WAV file to write.",
)
@click.option("--text", default=TEXT, show_default=True, help="Text to speak.")
@click.option("--voice", metavar="NAME", help="Preset of the model. Default: the server's default voice.")
@click.option("--model", default="demo", show_default=True, help="Model to serve, as for `serve`.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def demo(out: Path, text: str, voice: str | None, model: str, as_json: bool) -> None:
    """Start a server, speak one text into a file, and stop the server."""
    output = Output(path=out, raw=False, play=False)
    with local_server(model) as target, Client(target) as client:
        speech: SpeechOptions = {"seed": SEED, "voice": voice} if voice else {"seed": SEED}
        report = speak_into(output, client, text, speech)
        print_report(report, output, as_json=as_json)
        others = [name for name in client.model_info().presets if name != report.header.voice]
    if others:
        text = f"spoken by {report.header.voice}; try --voice {' or --voice '.join(others)}"
        click.echo(escaped(text), err=True)


@contextmanager
def local_server(model: str) -> Generator[str]:
    """Run a server in a child process for the duration of the block, and yield its address."""
    with tempfile.TemporaryDirectory(prefix="voxcpm-") as voices:
        command = [sys.executable, "-m", "voxcpm_client", "serve", "--model", model, "--listen", "127.0.0.1:0"]
        child = subprocess.Popen(
            [*command, "--voices.url", voices],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the server
        )
        previous = signal.signal(signal.SIGTERM, _exit)
        try:
            yield _ServerLog(child).address()
        finally:
            child.send_signal(signal.SIGINT)  # SIGTERM would leave time for load balancers
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            signal.signal(signal.SIGTERM, previous)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class _ServerLog:
    """Reads the output of the server as long as it runs, and keeps its last lines for an error message."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._last: collections.deque[str] = collections.deque(maxlen=20)
        self._address = ""
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def address(self) -> str:
        """The address on which the server listens. Raises ClickException with the last lines if it does not start."""
        in_time = self._settled.wait(START_SECONDS)
        if self._address:
            return self._address
        reason = f"the server did not start within {START_SECONDS:g} s" if not in_time else "the server did not start"
        raise click.ClickException("\n".join([reason, *self._last]))

    def _drain(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                self._last.append(escaped(line.rstrip()))
                if not self._address and (found := LISTENING.search(line)):
                    self._address = found[1]
                    click.echo(line.rstrip(), err=True)
                    self._settled.set()
        self._settled.set()
