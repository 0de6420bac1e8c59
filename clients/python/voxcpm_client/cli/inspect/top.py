"""`voxcpm-grpc top`."""

from __future__ import annotations

import sys
import time
from collections import deque

import click

from voxcpm_client import Client, ServerStats, SpeechError, Unimplemented
from voxcpm_client.cli.terminal.connect import with_client_of

DEFAULT_ADMIN_TARGET = "127.0.0.1:50052"
PLAIN_WIDTH = 120  # columns of a page that is not shown on a terminal
NO_ADMIN_SERVICE = (
    "this port has no admin service; start the server with --admin.listen, and name that address with --target"
)
KEPT = 60  # statistics that the curves show
REMEDY = "top needs a library: pip install 'voxcpm-grpc[top]'"
SHORTEST_INTERVAL = 0.1  # seconds

target_option = click.option(
    "--target",
    envvar="VOXCPM_CLIENT_ADMIN_TARGET",
    default=DEFAULT_ADMIN_TARGET,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Address of the admin service of the server, its admin.listen.",
)


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=SHORTEST_INTERVAL),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two pages, over which rates are measured.",
)
@click.option("--once", is_flag=True, help="Print one page after an interval, and exit. Needs no terminal.")
@with_client_of(target_option)
def top(client: Client, interval: float, once: bool) -> None:
    """Show the engines, streams and times of a running server, live.

    The server needs an admin service: serve --admin.listen 127.0.0.1:50052. Ctrl-C ends the program.
    """
    try:
        from rich.console import Console
        from rich.live import Live

        from voxcpm_client.cli.inspect.top_view import page
    except ImportError:
        raise click.ClickException(REMEDY) from None
    terminal = sys.stdout is not None and sys.stdout.isatty()
    if not once and not terminal:
        raise click.UsageError("stdout is not a terminal; use --once")
    console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
    target = str(click.get_current_context().params["target"])
    history = deque([_read(client)], maxlen=KEPT)
    if once:
        time.sleep(interval)
        history.append(_read(client))
        console.print(page(list(history), target, console.width))
        return
    try:
        with Live(page(list(history), target, console.width), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                fault = _next(client, history)
                live.update(page(list(history), target, console.width, fault), refresh=True)
    except KeyboardInterrupt:
        return


def _read(client: Client) -> ServerStats:
    try:
        return client.server_stats()
    except Unimplemented:
        raise click.ClickException(NO_ADMIN_SERVICE) from None


def _next(client: Client, history: deque[ServerStats]) -> str:
    """Add the next statistics to the history. Returns the fault of a server that does not answer."""
    try:
        history.append(client.server_stats())
    except SpeechError as error:
        return " ".join(error.message.split())
    return ""
