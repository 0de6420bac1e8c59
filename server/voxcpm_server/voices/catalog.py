"""Every voice that a server speaks with: the presets, which come with its model, and those that are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from voxcpm_grpc.errors import FailedPrecondition, NotFound
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.voices.voice import Kind, StoredVoice, Voice


class VoiceCatalog:
    """A preset has a name and never expires. It is in memory only, so a store is neither needed for it nor changed.

    Ids follow from content, so the same recording, model and kind give the same id whether it is stored or a preset;
    where both are, the preset is meant. Every method may raise what VoiceStore's of that name does.
    """

    def __init__(self, store: VoiceStore) -> None:
        self._store = store
        self._names: dict[str, Voice] = {}
        self._default = ""
        self._presets: dict[str, StoredVoice] = {}  # by id, with the members of hifi voices

    @property
    def presets(self) -> Sequence[str]:
        """Their names."""
        return list(self._names)

    @property
    def default(self) -> str:
        """Name of the preset that speaks where a stream names neither a voice nor a style; empty if there is none."""
        return self._default

    def set_presets(self, presets: Mapping[str, Sequence[StoredVoice]], default: str = "") -> None:
        """Have these presets, by name: the voice itself comes last, what it was made of before it."""
        self._default = default
        for name, voices in presets.items():
            self._names[name] = voices[-1].voice
            self._presets.update((stored.voice.id, stored) for stored in voices)

    def preset(self, name: str) -> StoredVoice:
        """Raises NotFound with the names there are."""
        if (voice := self._names.get(name)) is None:
            there = f"the model's presets are {', '.join(self._names)}" if self._names else "the model has no presets"
            raise NotFound(f"there is no preset {name[:80]!r}; {there}, and a stored voice is named by its id")
        return self._presets[voice.id]

    async def load(self, id: str) -> StoredVoice:
        return self._presets.get(id) or await self._store.load(id)

    async def find(self, id: str) -> Voice:
        return preset.voice if (preset := self._presets.get(id)) else await self._store.find(id)

    async def add(self, *wanted: StoredVoice, using: Collection[str] = ()) -> list[tuple[Voice, bool]]:
        presets = [self._presets.get(stored.voice.id) for stored in wanted]
        new = [stored for stored, preset in zip(wanted, presets, strict=True) if preset is None]
        stored = await self._store.add(*new, using=[id for id in using if id not in self._presets])
        added = iter(stored)
        return [next(added) if preset is None else (preset.voice, True) for preset in presets]

    async def delete(self, id: str, *, cascade: bool = False) -> None:
        """Raises FailedPrecondition for a preset."""
        if (preset := self._presets.get(id)) is not None:
            raise FailedPrecondition(
                f"voice {id} comes with the model, as {preset.voice.display_name!r}, and cannot be deleted", field="id"
            )
        await self._store.delete(id, cascade=cascade)

    async def page(
        self, *, kind: Kind | None = None, labels: dict[str, str] | None = None, size: int = 0, token: str = ""
    ) -> tuple[list[Voice], str]:
        """The presets come last."""
        return await self._store.page(kind=kind, labels=labels, size=size, token=token, beside=self._names.values())
