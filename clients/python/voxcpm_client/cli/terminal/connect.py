"""The options with which a command connects to its server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from voxcpm_client import DEFAULT_RETRY_SECONDS, DEFAULT_TARGET, DEFAULT_TIMEOUT, Client, InvalidArgument
from voxcpm_client.texts.subtitles import check_suffix
from voxcpm_grpc.text.characters import escaped
from voxcpm_grpc.text.lexicon import read_lexicon

PROBE_SECONDS = 4.0

InputFile = click.Path(exists=True, dir_okay=False, path_type=Path)


def labels(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A click callback that parses KEY=VALUE options."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", ctx=context, param=parameter)
    return {key: value for key, _, value in pairs}


def lexicon(context: click.Context, parameter: click.Parameter, path: Path | None) -> dict[str, str] | None:
    """A click callback that reads a lexicon."""
    try:
        return None if path is None else read_lexicon(path)
    except ValueError as error:
        raise click.BadParameter(escaped(str(error)), ctx=context, param=parameter) from None


def subtitle_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A click callback that checks the name of a file of subtitles, before any audio is paid for."""
    if path is None:
        return None
    try:
        check_suffix(path)
    except InvalidArgument as error:
        raise click.BadParameter(escaped(str(error)), ctx=context, param=parameter) from None
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {escaped(str(path.parent))}", ctx=context, param=parameter)
    return path


def _file(name: str, help: str) -> Callable[[Any], Any]:
    variable = f"VOXCPM_CLIENT_{name.removeprefix('--').upper()}"
    return click.option(name, type=InputFile, envvar=variable, show_envvar=True, metavar="FILE", help=help)


model_option = click.option(
    "--model",
    envvar="VOXCPM_CLIENT_MODEL",
    show_envvar=True,
    default="",
    metavar="NAME",
    show_default="the server's default",
    help="Name of a model (see `models`).",
)

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
    click.option("--tls", is_flag=True, envvar="VOXCPM_CLIENT_TLS", show_envvar=True, help="Encrypt the connection."),
    _file("--ca", "PEM file of the certificate authorities to trust. Implies --tls."),
    _file("--cert", "PEM file of this client's certificate. Implies --tls; needs --key."),
    _file("--key", "PEM file of the private key of --cert."),
    click.option(
        "--api-key",
        envvar="VOXCPM_CLIENT_API_KEY",
        show_envvar=True,
        metavar="KEY",
        help="Key to send with every call; only encrypted, or to this host itself. Other users see it on the command "
        "line: prefer the variable.",
    ),
    click.option(
        "--metadata",
        multiple=True,
        callback=labels,
        envvar="VOXCPM_CLIENT_METADATA",
        show_envvar=True,
        metavar="KEY=VALUE",
        help="Metadata to send with every call. Can be repeated.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="Longest duration of a call.",
    ),
    click.option(
        "--retry-seconds",
        type=click.FloatRange(min=0),
        envvar="VOXCPM_CLIENT_RETRY_SECONDS",
        show_envvar=True,
        default=DEFAULT_RETRY_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Time in which a failed call is repeated; 5 at most if no server answers. 0: not at all.",
    ),
)
NAMES = ("target", "tls", "ca", "cert", "key", "api_key", "metadata", "timeout", "retry_seconds")


def connection_options(command: Callable[..., Any], without: Sequence[str] = ()) -> Callable[..., Any]:
    """Add the connection options to `command`, which receives their values, but those of the names in `without`."""
    pairs: list[tuple[str, Callable[[Any], Any]]] = list(zip(NAMES, OPTIONS, strict=True))
    connected: Any = command
    for name, option in reversed(pairs):
        connected = connected if name in without else option(connected)
    return connected


def with_client_of(target: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Do the same as `with_client`, with another option for the target."""
    return functools.partial(_connected, (target, *OPTIONS[1:]))


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to `command` and pass it a Client as its first argument."""
    return _connected(OPTIONS, command)


def with_probing_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same as `with_client`, for a command that asks once and waits a few seconds for the answer."""
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=PROBE_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait for the answer.",
    )
    return _connected((*OPTIONS[:-2], timeout), command, retry_seconds=0.0)


def _connected(
    connection: Sequence[Callable[[Any], Any]], command: Callable[..., Any], **fixed: Any
) -> Callable[..., Any]:
    @functools.wraps(command)
    def connected(*args: Any, **options: Any) -> Any:
        with Client(**fixed, **{name: options.pop(name) for name in NAMES if name in options}) as client:
            return command(client, *args, **options)

    for option in reversed(connection):
        connected = option(connected)
    return connected
