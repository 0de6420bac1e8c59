"""The LoRA adapters of an engine, and their places on the device. No torch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason
from voxcpm_grpc.request import LoraInfo

if TYPE_CHECKING:
    from voxcpm_grpc.models.base import Adapter

NO_PLACE = -1


@dataclass(slots=True, eq=False)
class Lora:
    """A registered adapter. On the device only while it has a place."""

    info: LoraInfo
    adapter: Adapter
    place: int = NO_PLACE
    requests: int = 0  # of the engine that name it
    holders: int = 0  # of these, in slots: it keeps its place


class Places:
    """Registered adapters, as many as there is memory on the host, of which `count` have a place on the device.

    An adapter keeps its place after its last stream, until another one needs it. The one that was used least recently
    goes first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._loras: dict[str, Lora] = {}  # by id
        self._free = list(reversed(range(count)))
        self._idle: OrderedDict[str, Lora] = OrderedDict()  # with a place and without holders, the oldest first

    @property
    def loras(self) -> tuple[LoraInfo, ...]:
        return tuple(lora.info for lora in self._loras.values())

    def find(self, id: str) -> Lora:
        """The adapter of this id. Raises FailedPrecondition if there is none."""
        try:
            return self._loras[id]
        except KeyError:
            raise FailedPrecondition(
                "the LoRA adapter of this request is not registered with the engine; register it again",
                field="lora",
                reason=Reason.LORA_LOST,
            ) from None

    def add(self, info: LoraInfo, adapter: Adapter) -> None:
        """Register an adapter. Raises InvalidRequest if its id is in use, FailedPrecondition without any place."""
        if not self.count:
            raise no_places()
        if info.id in self._loras:
            raise InvalidRequest(f"the adapter id {info.id!r} is in use; choose another", field="lora")
        self._loras[info.id] = Lora(info, adapter)

    def remove(self, id: str) -> None:
        """Forget an adapter. Raises FailedPrecondition if it is unknown or a request names it."""
        lora = self.find(id)
        if lora.requests:
            raise FailedPrecondition(
                f"{lora.requests} requests use the LoRA adapter {lora.info.name!r}; wait until they end",
                field="lora",
                reason=Reason.LORA_IN_USE,
                lora=lora.info.name,
                requests=lora.requests,
            )
        del self._loras[id]
        if self._idle.pop(id, None):
            self._free.append(lora.place)

    def has_room(self, lora: Lora) -> bool:
        """True if the adapter has a place or can get one."""
        return lora.place != NO_PLACE or bool(self._free or self._idle)

    def hold(self, lora: Lora) -> bool:
        """Keep the adapter in a place for one more slot. True if it is new there and must be written."""
        is_new = lora.place == NO_PLACE
        if is_new:
            lora.place = self._free.pop() if self._free else self._evict()
        self._idle.pop(lora.info.id, None)
        lora.holders += 1
        return is_new

    def release(self, lora: Lora) -> None:
        """Undo one `hold`."""
        lora.holders -= 1
        if not lora.holders:
            self._idle[lora.info.id] = lora

    def _evict(self) -> int:
        _, lora = self._idle.popitem(last=False)
        place, lora.place = lora.place, NO_PLACE
        return place


def no_places() -> FailedPrecondition:
    """The error of an engine without any place."""
    return FailedPrecondition(
        "this server keeps no memory for LoRA adapters; set engine.max_loras", reason=Reason.LORAS_DISABLED
    )
