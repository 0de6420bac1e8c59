"""All voices of a server: the presets of its model and the stored voices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, PermissionDenied, Reason, VoxCPMError
from voxcpm_server.auth.principal import Caller
from voxcpm_server.values.inputs import MAX_NAME, VoiceChange, VoiceOptions
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.lookup import ambiguous, fitting, unknown
from voxcpm_server.voices.store.generations import no_voice
from voxcpm_server.voices.store.named_voices import nearest
from voxcpm_server.voices.store.names import ID
from voxcpm_server.voices.store.records import Damaged, StoredVoice
from voxcpm_server.voices.store.store import VoiceStore

NO_MODELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class VoiceRef:
    """A voice, by its id. `name` is the display name that it was found by; empty for an id and for a preset."""

    id: str
    name: str = ""


class VoiceCatalog:
    """Presets of one model in memory, and a store, which several models share.

    A preset has a name, never expires and does not need the store. The same recording, model and kind have the same id
    as a preset and as a stored voice; where both exist, the id means the preset, and the display names of the stored
    one mean that. Methods that VoiceStore has too may raise the same errors. To a caller, voices that it may not see do
    not exist; only its own can it change.
    """

    def __init__(self, store: VoiceStore, fingerprint: str = "", models: Mapping[str, str] = NO_MODELS) -> None:
        """The voices of one model, with this fingerprint. `models` has the names of all models by fingerprint."""
        self._store = store
        self._fingerprint = fingerprint
        self._models = models
        self._names: dict[str, Voice] = {}
        self.default = ""  # streams without a voice and a style get this preset; the name is empty if there is none
        self._presets: dict[str, StoredVoice] = {}  # the keys are ids, those of the members of hifi voices too
        self._others: Sequence[VoiceCatalog] = ()

    @property
    def presets(self) -> Sequence[str]:
        """The names of the presets."""
        return list(self._names)

    @property
    def preset_voices(self) -> Collection[Voice]:
        """The voices of the presets, without the members of hifi voices."""
        return self._names.values()

    def set_others(self, others: Sequence[VoiceCatalog]) -> None:
        """Set the catalogs of the other models: their presets are found, and refused to streams of this model."""
        self._others = others

    def set_presets(self, presets: Mapping[str, Sequence[StoredVoice]], default: str = "") -> None:
        """Set the presets by name; the voice itself comes last, after its members. Called once."""
        self.default = default
        for name, voices in presets.items():
            self._names[name] = voices[-1].voice
            self._presets.update((stored.voice.id, stored) for stored in voices)

    def preset(self, name: str) -> StoredVoice:
        """The preset of this name.

        Raises NotFound with the names of all presets, and FailedPrecondition for a preset of another model.
        """
        if (voice := self._names.get(name)) is None:
            for other in self._others:
                if name in other._names:
                    raise self._of_another_model(other._names[name])
            there = f"the model's presets are {', '.join(self._names)}" if self._names else "the model has no presets"
            if near := nearest(name, self._names):
                there = f"did you mean {near!r}? {there}"
            raise NotFound(
                f"there is no preset {name[:80]!r}; {there}; stored voices are named in the field voice",
                reason=Reason.PRESET_NOT_FOUND,
                preset=name,
            )
        return self._presets[voice.id]

    async def resolve(self, name: str, caller: Caller, kind: VoiceKind | None = None) -> VoiceRef:
        """The voice that a caller means: a preset's name, an id or a display name, in this order.

        Display names, and then presets, are compared without the case of letters. Of several voices, those of this
        model precede others, then the caller's own those of everyone, then those with exactly this name, and then those
        of `kind`. Raises NotFound with the nearest name, and InvalidRequest with the voices to choose from if there are
        several. An id is returned as it is, whether its voice exists or not.
        """
        if (preset := self._names.get(name)) is not None:
            return VoiceRef(preset.id)
        if ID.fullmatch(name):
            return VoiceRef(name)
        named = await self._store.named(name) if 0 < len(name) <= MAX_NAME else []
        stored = [voice for voice in named if caller.sees(voice.principal)]
        found = [*stored, *self._presets_named(name)]
        found = [voice for voice in found if voice.fingerprint == self._fingerprint] or found
        found = [voice for voice in found if caller.owns(voice.principal)] or found
        found = [voice for voice in found if voice.display_name == name] or found
        found = fitting(found, kind)
        if not found:
            raise unknown(name, self.presets, await self._store.nearest(name, self.presets, caller.sees))
        if len(found) > 1:
            raise ambiguous(name, found)
        return VoiceRef(found[0].id, found[0].display_name if found[0] in stored else "")

    def _presets_named(self, name: str) -> Sequence[Voice]:
        """The presets of a name in any case of its letters; of other models the first one, if this model has none."""
        folded = name.casefold()
        for one in (self, *self._others):
            if found := [voice for voice in one.preset_voices if voice.display_name.casefold() == folded]:
                return found if one is self else found[:1]
        return ()

    def name_of(self, voice: Voice) -> str:
        """The name of a voice in the header of a stream: that of a preset, or the id."""
        named = self._names.get(voice.display_name)
        return voice.display_name if named is not None and named.id == voice.id else voice.id

    def check_name(self, name: str, field: str) -> None:
        """Raise InvalidRequest if a display name, in this field of the request, could mean another voice."""
        if preset := next((preset for preset in self._names if preset.casefold() == name.casefold()), ""):
            raise InvalidRequest(
                f"{preset!r} is the name of a preset, which comes first; choose another name", field=field
            )
        if ID.fullmatch(name):
            raise InvalidRequest("display_name has the form of an id, which comes first; choose another", field=field)

    async def load(self, ref: VoiceRef, caller: Caller) -> StoredVoice:
        if (preset := self._preset_of(ref)) is not None:
            self._check_model(preset.voice)
            return preset
        stored = await self._store.load(ref.id)
        if not caller.sees(stored.voice.principal):
            raise no_voice(ref.id)
        self._check_model(stored.voice)
        return stored

    async def update(self, ref: VoiceRef, change: VoiceChange, caller: Caller) -> Voice:
        """Call `VoiceStore.update`. Raises FailedPrecondition for a preset, and the errors of `check_name`."""
        if (preset := self._preset_of(ref)) is not None:
            raise _preset_error(preset, "changed")
        self.check_name(change.display_name or "", "display_name")
        _check_owner(await self.find(ref, caller), caller)
        changed = await self._store.update(ref.id, replace(change, of_name=ref.name))
        return changed if change.display_name else changed.shown_as(ref.name)

    async def find(self, ref: VoiceRef, caller: Caller) -> Voice:
        """The voice, which shows the name that it was found by. A preset has the names of the stored voice, too."""
        if (preset := self._preset_of(ref)) is not None:
            try:
                return preset.voice.with_names_of(await self._store.find(ref.id))
            except VoxCPMError:  # a preset does not need the store
                return preset.voice
        voice = await self._store.find(ref.id)
        if not caller.sees(voice.principal):
            raise no_voice(ref.id)
        return voice.shown_as(ref.name)

    def _preset_of(self, ref: VoiceRef) -> StoredVoice | None:
        """The preset of an id, or the member of one: of this model, or else of another one."""
        if ref.name:
            return None
        return next((one._presets[ref.id] for one in (self, *self._others) if ref.id in one._presets), None)

    async def add(
        self,
        *wanted: StoredVoice,
        using: Collection[str] = (),
        owner: str = "",
        options: VoiceOptions | None = None,
    ) -> list[tuple[Voice, bool]]:
        """Call `VoiceStore.add`. A preset keeps its own properties; with a name, it is stored beside it."""
        named = options is not None and options.display_name
        presets = [None if named else self._presets.get(stored.voice.id) for stored in wanted]
        new = [stored for stored, preset in zip(wanted, presets, strict=True) if preset is None]
        stored = await self._store.add(
            *new,
            using=[id for id in using if id not in self._presets],
            owner=owner,
            options=options if new and presets[-1] is None else None,
        )
        added = iter((voice, existed or voice.id in self._presets) for voice, existed in stored)
        return [next(added) if preset is None else (preset.voice, True) for preset in presets]

    async def delete(self, ref: VoiceRef, caller: Caller, *, cascade: bool = False) -> Sequence[str]:
        """Call `VoiceStore.delete` by the name that the voice was found by. Raises FailedPrecondition for a preset."""
        if (preset := self._preset_of(ref)) is not None:
            raise _preset_error(preset, "deleted")
        try:
            _check_owner(await self.find(ref, caller), caller)
        except (NotFound, Damaged):
            if not caller.owns(""):  # otherwise the store completes a deletion, or removes what cannot be read
                raise
        return await self._store.delete(ref.id, name=ref.name, cascade=cascade, may_delete=caller.may_change)

    async def page(
        self,
        caller: Caller,
        *,
        kind: VoiceKind | None = None,
        labels: dict[str, str] | None = None,
        size: int = 0,
        token: str = "",
        others: Iterable[Voice] = (),
        own: bool = False,
    ) -> tuple[list[Voice], str]:
        """Stored voices newest first, then the presets; see `VoiceStore.page`.

        others: presets of other models, listed after those of this one
        own: True lists only voices of this model
        """
        return await self._store.page(
            kind=kind,
            labels=labels,
            size=size,
            token=token,
            beside=[*self._names.values(), *others],
            sees=caller.sees,
            fingerprint=self._fingerprint if own else "",
        )

    def _check_model(self, voice: Voice) -> None:
        """Raise FailedPrecondition for a voice of another model of this server."""
        if voice.fingerprint in self._models and voice.fingerprint != self._fingerprint:
            raise self._of_another_model(voice)

    def _of_another_model(self, voice: Voice) -> FailedPrecondition:
        other, own = self._models.get(voice.fingerprint, ""), self._models.get(self._fingerprint, "")
        if self._preset_of(VoiceRef(voice.id)) is not None:
            made, remedy = f"{voice.display_name!r} is a preset of the model", "choose another voice"
        else:
            made, remedy = f"{voice.id} was made for the model", "upload the recording again for this model"
        return FailedPrecondition(
            f"voice {made} {other!r} and this request is for {own!r}; set model to {other!r}, or {remedy}",
            reason=Reason.VOICE_OF_ANOTHER_MODEL,
            voice=voice.id,
            model=other,
        )


def _check_owner(voice: Voice, caller: Caller) -> None:
    if not caller.may_change(voice.principal):
        raise PermissionDenied(f"voice {voice.id} is everyone's, and only an admin can change it", field="id")


def _preset_error(preset: StoredVoice, verb: str) -> FailedPrecondition:
    voice = preset.voice
    return FailedPrecondition(
        f"voice {voice.id} is the preset {voice.display_name!r} of the model and cannot be {verb}",
        field="id",
        reason=Reason.PRESET_READ_ONLY,
        preset=voice.display_name,
    )
