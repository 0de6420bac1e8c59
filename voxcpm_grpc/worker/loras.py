"""The LoRA adapters of an engine: a thread reads them, and they are freed when no request names them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import FailedPrecondition, Internal, InvalidRequest, VoxCPMError, code_of
from voxcpm_grpc.ipc.messages import Failed, Loras
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.request import LoraInfo

logger = logging.getLogger(__name__)


class LoraEngine(Protocol):
    """The part of an Engine that deals with LoRA adapters.

    `read_lora` may take seconds, and other threads may call it at any time. It raises InvalidRequest for files that do
    not fit. Requests may name an adapter after `add_lora`. `remove_lora` raises FailedPrecondition while one does.
    """

    def loras(self) -> tuple[LoraInfo, ...]: ...
    def read_lora(self, info: LoraInfo) -> Any: ...
    def add_lora(self, info: LoraInfo, adapter: Any) -> None: ...
    def remove_lora(self, id: str) -> None: ...


class EngineLoras:
    """Registers LoRA adapters with an engine and frees them.

    A thread of its own reads the files, one adapter after the other, so that no step waits. It calls `wake` whenever
    `update` has something to do. All methods belong to the engine's thread.
    """

    def __init__(self, engine: LoraEngine, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._wake = wake
        self._to_read: SimpleQueue[LoraInfo] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[LoraInfo, object]] = SimpleQueue()  # the adapter, or an exception
        self._thread: threading.Thread | None = None
        self._reading: set[str] = set()  # ids that are read or wait for it
        self._failed: dict[str, Failed] = {}
        self._leaving: set[str] = set()  # ids that requests may still name
        self._changed = False

    @property
    def waiting(self) -> bool:
        """True if `update` has something to do now."""
        return self._changed or not self._outcomes.empty()

    @property
    def report(self) -> Loras:
        return Loras(self._engine.loras(), tuple(self._failed.values()))

    def register(self, info: LoraInfo) -> None:
        """Read an adapter in the background. One that the engine has or reads already is ignored."""
        if info.id in self._reading or self._has(info.id):
            return
        self._failed.pop(info.id, None)
        self._reading.add(info.id)
        self._to_read.put(info)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_all, name="lora-reader", daemon=True)
            self._thread.start()

    def unregister(self, id: str) -> None:
        """Free an adapter, or stop to wait for it. An unknown id is ignored."""
        self._reading.discard(id)
        if self._failed.pop(id, None):
            self._changed = True
        if self._has(id):
            self._leaving.add(id)

    def update(self) -> Loras | None:
        """Add the adapters that were read, and free those that can be. Returns a report if something has changed.

        Call it between two steps.
        """
        while not self._outcomes.empty():
            info, outcome = self._outcomes.get()
            if info.id in self._reading:
                self._reading.discard(info.id)
                self._add(info, outcome)
                self._changed = True
        for id in list(self._leaving):
            self._remove(id)
        if not self._changed:
            return None
        self._changed = False
        return self.report

    def _has(self, id: str) -> bool:
        return any(info.id == id for info in self._engine.loras())

    def _add(self, info: LoraInfo, outcome: object) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._engine.add_lora(info, outcome)
        except VoxCPMError as error:
            logger.warning(
                LogLine("a LoRA adapter is refused", lora=info.name, code=code_of(error), error=error.message)
            )
            self._failed[info.id] = Failed.of(info.id, error)
        except Exception as error:
            logger.error(LogLine("a LoRA adapter cannot be read", lora=info.name), exc_info=error)
            self._failed[info.id] = Failed.of(info.id, Internal())

    def _remove(self, id: str) -> None:
        try:
            self._engine.remove_lora(id)
        except FailedPrecondition:
            return  # a request names it
        except Exception:
            logger.exception("a LoRA adapter cannot be freed; the engine keeps it until it restarts")
        self._leaving.discard(id)
        self._changed = True

    # ---- in the thread

    def _read_all(self) -> None:
        while True:
            info = self._to_read.get()
            if info.id not in self._reading:  # it was unregistered
                continue
            try:
                outcome = self._read(info)
            except Exception as error:
                outcome = error
            self._outcomes.put((info, outcome))
            del outcome  # or the memory of the adapter would be kept until the next one
            self._wake()

    def _read(self, info: LoraInfo) -> object:
        try:
            is_same = not info.fingerprint or lora_files.fingerprint(Path(info.directory)) == info.fingerprint
        except OSError:
            is_same = False
        if not is_same:
            raise InvalidRequest(
                f"the files of the LoRA adapter {info.name!r} cannot be read, or are not those that were registered; "
                "register it again",
                field="source",
            )
        try:
            return self._engine.read_lora(info)
        except InvalidRequest as error:
            raise InvalidRequest(f"the LoRA adapter {info.name!r}: {error.message}", field="source") from None
