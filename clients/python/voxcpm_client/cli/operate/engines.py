"""`voxcpm-grpc engines`."""

from __future__ import annotations

import click

from voxcpm_client import Client
from voxcpm_client.cli.operate.lora import AdminCommands, with_admin_client
from voxcpm_client.cli.terminal.layout import table
from voxcpm_grpc.text.characters import escaped

HEADINGS = ("NAME", "MODEL", "STATE", "DEVICE", "REQUESTS")


@click.group(cls=AdminCommands)
def engines() -> None:
    """List the engines of a running server, take one out of service, and start it again.

    The server needs an admin service: serve --admin.listen 127.0.0.1:50052.
    """


@engines.command("list")
@with_admin_client
def list_engines(client: Client) -> None:
    """List the engines with their states, and the requests that each works on."""
    found = client.server_stats().engines
    rows = [
        (
            escaped(one.name),
            escaped(one.model),
            one.state,
            escaped(one.device),
            str(one.requests_running + one.requests_waiting + one.requests_resting),
        )
        for one in found
    ]
    click.echo(table(HEADINGS, rows))


@engines.command()
@click.argument("engine")
@click.option("--restart", is_flag=True, help="Start it again at once, with what its files are by then.")
@with_admin_client
def drain(client: Client, engine: str, restart: bool) -> None:
    """Take ENGINE, such as "engine cuda:0", out of service.

    Other engines go on with its streams. Its process has ended when the command returns.
    """
    client.drain_engine(engine, restart=restart)
    rest = "it starts again" if restart else "`voxcpm-grpc engines start` starts it again"
    click.echo(f"{escaped(engine)} is out of service; {rest}", err=True)


@engines.command()
@click.argument("engine")
@with_admin_client
def start(client: Client, engine: str) -> None:
    """Start ENGINE, which was taken out of service."""
    client.start_engine(engine)
    click.echo(f"{escaped(engine)} is starting", err=True)
