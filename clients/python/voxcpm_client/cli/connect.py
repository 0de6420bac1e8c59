"""The options with which a command connects to its server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from voxcpm_client import DEFAULT_TARGET, DEFAULT_TIMEOUT, Client, tls_credentials

InputFile = click.Path(exists=True, dir_okay=False, path_type=Path)

OPTIONS = (
    click.option(
        "--target",
        envvar="VOXCPM_CLIENT_TARGET",
        default=DEFAULT_TARGET,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Address of the server.",
    ),
    click.option("--tls", is_flag=True, help="Encrypt the connection with TLS."),
    click.option("--ca", type=InputFile, help="PEM file of the certificate authorities to trust. Implies --tls."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="Longest duration of a call.",
    ),
)


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to `command` and pass it a Client as its first argument."""

    @functools.wraps(command)
    def connected(*args: Any, target: str, tls: bool, ca: Path | None, timeout: float, **options: Any) -> Any:
        credentials = tls_credentials(ca) if tls or ca else None
        with Client(target, timeout=timeout, credentials=credentials) as client:
            return command(client, *args, **options)

    for option in reversed(OPTIONS):
        connected = option(connected)
    return connected


def labels(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A click callback that parses KEY=VALUE options."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", ctx=context, param=parameter)
    return {key: value for key, _, value in pairs}
