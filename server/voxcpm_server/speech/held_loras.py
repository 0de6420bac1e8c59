"""The LoRA adapters of a Generate stream: each is held as long as a turn of the stream can speak with it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_server.wire.inputs import TurnConfig


class HeldLoras:
    """Holds the adapters of turns, so that engines keep those that are unregistered meanwhile."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._held: dict[str, ExitStack] = {}  # by id

    def hold(self, turn: TurnConfig) -> TurnConfig:
        """Hold the adapter that a turn names. Returns the turn with its id instead. Raises NotFound."""
        if not turn.lora:
            return turn
        stack = ExitStack()
        id = stack.enter_context(self._pool.lora(turn.lora))
        if id in self._held:
            stack.close()
        else:
            self._held[id] = stack
        return replace(turn, lora=id)

    def keep(self, turns: Iterable[TurnConfig]) -> None:
        """Release all adapters but those of `turns`, over which it iterates only if the stream holds any."""
        if self._held:
            for id in self._held.keys() - {turn.lora for turn in turns}:
                self._held.pop(id).close()

    def close(self) -> None:
        """Release all adapters."""
        self.keep(())
