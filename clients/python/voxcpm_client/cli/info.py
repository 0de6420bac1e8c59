"""`voxcpm-grpc info`."""

from __future__ import annotations

import dataclasses

import click

from voxcpm_client import Client
from voxcpm_client.cli.connect import model_option, with_client
from voxcpm_client.cli.layout import fields, json_line
from voxcpm_client.cli.voices import as_json_option


@click.command()
@model_option
@as_json_option
@with_client
def info(client: Client, model: str, as_json: bool) -> None:
    """Print the model, formats and limits of the server."""
    found = dataclasses.asdict(client.model_info(model))
    if as_json:
        click.echo(json_line(found))
        return
    limits = found.pop("limits")
    click.echo(f"{fields(found)}\n\nlimits\n{fields(limits)}")
