"""`voxcpm-grpc keys`: the API keys of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from voxcpm_client.cli.operate.serve import INSTALL_SERVER, import_or_explain
from voxcpm_grpc.errors import StartupError

file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The key file, which the server names as auth.keys.",
)


class KeyCommands(click.Group):
    """Turns errors of the key file into messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StartupError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=KeyCommands)
def keys() -> None:
    """Make, list and revoke the API keys of a server.

    A running server notices a change of its key file within seconds.
    """


@keys.command()
@click.argument("name")
@file_option
@click.option("--admin", is_flag=True, help="Let the key manage all voices and call VoxCPMAdminService.")
def new(name: str, file: Path, admin: bool) -> None:
    """Print a new key, and append its hash to the key file.

    NAME is the program or the person that gets the key. It owns the voices that it stores. The key cannot be printed
    again.
    """
    click.echo(_module().create(name, file, admin=admin))


@keys.command("list")
@file_option
def list_keys(file: Path) -> None:
    """Print the names and ids of the keys."""
    for entry in _module().listed(file):
        created = entry["created"].strftime("%Y-%m-%d %H:%M UTC") if "created" in entry else ""
        click.echo("\t".join([entry["id"], entry["name"], created, "admin" if entry.get("admin") else ""]).rstrip())


@keys.command()
@click.argument("name")
@file_option
def revoke(name: str, file: Path) -> None:
    """Remove the keys of a name, or the key of an id, from the key file."""
    count = _module().revoke(name, file)
    if not count:
        raise click.ClickException(f"{file} has no key with the name or id {name}; `keys list` prints them")
    click.echo(f"revoked {count} {'key' if count == 1 else 'keys'} of {name}")


def _module() -> Any:
    return import_or_explain("voxcpm_server.auth.keys", INSTALL_SERVER)
