"""`voxcpm-grpc voices`."""

from __future__ import annotations

import dataclasses
import textwrap
from datetime import datetime
from typing import Any

import click

from voxcpm_client import Client, Voice
from voxcpm_client.cli.terminal.connect import labels, model_option, with_client
from voxcpm_client.cli.terminal.layout import fields, json_line, table
from voxcpm_client.values.options import VoiceKind
from voxcpm_grpc.text.characters import escaped

KINDS = ("prompt", "reference", "hifi")
TRANSCRIPT_CHARS = 48
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def voices() -> None:
    """List, show, rename, update and delete voices."""


@voices.command("list")
@click.option("--kind", type=click.Choice(KINDS), help="Only voices of this kind.")
@click.option(
    "--label",
    "label",
    multiple=True,
    callback=labels,
    metavar="KEY=VALUE",
    help="Only voices with this label. Can be repeated.",
)
@click.option("--model", default="", metavar="NAME", help="Only voices of this model (see `models`).")
@as_json_option
@with_client
def list_voices(client: Client, kind: VoiceKind | None, label: dict[str, str], model: str, as_json: bool) -> None:
    """List all voices, the newest first, with all names.

    The presets of the models come last. Admins see the owner of each voice.
    """
    found = client.voices(kind=kind, labels=label, model=model)
    if as_json:
        click.echo(json_line([as_dict(voice) for voice in found]))
    elif not found:
        click.echo("there are no voices; `voxcpm-grpc clone` stores one", err=True)
    else:
        owned = any(voice.principal for voice in found)
        several = len({voice.model_fingerprint for voice in found}) > 1
        more = (("MODEL",) if several else ()) + (("OWNER",) if owned else ())
        headings = ("ID", "KIND", "NAME", *more, "SECONDS", "EXPIRES", "TRANSCRIPT")
        click.echo(table(headings, [_row(voice, several=several, owned=owned) for voice in found]))


@voices.command()
@click.argument("id", metavar="NAME|ID")
@model_option
@as_json_option
@with_client
def show(client: Client, id: str, model: str, as_json: bool) -> None:
    """Show all fields of one stored voice or preset."""
    _print(client.get_voice(id, model=model), as_json=as_json)


@voices.command()
@click.argument("id", metavar="NAME|ID")
@click.argument("name", metavar="NEW_NAME")
@model_option
@with_client
def rename(client: Client, id: str, name: str, model: str) -> None:
    """Give a stored voice another name. Its id and its other names stay.

    With an id, NEW_NAME replaces the name that was given last. An empty NEW_NAME removes the name.
    """
    renamed = client.update_voice(id, name=name, model=model)
    click.echo(f"{escaped(renamed.id)} is named {escaped(renamed.name) or 'nothing'}", err=True)


@voices.command()
@click.argument("id", metavar="NAME|ID")
@click.option("--name", metavar="NEW_NAME", help="New name; an empty one removes the name.")
@click.option(
    "--label",
    "label",
    multiple=True,
    callback=labels,
    metavar="KEY=VALUE",
    help="New label. Can be repeated. The new labels replace all labels.",
)
@click.option("--clear-labels", is_flag=True, help="Remove all labels.")
@click.option(
    "--ttl",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="New time to live, counted from the last use.",
)
@click.option("--lora", metavar="NAME", help="New LoRA adapter of the server; an empty one removes the adapter.")
@model_option
@as_json_option
@with_client
def update(
    client: Client,
    id: str,
    model: str,
    name: str | None,
    label: dict[str, str],
    clear_labels: bool,
    ttl: float | None,
    lora: str | None,
    as_json: bool,
) -> None:
    """Change a name, its labels, the time to live or the LoRA adapter of a stored voice.

    Its id and its other names stay. With an id, the name and the labels are those given last.

    What is not given stays. Prints the voice as it is now.
    """
    if label and clear_labels:
        raise click.UsageError("--label already replaces all labels; leave out --clear-labels")
    if name is None and not label and not clear_labels and ttl is None and lora is None:
        raise click.UsageError("there is nothing to change; give --name, --label, --clear-labels, --ttl or --lora")
    new_labels = label if label or clear_labels else None
    changed = client.update_voice(id, name=name, labels=new_labels, ttl=ttl, lora=lora, model=model)
    _print(changed, as_json=as_json)


@voices.command()
@click.argument("ids", nargs=-1, required=True, metavar="NAME|ID...")
@click.option("--missing-ok", is_flag=True, help="Ignore voices that do not exist.")
@click.option(
    "--cascade",
    is_flag=True,
    help="Also delete the members of a hifi voice that no other voice uses and that have no name of their own.",
)
@model_option
@with_client
def delete(client: Client, ids: tuple[str, ...], missing_ok: bool, cascade: bool, model: str) -> None:
    """Delete stored voices by their names or ids.

    If a voice has other names, its name deletes this name alone; its id deletes the voice with all names.
    """
    for id in ids:
        kept = client.delete_voice(id, missing_ok=missing_ok, cascade=cascade, model=model)
        remark = f"; the voice is still stored as {escaped(', '.join(kept))}" if kept else ""
        click.echo(f"deleted {escaped(id)}{remark}", err=True)


def as_dict(voice: Voice) -> dict[str, Any]:
    """The fields of a voice as JSON values."""
    found = dataclasses.asdict(dataclasses.replace(voice, preview=None, auditions=()))
    del found["preview"], found["auditions"]
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in found.items()}


def _print(voice: Voice, *, as_json: bool) -> None:
    values = as_dict(voice)
    if as_json:
        click.echo(json_line(values))
        return
    labels = {one.name: ", ".join(f"{key}={value}" for key, value in one.labels.items()) for one in voice.names[1:]}
    others = [f"{name} ({text})" if text else name for name, text in labels.items()]
    click.echo(fields(values | {"names": (), "other_names": others}))


def _row(voice: Voice, *, several: bool, owned: bool) -> tuple[str, ...]:
    seconds = voice.prompt_seconds or voice.reference_seconds
    expires = voice.expires.strftime("%Y-%m-%d") if voice.expires else "-"
    transcript = textwrap.shorten(voice.transcript, TRANSCRIPT_CHARS, placeholder="...")
    model = (voice.model or "-",) if several else ()
    owner = (voice.principal or "-",) if owned else ()
    names = ", ".join(one.name for one in voice.names) or "-"
    return (voice.id, voice.kind, names, *model, *owner, f"{seconds:.1f}", expires, transcript)
