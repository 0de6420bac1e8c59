"""`voxcpm-grpc gateway`: serves HTTP and calls a gRPC server for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from voxcpm_client.cli.operate.serve import import_or_explain
from voxcpm_client.cli.terminal.connect import connection_options, labels
from voxcpm_client.transport.target import parse
from voxcpm_grpc.aio.event_loops import freeze_objects, loop_factory
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.network.web_names import allowed_host, allowed_origin

log = logging.getLogger("voxcpm_gateway")

INSTALL_HTTP = "pip install 'voxcpm-grpc[http]'"
TIMEOUT = 600.0


def _timeouts(command: Any) -> Any:
    """The connection options, with other times: a caller of HTTP repeats its requests by itself."""
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="Longest duration of a call to the server.",
    )
    retries = click.option(
        "--retry-seconds",
        type=click.FloatRange(min=0),
        envvar="VOXCPM_CLIENT_RETRY_SECONDS",
        show_envvar=True,
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="Time in which a call that the server refuses is repeated before the caller gets the refusal.",
    )
    return connection_options(timeout(retries(command)), without=("timeout", "retry_seconds"))


def _each(check: Callable[[str], str]) -> Callable[..., tuple[str, ...]]:
    """A click callback that checks each value of an option with a function that raises ValueError."""

    def checked(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(map(check, values))
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=context, param=parameter) from None

    return checked


@click.command()
@click.option(
    "--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="Address to serve HTTP on."
)
@click.option(
    "--voice-alias",
    "voice_aliases",
    multiple=True,
    callback=labels,
    metavar="NAME=VOICE",
    help="Let callers ask for VOICE by NAME, such as alloy=miles. Can be repeated. OpenAI's names without an alias "
    "stand for the presets of the model.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    callback=_each(allowed_host),
    metavar="NAME",
    help="Name by which callers may reach the gateway, such as tts.example, beside its IP addresses and localhost; "
    "*.example.com for all directly below example.com; * for all names, which lets pages of any site in by DNS "
    "rebinding. Can be repeated.",
)
@click.option(
    "--allowed-origin",
    "allowed_origins",
    multiple=True,
    callback=_each(allowed_origin),
    metavar="ORIGIN",
    help="Web pages of another origin that may call, such as https://app.example; * for all. Can be repeated.",
)
@click.option("--allow-ref-audio-urls", is_flag=True, help="Fetch the recording if ref_audio is an https URL.")
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True
)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@_timeouts
def gateway(
    listen: str,
    voice_aliases: dict[str, str],
    allowed_hosts: tuple[str, ...],
    allowed_origins: tuple[str, ...],
    allow_ref_audio_urls: bool,
    log_level: str,
    log_format: str,
    **server: Any,
) -> None:
    """Serve HTTP: OpenAI's speech API, the API of the older VoxCPM services, and a web page.

    The gateway is a client of the gRPC server at --target. Callers identify themselves to that server with
    `authorization: Bearer KEY`; --api-key is for callers that send none.
    """
    logs = import_or_explain("voxcpm_grpc.logs", INSTALL_HTTP)
    config = import_or_explain("voxcpm_gateway.config", INSTALL_HTTP)
    serving = import_or_explain("voxcpm_gateway.serving", INSTALL_HTTP)
    logs.set_up(logs.LogOptions(log_level, log_format))
    made = config.GatewayConfig(
        server=config.ServerConnection(**server),
        voice_aliases=voice_aliases,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        allow_ref_audio_urls=allow_ref_audio_urls,
    )
    secure = any(server[name] for name in ("tls", "ca", "cert", "key"))
    if not secure and not parse(server["target"]).is_loopback:
        log.warning("the keys of callers travel to %s unencrypted; set --tls", server["target"])
    try:
        loops = asyncio.Runner(loop_factory=loop_factory())
        with contextlib.closing(serving.listening(listen)) as opened, loops as runner:
            line = f"listening on http://{serving.address_of(opened)} target={made.server.target}"
            until = partial(serving.serve_until_signal, announce=partial(click.echo, line))
            freeze_objects()
            runner.run(until(made, opened, signal.SIGTERM, signal.SIGINT))
    except StartupError as error:
        raise click.ClickException(str(error)) from None
