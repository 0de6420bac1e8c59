"""All voices of a server: the presets of its model and the stored voices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from voxcpm_grpc.errors import FailedPrecondition, NotFound
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.voices.store.stored_voice import StoredVoice
from voxcpm_server.wire.inputs import VoiceOptions
from voxcpm_server.wire.voice import Voice, VoiceKind


class VoiceCatalog:
    """Presets in memory, and a store.

    A preset has a name, never expires and does not need the store. The same recording, model and kind have the same id
    as a preset and as a stored voice; where both exist, the id means the preset. Methods that VoiceStore has too may
    raise the same errors.
    """

    def __init__(self, store: VoiceStore) -> None:
        self._store = store
        self._names: dict[str, Voice] = {}
        self.default = ""  # name of the preset for streams without a voice and a style; empty if there is none
        self._presets: dict[str, StoredVoice] = {}  # by id, with the members of hifi voices

    @property
    def presets(self) -> Sequence[str]:
        """The names of the presets."""
        return list(self._names)

    def set_presets(self, presets: Mapping[str, Sequence[StoredVoice]], default: str = "") -> None:
        """Set the presets by name; the voice itself comes last, after its members. Called once."""
        self.default = default
        for name, voices in presets.items():
            self._names[name] = voices[-1].voice
            self._presets.update((stored.voice.id, stored) for stored in voices)

    def preset(self, name: str) -> StoredVoice:
        """The preset of this name. Raises NotFound with the names of all presets."""
        if (voice := self._names.get(name)) is None:
            there = f"the model's presets are {', '.join(self._names)}" if self._names else "the model has no presets"
            raise NotFound(f"there is no preset {name[:80]!r}; {there}; name a stored voice by its id")
        return self._presets[voice.id]

    async def load(self, id: str) -> StoredVoice:
        return self._presets.get(id) or await self._store.load(id)

    async def find(self, id: str) -> Voice:
        return preset.voice if (preset := self._presets.get(id)) else await self._store.find(id)

    async def add(
        self,
        *wanted: StoredVoice,
        using: Collection[str] = (),
        owner: str = "",
        options: VoiceOptions | None = None,
    ) -> list[tuple[Voice, bool]]:
        """As `VoiceStore.add`. A preset keeps its own name and labels."""
        presets = [self._presets.get(stored.voice.id) for stored in wanted]
        new = [stored for stored, preset in zip(wanted, presets, strict=True) if preset is None]
        stored = await self._store.add(
            *new,
            using=[id for id in using if id not in self._presets],
            owner=owner,
            options=options if new and presets[-1] is None else None,
        )
        added = iter(stored)
        return [next(added) if preset is None else (preset.voice, True) for preset in presets]

    async def delete(self, id: str, *, cascade: bool = False) -> None:
        """Raises FailedPrecondition for a preset."""
        if (preset := self._presets.get(id)) is not None:
            raise FailedPrecondition(
                f"voice {id} is the preset {preset.voice.display_name!r} of the model and cannot be deleted", field="id"
            )
        await self._store.delete(id, cascade=cascade)

    async def page(
        self, *, kind: VoiceKind | None = None, labels: dict[str, str] | None = None, size: int = 0, token: str = ""
    ) -> tuple[list[Voice], str]:
        """Stored voices newest first, then the presets; see `VoiceStore.page`."""
        return await self._store.page(kind=kind, labels=labels, size=size, token=token, beside=self._names.values())
