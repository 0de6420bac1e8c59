"""The command line, `voxcpm-grpc`: one command per file.

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

from typing import Any

import click

from voxcpm_client.cli.clone import clone
from voxcpm_client.cli.demo import demo
from voxcpm_client.cli.info import info
from voxcpm_client.cli.say import say
from voxcpm_client.cli.serve import download, serve
from voxcpm_client.cli.voices import voices
from voxcpm_client.errors import SpeechError
from voxcpm_grpc import __version__

INTERRUPTED = 130


class Program(click.Group):
    """Where failures become exit codes, once for all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpeechError as error:
            raise click.ClickException(" ".join(str(error).split())) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # the reader of our output left: click ends quietly
            raise
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise click.ClickException(what) from None


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="voxcpm-grpc")
def main() -> None:
    """Speech from VoxCPM over gRPC: serve a model, speak with it, keep voices."""


for command in (serve, say, clone, voices, info, download, demo):
    main.add_command(command)
