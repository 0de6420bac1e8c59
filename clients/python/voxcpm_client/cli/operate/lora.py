"""`voxcpm-grpc lora`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from voxcpm_client import Client, RegisteredLora, Unimplemented
from voxcpm_client.cli.inspect.top import NO_ADMIN_SERVICE, target_option
from voxcpm_client.cli.speak.voices import as_json_option
from voxcpm_client.cli.terminal.connect import model_option, with_client_of
from voxcpm_client.cli.terminal.layout import json_line, table
from voxcpm_grpc.text.characters import escaped

HEADINGS = ("NAME", "MODEL", "STREAMS", "ENGINES", "SOURCE")
with_admin_client = with_client_of(target_option)


class AdminCommands(click.Group):
    """Turns the error of a port without the admin service into a message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Unimplemented:
            raise click.ClickException(NO_ADMIN_SERVICE) from None


@click.group(cls=AdminCommands)
def lora() -> None:
    """Register, list and unregister the LoRA adapters of a running server.

    The server needs an admin service and allowed sources: serve --admin.listen 127.0.0.1:50052 --admin.lora-sources
    /srv/adapters.
    """


@lora.command()
@click.argument("name")
@click.argument("source")
@click.option("--sha256", metavar="HEX", help="SHA-256 that lora_weights.safetensors must have.")
@model_option
@with_admin_client
def register(client: Client, name: str, source: str, sha256: str | None, model: str) -> None:
    """Let requests choose the adapter of SOURCE by NAME.

    SOURCE is a directory of the server, hf://OWNER/NAME or hf://OWNER/NAME@REVISION, or a URL such as
    s3://BUCKET/FOLDER. Streams go on meanwhile.
    """
    found = client.register_lora(name, source, sha256=sha256, model=model)
    click.echo(f"{escaped(found.name)} is registered for {escaped(found.model)}", err=True)


@lora.command("list")
@click.option("--model", default="", metavar="NAME", help="Only adapters of this model (see `models`).")
@as_json_option
@with_admin_client
def list_loras(client: Client, model: str, as_json: bool) -> None:
    """List the adapters that requests may choose.

    STREAMS hold the adapter, on the server process with this admin port. ENGINES have read it.
    """
    found = client.list_loras(model)
    if as_json:
        click.echo(json_line([dataclasses.asdict(one) for one in found]))
    elif not found:
        click.echo("there are no adapters; `voxcpm-grpc lora register` adds one", err=True)
    else:
        click.echo(table(HEADINGS, [_row(one) for one in found]))


@lora.command()
@click.argument("name")
@model_option
@with_admin_client
def unregister(client: Client, name: str, model: str) -> None:
    """Withdraw the adapter of NAME from new streams.

    Streams that have chosen it go on with it. The server frees it after the last of them.
    """
    client.unregister_lora(name, model)
    click.echo(f"{escaped(name)} is unregistered", err=True)


def _row(one: RegisteredLora) -> tuple[str, ...]:
    return escaped(one.name), escaped(one.model), str(one.streams), str(one.engines), escaped(one.source)
