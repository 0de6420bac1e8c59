"""`voxcpm-grpc models`."""

from __future__ import annotations

import dataclasses

import click

from voxcpm_client import Client, ServedModel
from voxcpm_client.cli.connect import with_client
from voxcpm_client.cli.layout import json_line, table
from voxcpm_client.cli.voices import as_json_option
from voxcpm_grpc.control_characters import escaped

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
