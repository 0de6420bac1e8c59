"""`voxcpm-grpc health`."""

from __future__ import annotations

import click

from voxcpm_client import Client
from voxcpm_client.cli.connect import with_probing_client

NOT_SERVING = 1


@click.command()
@click.option(
    "--service",
    default="",
    metavar="NAME",
    help="Name of the health service: liveness asks if the process works at all. Default: ready for calls.",
)
@with_probing_client
def health(client: Client, service: str) -> None:
    """Ask if the server is ready, for probes of containers.

    Prints SERVING and exits with 0, or NOT_SERVING and exits with 1. Needs no API key. Asks once, without a retry.
    """
    serving = client.health(service)
    click.echo("SERVING" if serving else "NOT_SERVING")
    if not serving:
        raise SystemExit(NOT_SERVING)
