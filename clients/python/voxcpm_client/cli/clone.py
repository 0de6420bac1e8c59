"""`voxcpm-grpc clone`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from voxcpm_client import Client, SpeechOptions, Voice, VoiceOptions
from voxcpm_client.cli.connect import InputFile, labels, with_client
from voxcpm_client.cli.output import Output
from voxcpm_client.cli.speech import DELIVERY, speak_to, speaks, tell
from voxcpm_client.cli.voices import as_dict


@click.command()
@click.argument("file", type=InputFile)
@click.option("--transcript", "-t", metavar="TEXT", help="What is said in FILE, word by word.")
@click.option("--reference-only", is_flag=True, help="Take the timbre alone; needs no transcript.")
@click.option("--hifi", is_flag=True, help="Continue FILE and take its timbre too; needs --transcript.")
@click.option("--name", default="", help="Name to remember the voice by.")
@click.option("--label", "label", multiple=True, callback=labels, metavar="KEY=VALUE", help="Label; repeatable.")
@click.option("--preview", type=click.Path(dir_okay=False, path_type=Path), help="Write what the model heard to a WAV.")
@click.option("--say", "text", metavar="TEXT", help="Then speak TEXT with the new voice.")
@speaks(DELIVERY)
@with_client
def clone(
    client: Client,
    *,
    file: Path,
    transcript: str | None,
    reference_only: bool,
    hifi: bool,
    name: str,
    label: dict[str, str],
    preview: Path | None,
    text: str | None,
    speech: SpeechOptions,
    choose_output: Callable[[], Output],
    as_json: bool,
) -> None:
    """Store the recording FILE as a voice and print its id. Clone only voices whose owners agree.

    \b
    voxcpm-grpc clone anna.wav --transcript "What Anna says there." --name anna
    voxcpm-grpc clone anna.wav --reference-only --say "Hello." --out hello.wav
    """
    output = choose_output() if text is not None else None
    options = VoiceOptions(name=name, labels=label, preview=preview is not None)
    voice = _add(client, file, transcript, reference_only=reference_only, hifi=hifi, options=options)
    if preview is not None and voice.preview is not None:
        voice.preview.save(preview)
    click.echo(
        json.dumps(as_dict(voice), ensure_ascii=False) if as_json else voice.id,
        err=output is not None and output.stdout,
    )
    if voice.reused:
        click.echo("the same recording was stored before: this is its voice", err=True)
    if text is not None and output is not None:
        tell(speak_to(output, client, text, {**speech, "voice": voice.id}), output, as_json=as_json)


def _add(
    client: Client, file: Path, transcript: str | None, *, reference_only: bool, hifi: bool, options: VoiceOptions
) -> Voice:
    if reference_only:
        if hifi or transcript is not None:
            raise click.UsageError("--reference-only goes with neither --transcript nor --hifi")
        return client.add_reference(file, **options)
    if not transcript:
        raise click.UsageError("say what is spoken in FILE with --transcript, or take its timbre with --reference-only")
    return client.add_hifi(file, transcript, **options) if hifi else client.add_prompt(file, transcript, **options)
