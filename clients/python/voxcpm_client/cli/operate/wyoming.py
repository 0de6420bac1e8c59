"""`voxcpm-grpc wyoming`: serves Wyoming, the protocol of Home Assistant, and calls a gRPC server for it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from functools import partial
from typing import Any

import click

from voxcpm_client import AsyncClient, SpeechOptions
from voxcpm_client.cli.operate.serve import import_or_explain
from voxcpm_client.cli.speak.speech import MANNER, PACE, VOICE, pop_speech_options
from voxcpm_client.cli.terminal.connect import NAMES, connection_options
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.network.addresses import ListenAddress, bound

INSTALL = "pip install 'voxcpm-grpc[wyoming]'"


def _options(command: Any) -> Any:
    for option in reversed((*VOICE, *MANNER, *PACE)):
        command = option(command)
    return connection_options(command)


@click.command()
@click.option(
    "--listen", default="127.0.0.1:10200", show_default=True, metavar="HOST:PORT", help="Address to serve Wyoming on."
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Connections at the same time.",
)
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True
)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@_options
def wyoming(listen: str, max_connections: int, log_level: str, log_format: str, **options: Any) -> None:
    """Serve Wyoming, the protocol of Home Assistant, with speech of the server at --target.

    Callers choose voices by name; the speech options hold for all, and --voice for those that name none. Wyoming has
    neither keys nor encryption: whoever reaches --listen can speak.
    """
    logs = import_or_explain("voxcpm_grpc.logs", INSTALL)
    service = import_or_explain("voxcpm_client.wyoming.service", INSTALL)
    logs.set_up(logs.LogOptions(log_level, log_format))
    server = {name: options.pop(name) for name in NAMES}
    speech = pop_speech_options(options)
    try:
        with contextlib.closing(bound(listen)) as opened:
            host, port = opened.getsockname()[:2]
            line = f"listening on tcp://{ListenAddress(host, port)} target={server['target']}"

            async def serve(speech: SpeechOptions) -> None:
                async with AsyncClient(**server) as client:
                    running = service.Service(client, speech, max_connections=max_connections)
                    await running.run(opened, signal.SIGTERM, signal.SIGINT, announce=partial(click.echo, line))

            asyncio.run(serve(speech))
    except StartupError as error:
        raise click.ClickException(str(error)) from None
