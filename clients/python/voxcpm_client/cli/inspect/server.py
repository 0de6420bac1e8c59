"""`voxcpm-grpc models`, `info` and `health`: what a server says of itself."""

from __future__ import annotations

import dataclasses

import click

from voxcpm_client import Client, ServedModel
from voxcpm_client.cli.speak.voices import as_json_option
from voxcpm_client.cli.terminal.connect import model_option, with_client, with_probing_client
from voxcpm_client.cli.terminal.layout import fields, json_line, table
from voxcpm_grpc.text.characters import escaped

HEADINGS = ("NAME", "ARCHITECTURE", "HZ", "ENGINES", "PRESETS", "FINGERPRINT")
FINGERPRINT_CHARS = 16


@click.command()
@as_json_option
@with_client
def models(client: Client, as_json: bool) -> None:
    """List the models of the server, for --model.

    The first one is the default. ENGINES are those that take requests, of all.
    """
    found = client.list_models()
    if as_json:
        click.echo(json_line([dataclasses.asdict(model) for model in found]))
    else:
        click.echo(table(HEADINGS, [_row(model) for model in found]))


def _row(model: ServedModel) -> tuple[str, ...]:
    return (
        escaped(model.name),
        escaped(model.architecture),
        str(model.output_sample_rate),
        f"{model.engines_ready}/{model.engines}",
        escaped(", ".join(model.presets)) or "-",
        model.model_fingerprint[:FINGERPRINT_CHARS],
    )


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
