"""A loaded model for code without asyncio. It runs the asynchronous one on a thread of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from voxcpm_grpc.aio.event_loops import LoopThread
from voxcpm_grpc.embedded.async_model import AsyncModel, Device, PriorityName, Recording
from voxcpm_grpc.errors import Reason, Unavailable
from voxcpm_grpc.request import Conditioning, ModelInfo, Sampling

T = TypeVar("T")


class Model:
    """A model on one or several devices, as AsyncModel. Threads can share it; close it at the end."""

    def __init__(self, model: AsyncModel, loop: LoopThread) -> None:
        self._model = model
        self._loop = loop
        self._stop = weakref.finalize(self, _stop, model, loop)

    @classmethod
    def load(
        cls,
        model: str | Path,
        devices: Sequence[Device],
        *,
        revision: str | None,
        cache_dir: Path | None,
        settings: Mapping[str, object],
    ) -> Model:
        """Start an engine on each device. See `voxcpm_grpc.load`."""
        loop = LoopThread("model")
        try:
            loaded = loop.run(
                AsyncModel.load(model, devices, revision=revision, cache_dir=cache_dir, settings=settings)
            )
        except BaseException:
            loop.stop()
            raise
        return cls(loaded, loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engines. Calls that still run raise Unavailable, or Aborted if they have sent audio."""
        self._stop()

    @property
    def info(self) -> ModelInfo:
        """The model and its sizes; `info.output_sample_rate` is the rate of all audio from `generate`."""
        return self._model.info

    @property
    def loras(self) -> tuple[str, ...]:
        """The names of the LoRA adapters that `generate` may choose, which the setting `lora` gives."""
        return self._model.loras

    def generate(
        self,
        text: str,
        *,
        voice: Conditioning | None = None,
        style: str = "",
        language: str = "",
        sampling: Sampling | None = None,
        priority: PriorityName = "interactive",
        lora: str = "",
    ) -> Generator[np.ndarray]:
        """Generate speech for one segment of text, float32 [samples] a step. See `AsyncModel.generate`.

        Closing the generator and dropping it free the slot.
        """
        audio = self._model.generate(
            text, voice=voice, style=style, language=language, sampling=sampling, priority=priority, lora=lora
        )

        async def following() -> np.ndarray | None:
            return await anext(audio, None)

        try:
            while (samples := self._run(following)) is not None:
                yield samples
        finally:
            if self._stop.alive:
                self._loop.run(audio.aclose())

    def encode_voice(
        self, *, reference: Recording | None = None, prompt: Recording | None = None, transcript: str = ""
    ) -> Conditioning:
        """Encode recordings as a voice for `generate`. See `AsyncModel.encode_voice`."""
        encode = partial(self._model.encode_voice, reference=reference, prompt=prompt, transcript=transcript)
        return self._run(encode)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not self._stop.alive:
            raise Unavailable("the model is closed; load it again", reason=Reason.NO_ENGINE)
        return self._loop.run(call())


def _stop(model: AsyncModel, loop: LoopThread) -> None:
    try:
        loop.run(model.close())
    finally:
        loop.stop()
