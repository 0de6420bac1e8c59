"""The LoRA adapters of an engine: a thread reads them, and those in use have banks on the device. No torch."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import FailedPrecondition, Internal, InvalidRequest, Reason, VoxCPMError, code_of
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.request import Adapter

logger = logging.getLogger(__name__)

NO_BANK = -1


@dataclass(slots=True, eq=False)
class Lora:
    """An adapter that the engine has read, or is to read. On the device only while it has a bank."""

    adapter: Adapter
    weights: Any = None  # the model gives the type; None: they are not read yet
    bank: int = NO_BANK
    users: set[str] = field(default_factory=set[str])  # requests with these ids name it
    waiting: set[str] = field(default_factory=set[str])  # preloads with these ids get an answer when it is read
    holders: int = 0  # slots of its users; it keeps its bank while there are any
    is_freed: bool = False  # no request or preload wants it any more

    @property
    def is_read(self) -> bool:
        return self.weights is not None


class Adapters:
    """Reads the adapters that requests name, and keeps as many as there is memory on the host.

    `count` of them have a bank on the device. An adapter keeps its bank after its last stream, until another one
    needs it. The one that was used least recently goes first. An adapter that is neither kept nor used is freed.

    `read(directory)` may take seconds, and raises InvalidRequest for files that do not fit. A thread calls it for one
    adapter after the other, so that no step waits, and then `wake`, which the engine's user sets before the first
    adapter is wanted. All methods belong to the engine's thread.

    fingerprints: of the adapters that are read
    """

    def __init__(self, count: int, read: Callable[[Path], Any]) -> None:
        self.count = count
        self.wake: Callable[[], None] = lambda: None
        self.fingerprints: tuple[str, ...] = ()
        self._read_files = read
        self._loras: dict[str, Lora] = {}  # the keys are fingerprints
        self._kept: frozenset[str] = frozenset()  # the entries are fingerprints
        self._to_read: SimpleQueue[_Reading | None] = SimpleQueue()
        # Each adapter comes with its weights, or with an exception.
        self._outcomes: SimpleQueue[tuple[Lora, Any]] = SimpleQueue()
        self._has_thread = False
        self._free = list(reversed(range(count)))
        self._idle: OrderedDict[Lora, None] = OrderedDict()  # these have a bank and no holders, the oldest first

    # ---- in memory

    @property
    def pending(self) -> bool:
        """True if `collect` has something to do now."""
        return not self._outcomes.empty()

    def require_banks(self) -> None:
        """Raise FailedPrecondition in an engine without any bank."""
        if not self.count:
            raise FailedPrecondition(
                "this server keeps no memory for LoRA adapters; set engine.max_loras", reason=Reason.LORAS_DISABLED
            )

    def want(self, id: str, adapter: Adapter) -> Lora:
        """The adapter for a request, which must wait until it is read. It stays until `done`."""
        lora = self._find(adapter)
        lora.users.add(id)
        return lora

    def done(self, id: str, lora: Lora) -> None:
        """Undo `want`."""
        lora.users.discard(id)
        self._free_if_unused(lora)

    def preload(self, id: str, adapter: Adapter) -> None:
        """Read an adapter before a request names it; `collect` yields the id then. Raises FailedPrecondition."""
        self.require_banks()
        lora = self._find(adapter)
        lora.waiting.add(id)
        if lora.is_read:
            self._outcomes.put((lora, lora.weights))

    def cancel(self, id: str) -> None:
        """End a preload. An unknown one is ignored."""
        for lora in [lora for lora in self._loras.values() if id in lora.waiting]:
            lora.waiting.discard(id)
            self._free_if_unused(lora)

    def keep(self, adapters: Iterable[Adapter]) -> None:
        """Keep these adapters and no others, except those in use. Those that were not kept before are read."""
        wanted = {adapter.fingerprint: adapter for adapter in adapters}
        new, self._kept = wanted.keys() - self._kept, frozenset(wanted)
        if self.count:
            for fingerprint in new:
                self._find(wanted[fingerprint])
        for lora in list(self._loras.values()):
            self._free_if_unused(lora)

    def read_now(self, adapter: Adapter) -> None:
        """Read an adapter, and keep it until the next `keep`. Raises InvalidRequest or FailedPrecondition.

        Only for an engine without requests.
        """
        self.require_banks()
        self._loras[adapter.fingerprint] = Lora(adapter, _read(adapter, self._read_files))
        self._kept |= {adapter.fingerprint}
        self._list()

    def collect(self) -> Iterator[tuple[str, VoxCPMError | None]]:
        """Yield the preloads that have ended, with their error, and the requests whose adapter cannot be read.

        Call it between two steps.
        """
        while not self._outcomes.empty():
            lora, outcome = self._outcomes.get()
            if lora.is_freed:
                continue
            waiting, lora.waiting = lora.waiting, set()
            if not isinstance(outcome, Exception):
                lora.weights = outcome
                self._list()
                yield from ((id, None) for id in waiting)
                self._free_if_unused(lora)
                continue
            del self._loras[lora.adapter.fingerprint]
            lora.is_freed = True
            error = _logged(lora.adapter, outcome)
            yield from ((id, error) for id in waiting)
            yield from ((id, _lost(lora.adapter)) for id in list(lora.users))

    def _find(self, adapter: Adapter) -> Lora:
        if lora := self._loras.get(adapter.fingerprint):
            return lora
        lora = self._loras[adapter.fingerprint] = Lora(adapter)
        self._to_read.put(_Reading(lora, self._read_files, self.wake))
        if not self._has_thread:
            self._has_thread = True
            weakref.finalize(self, self._to_read.put, None)
            arguments = (self._to_read, self._outcomes)
            threading.Thread(target=_read_all, args=arguments, name="lora-reader", daemon=True).start()
        return lora

    def _free_if_unused(self, lora: Lora) -> None:
        if lora.is_freed or lora.users or lora.waiting or lora.adapter.fingerprint in self._kept:
            return
        del self._loras[lora.adapter.fingerprint]
        lora.is_freed = True
        if lora in self._idle:
            del self._idle[lora]
            self._free.append(lora.bank)
        self._list()

    def _list(self) -> None:
        self.fingerprints = tuple(fingerprint for fingerprint, lora in self._loras.items() if lora.is_read)

    # ---- on the device

    def has_room(self, lora: Lora) -> bool:
        """True if the adapter has a bank or can get one."""
        return lora.bank != NO_BANK or bool(self._free or self._idle)

    def hold(self, lora: Lora) -> bool:
        """Keep the adapter in a bank for one more slot. True if it is new there and must be written."""
        is_new = lora.bank == NO_BANK
        if is_new:
            lora.bank = self._free.pop() if self._free else self._evict()
        self._idle.pop(lora, None)
        lora.holders += 1
        return is_new

    def release(self, lora: Lora) -> None:
        """Undo one `hold`."""
        lora.holders -= 1
        if not lora.holders:
            self._idle[lora] = None

    def _evict(self) -> int:
        lora, _ = self._idle.popitem(last=False)
        bank, lora.bank = lora.bank, NO_BANK
        return bank


@dataclass(frozen=True, slots=True)
class _Reading:
    """The work of the thread: an adapter, the function that reads it, and the one that is called afterwards."""

    lora: Lora
    read: Callable[[Path], Any]
    wake: Callable[[], None]


def _read_all(to_read: SimpleQueue[_Reading | None], outcomes: SimpleQueue[tuple[Lora, Any]]) -> None:
    """Read adapters until None. The thread refers to no engine while it waits, so that an engine can be freed."""
    while (reading := to_read.get()) is not None:
        lora = reading.lora
        if not lora.is_freed:
            try:
                outcomes.put((lora, _read(lora.adapter, reading.read)))
            except Exception as error:
                outcomes.put((lora, error))
            reading.wake()
        del lora, reading


def _read(adapter: Adapter, read: Callable[[Path], Any]) -> Any:
    """The weights of an adapter. Raises InvalidRequest, also for files whose content is another."""
    directory = Path(adapter.directory)
    try:
        is_same = lora_files.fingerprint(directory) == adapter.fingerprint
    except OSError:
        is_same = False
    if not is_same:
        raise InvalidRequest(
            f"the files of the LoRA adapter {adapter.name!r} cannot be read, or are not those that were registered; "
            "register it again",
            field="source",
        )
    try:
        return read(directory)
    except InvalidRequest as error:
        raise InvalidRequest(f"the LoRA adapter {adapter.name!r}: {error.message}", field="source") from None


def _logged(adapter: Adapter, outcome: Exception) -> VoxCPMError:
    """The error for the operator who registers an adapter, which is logged."""
    if not isinstance(outcome, VoxCPMError):
        logger.error(LogLine("a LoRA adapter cannot be read", lora=adapter.name), exc_info=outcome)
        return Internal()
    logger.warning(
        LogLine("a LoRA adapter is refused", lora=adapter.name, code=code_of(outcome), error=outcome.message)
    )
    return outcome


def _lost(adapter: Adapter) -> FailedPrecondition:
    """The error of a request. Another engine may have read the adapter before its files were lost."""
    return FailedPrecondition(
        f"an engine cannot read the LoRA adapter {adapter.name!r} of this request; its operator must register it again",
        field="lora",
        reason=Reason.LORA_LOST,
    )
