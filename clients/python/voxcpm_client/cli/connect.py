"""The options by which every command finds its server."""

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
        help="Server.",
    ),
    click.option("--tls", is_flag=True, help="Encrypt the connection."),
    click.option("--ca", type=InputFile, help="PEM file of the authority to trust; implies --tls."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="Longest time a call may take.",
    ),
)


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a connected Client as its first argument, and the options that say how to connect."""

    @functools.wraps(command)
    def connected(*args: Any, target: str, tls: bool, ca: Path | None, timeout: float, **options: Any) -> Any:
        credentials = tls_credentials(ca) if tls or ca else None
        with Client(target, timeout=timeout, credentials=credentials) as client:
            return command(client, *args, **options)

    for option in reversed(OPTIONS):
        connected = option(connected)
    return connected


def labels(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A click callback: KEY=VALUE, any number of times."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", ctx=context, param=parameter)
    return {key: value for key, _, value in pairs}
