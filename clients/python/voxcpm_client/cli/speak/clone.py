"""`voxcpm-grpc clone`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from voxcpm_client import Audition, Client, SpeechOptions, Voice, VoiceOptions
from voxcpm_client.cli.speak.output import Output
from voxcpm_client.cli.speak.speech import DELIVERY, print_report, print_warnings, speak_into, speech_options
from voxcpm_client.cli.speak.voices import as_dict
from voxcpm_client.cli.terminal.connect import InputFile, labels, with_client
from voxcpm_client.cli.terminal.layout import json_line
from voxcpm_client.values.encodings import audio_suffix
from voxcpm_grpc.text.characters import escaped


@click.command()
@click.argument("file", type=InputFile)
@click.option("--transcript", "-t", metavar="TEXT", help="The words of FILE, exactly as spoken.")
@click.option("--reference-only", is_flag=True, help="Store the timbre only. Needs no transcript.")
@click.option("--hifi", is_flag=True, help="Store the prompt and the timbre. Needs --transcript.")
@click.option("--name", default="", help="Name of the voice, for --voice.")
@click.option("--label", "label", multiple=True, callback=labels, metavar="KEY=VALUE", help="Label. Can be repeated.")
@click.option(
    "--preview",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write FILE, as the model reproduces it, to this WAV file.",
)
@click.option(
    "--preview-mode",
    type=click.Choice(("reconstruction", "synthesis")),
    help="The preview: FILE as the model reproduces it, or a text that the new voice speaks.",
    show_default="reconstruction, with --preview-text synthesis",
)
@click.option(
    "--preview-text",
    metavar="TEXT",
    help="What the new voice says in the preview.",
    show_default="a short text in the script of the transcript",
)
@click.option("--denoise", "reduce_noise", is_flag=True, help="Reduce steady noise in FILE.")
@click.option("--trim-silence", is_flag=True, help="Cut the silence at both ends of FILE down to 0.2 s.")
@click.option("--say", "text", metavar="TEXT", help="Speak TEXT with the new voice.")
@speech_options(DELIVERY)
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
    preview_mode: str | None,
    preview_text: str | None,
    reduce_noise: bool,
    trim_silence: bool,
    text: str | None,
    speech: SpeechOptions,
    choose_output: Callable[[], Output],
    as_json: bool,
) -> None:
    """Store a recording as a voice and print its id.

    Clone a voice only if its owner agrees. With --transcript, the recording FILE becomes a prompt, which later speech
    continues. With --reference-only, later speech takes its timbre alone. --hifi combines both. Later speech uses the
    adapter of --lora, too. Defaults in parentheses are those of the server.

    \b
    Examples:
      voxcpm-grpc clone anna.wav --transcript "What Anna says there." --name anna
      voxcpm-grpc clone anna.wav --reference-only --say "Hello." --out hello.wav
      voxcpm-grpc clone anna.wav --reference-only --preview anna-speaks.wav --preview-text "Good morning."
    """
    output = choose_output() if text is not None else None
    if preview is not None:
        audio_suffix(preview)  # a wrong suffix fails before the voice is stored
    elif preview_mode is not None or preview_text is not None:
        raise click.UsageError("give the file of the preview with --preview")
    wanted = preview is not None and _preview(preview_mode, preview_text, speech)
    options = VoiceOptions(name=name, labels=label, preview=wanted, denoise=reduce_noise, trim_silence_vad=trim_silence)
    if model := speech.get("model"):
        options["model"] = model
    if (lora := speech.get("lora")) is not None:
        options["lora"] = lora
    voice = _add(client, file, transcript, reference_only=reference_only, hifi=hifi, options=options)
    if preview is not None and voice.preview is not None:
        voice.preview.save(preview)
    click.echo(
        json_line(as_dict(voice)) if as_json else escaped(voice.id),
        err=output is not None and output.stdout,
    )
    print_warnings(voice.warnings)
    if voice.reused:
        others = ", ".join(one.name for one in voice.names[1:])
        remark = f"; its voice is also named {escaped(others)}" if others else ""
        click.echo(f"the server had this recording already{remark}", err=True)
    if text is not None and output is not None:
        report = speak_into(output, client, text, {**speech, "voice": voice.id})
        print_report(report, output, as_json=as_json)


def _preview(mode: str | None, text: str | None, speech: SpeechOptions) -> bool | Audition:
    """The option `preview` of the call, with the style and the sampling of the speech options."""
    if mode == "reconstruction" and text is not None:
        raise click.UsageError("a preview by reconstruction says no text; leave out --preview-text or --preview-mode")
    if mode != "synthesis" and text is None:
        return True
    names = {one.name for one in dataclasses.fields(Audition)}
    settings: dict[str, Any] = {name: value for name, value in speech.items() if name in names}
    return Audition(text or "", **settings)


def _add(
    client: Client, file: Path, transcript: str | None, *, reference_only: bool, hifi: bool, options: VoiceOptions
) -> Voice:
    if reference_only:
        if hifi or transcript is not None:
            raise click.UsageError("--reference-only cannot be combined with --transcript or --hifi")
        return client.add_reference(file, **options)
    if not transcript:
        raise click.UsageError("give the words of FILE with --transcript, or store its timbre with --reference-only")
    return client.add_hifi(file, transcript, **options) if hifi else client.add_prompt(file, transcript, **options)
