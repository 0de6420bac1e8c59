"""The command line program `voxcpm-grpc`, with one command per file.

Exit codes: 0 success, 1 failure (with one line on stderr), 2 wrong usage, 75 a download that was broken off and that
another attempt continues, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import sys
from contextlib import suppress
from typing import Any

import click

from voxcpm_client.cli.inspect.server import health, info, models
from voxcpm_client.cli.inspect.top import top
from voxcpm_client.cli.operate.download import download
from voxcpm_client.cli.operate.engines import engines
from voxcpm_client.cli.operate.gateway import gateway
from voxcpm_client.cli.operate.keys import keys
from voxcpm_client.cli.operate.lora import lora
from voxcpm_client.cli.operate.memory import memory
from voxcpm_client.cli.operate.serve import serve
from voxcpm_client.cli.operate.wyoming import wyoming
from voxcpm_client.cli.speak.clone import clone
from voxcpm_client.cli.speak.demo import demo
from voxcpm_client.cli.speak.say import say
from voxcpm_client.cli.speak.voices import voices
from voxcpm_client.errors import SpeechError
from voxcpm_grpc import __version__
from voxcpm_grpc.text.characters import escaped

INTERRUPTED = 130

logging.getLogger("voxcpm_client").addHandler(logging.NullHandler())  # the commands print warnings themselves


class Program(click.Group):
    """The group of all commands. It turns errors into messages and exit codes."""

    def main(self, *args: Any, **extra: Any) -> Any:
        _hold_closed()
        if extra.get("standalone_mode", True):  # otherwise the script is another program, which may need its processes
            _import_once()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # an output for help or for an error has failed, such as a full disk
            with suppress(OSError):
                click.echo(f"Error: {_described(error)}", err=True)
            raise SystemExit(1) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpeechError as error:
            raise click.ClickException(escaped(" ".join(str(error).split()))) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # the program that reads the output has ended; click exits without a message
            raise
        except OSError as error:
            raise click.ClickException(_described(error)) from None


def _described(error: OSError) -> str:
    if error.errno == errno.ENOSPC and not error.filename:
        return "the output cannot be written: no space is left on its device"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="voxcpm-grpc")
def main() -> None:
    """Speak text with VoxCPM, store voices, and run a server."""


OF_SERVERS = (models, info, health, top, engines, lora)
COMMANDS = (serve, gateway, wyoming, keys, say, clone, voices, *OF_SERVERS, download, memory, demo)
for command in COMMANDS:
    main.add_command(command)


def _import_once() -> None:
    """Let the processes of a server not import this program, as `multiprocessing` would from its script.

    It imports no module of the name `__main__`. So `python -m voxcpm_client` needs nothing.
    """
    program = sys.modules["__main__"]
    if program.__spec__ is None:
        program.__spec__ = importlib.util.find_spec("voxcpm_client.__main__")


def _hold_closed() -> None:
    """Open the null device in the place of each standard stream that the caller has closed, as `serve <&- >&-` does.

    It comes before another file gets the number of the stream.

    Libraries print to the numbers 0 to 2, and end the process if these are theirs: they would write into a connection.
    `sys.stdin` and `sys.stdout` stay None, by which Python marks a closed stream: `print` and `click.echo` then write
    nothing, and commands that need the stream say so. Libraries write to `sys.stderr` without asking, so it gets one.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The kernel takes the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the process ends
