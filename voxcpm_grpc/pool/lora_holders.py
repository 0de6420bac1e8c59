"""The LoRA adapters of a front, and the streams that hold them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from voxcpm_grpc.errors import NotFound, Reason
from voxcpm_grpc.request import LoraInfo

MAX_SHOWN = 64  # characters of an unknown name in an error


@dataclass(slots=True, eq=False)
class _Held:
    info: LoraInfo
    streams: int = 0
    registered: bool = True


class LoraHolders:
    """The adapters that streams of a front may choose, and the number of streams that hold each.

    `release(id)` is called once for each adapter, when it is registered no longer and no stream holds it.
    """

    def __init__(self, release: Callable[[str], None]) -> None:
        self._release = release
        self._held: dict[str, _Held] = {}  # by id

    @property
    def registered(self) -> tuple[LoraInfo, ...]:
        """The adapters that new streams may choose, in the order of their registration. For any thread."""
        return tuple(held.info for held in list(self._held.values()) if held.registered)

    def update(self, registered: tuple[LoraInfo, ...]) -> None:
        """Set the adapters that new streams may choose."""
        ids = {info.id for info in registered}
        for info in registered:
            self._held.setdefault(info.id, _Held(info))
        for id, held in list(self._held.items()):
            held.registered = id in ids
            self._release_if_unused(held)

    def find(self, name: str) -> LoraInfo:
        """The registered adapter of a name. Raises NotFound."""
        for info in self.registered:
            if info.name == name:
                return info
        known = (
            ", ".join(info.name for info in self.registered)
            or "none; its operator adds them with --lora NAME=DIRECTORY"
        )
        raise NotFound(
            f"there is no LoRA adapter {name[:MAX_SHOWN]!r}; the server has {known}",
            field="lora",
            reason=Reason.LORA_NOT_FOUND,
            lora=name,
        )

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[str]:
        """Keep the adapter of a name until the end of the block, for one stream; yields its id. Raises NotFound.

        An empty name is the model alone, whose id is empty.
        """
        if not name:
            yield ""
            return
        held = self._held[self.find(name).id]
        held.streams += 1
        try:
            yield held.info.id
        finally:
            held.streams -= 1
            self._release_if_unused(held)

    def may_name(self, id: str) -> bool:
        """True if requests of streams may name the id."""
        return id in self._held

    def streams_with(self, id: str) -> int:
        """The number of streams that hold an adapter, also one that is registered no longer."""
        return self._held[id].streams if id in self._held else 0

    def _release_if_unused(self, held: _Held) -> None:
        if not held.registered and not held.streams and self._held.pop(held.info.id, None):
            self._release(held.info.id)
