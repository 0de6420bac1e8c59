"""Presets: voices of a model, built at the start of a server from recordings beside the checkpoint, or built into it.

A model's directory may have a folder `presets` with a list, `presets.json`, and the recordings in that list; see
docs/presets.md. A model with built-in voices has these instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from voxcpm_grpc.errors import NotFound, StartupError, VoxCPMError
from voxcpm_grpc.progress import counting
from voxcpm_grpc.request import ModelInfo
from voxcpm_server.values.inputs import VoiceOptions
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.records import StoredVoice, voice_id

FOLDER, LIST = "presets", "presets.json"
# A name must not look like an id.
Name = Annotated[str, msgspec.Meta(pattern=r"^(?!prm_|ref_|hifi_|spk_)[A-Za-z0-9][\w.-]{0,63}$")]
File = Annotated[str, msgspec.Meta(pattern=r"^[^./\\][^/\\]*$")]  # the file lies in the folder itself


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the list.

    transcript: text of the recording; required unless the kind is `reference`
    default: True if streams without a voice and a style use this preset
    lora: name of the LoRA adapter for turns that choose none; empty for the model alone
    """

    name: Name
    kind: Literal["prompt", "reference", "hifi"]
    recording: File
    transcript: str = ""
    labels: dict[str, str] = {}
    default: bool = False
    lora: str = ""


def read(model: Path) -> Sequence[tuple[Preset, bytes]]:
    """The presets in a model's directory, with their recordings. Blocks. Raises StartupError."""
    folder = model / FOLDER
    try:
        listed = (folder / LIST).read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _fault(folder / LIST, f"cannot be read: {error.strerror}") from None
    try:
        presets = msgspec.json.decode(listed, type=list[Preset])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _fault(folder / LIST, f"is not a list of presets: {error}") from None
    names = [preset.name for preset in presets]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _fault(folder / LIST, f"names {', '.join(sorted(twice))} more than once")
    if len(defaults := [preset.name for preset in presets if preset.default]) > 1:
        raise _fault(folder / LIST, f"marks {', '.join(defaults)} as default, and only one preset may be the default")
    for preset in presets:
        if preset.kind != "reference" and not preset.transcript.strip():
            raise _fault(folder / LIST, f"has no transcript for {preset.name}, and a {preset.kind} needs one")
    try:
        return [(preset, (folder / preset.recording).read_bytes()) for preset in presets]
    except OSError as error:
        raise _fault(Path(error.filename), f"is in {LIST} and cannot be read: {error.strerror}") from None


async def load(
    catalog: VoiceCatalog, info: ModelInfo, presets: Sequence[tuple[Preset, bytes]], builder: VoiceBuilder, wanted: str
) -> None:
    """Give a catalog the presets of its model, and its default by the setting `voices.default`. Raises StartupError."""
    if not info.speakers:
        marked = next((preset.name for preset, _ in presets if preset.default), "")
        names = [preset.name for preset, _ in presets]
        catalog.set_presets(await build(presets, builder), default(names, marked, wanted))
        return
    if presets:
        raise StartupError(
            f"the folder {FOLDER} lists presets, and the voices of {info.name} are built in: "
            f"{', '.join(info.speakers)}; remove the folder {FOLDER}"
        )
    catalog.set_presets(speakers(info), default(info.speakers, info.speakers[0], wanted))


def speakers(info: ModelInfo) -> Mapping[str, Sequence[StoredVoice]]:
    """The built-in voices of a model by name, as `VoiceCatalog.set_presets` takes them."""
    kind = VoiceKind.SPEAKER
    return {
        name: [
            StoredVoice(
                voice=Voice(
                    id=voice_id(kind, info.fingerprint, name),
                    kind=kind,
                    fingerprint=info.fingerprint,
                    display_name=name,
                )
            )
        ]
        for name in info.speakers
    }


def default(names: Sequence[str], marked: str, wanted: str) -> str:
    """The name of the default voice by the setting `voices.default`; empty for none. Raises StartupError.

    names: of the presets
    marked: the one that the model proposes; empty for none
    """
    if wanted == "auto":
        return marked
    if wanted == "none":
        return ""
    if wanted not in names:
        there = f"its presets are {', '.join(names)}" if names else "it has no presets here"
        raise StartupError(
            f"voices.default is {wanted}, which the model does not have; {there}; set one of them, auto or none"
        )
    return wanted


async def build(presets: Sequence[tuple[Preset, bytes]], builder: VoiceBuilder) -> Mapping[str, Sequence[StoredVoice]]:
    """The voices of each preset by name, as `VoiceCatalog.set_presets` takes them. Raises StartupError."""
    built, done = {}, counting("the presets are loading", len(presets))
    for preset, recording in presets:
        try:
            builder.check_lora(preset.lora)
        except NotFound as error:
            raise _fault(Path(FOLDER) / LIST, f"names a LoRA adapter for {preset.name}: {error.message}") from None
        options = VoiceOptions(display_name=preset.name, labels=preset.labels, lora=preset.lora)
        try:
            built[preset.name] = await builder.build(
                VoiceKind[preset.kind.upper()], recording, preset.transcript, options
            )
        except VoxCPMError as error:
            raise _fault(Path(FOLDER) / preset.recording, f"cannot be the preset {preset.name}: {error}") from None
        done()
    return built


def _fault(path: Path, what: str) -> StartupError:
    return StartupError(f"{path} {what}; correct it, or remove the folder {FOLDER} to serve the model without it")
