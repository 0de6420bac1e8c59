"""Servers of the tiny Qwen3-TTS checkpoints. The codec is that of the checkpoint, and the speech is made up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.engines.qwen3 import shared

from voxcpm_grpc.request import Request, Role, VoicePart

ServeVariant = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def serve_variant(serve_front: Any, fake: type[Any]) -> ServeVariant:
    """`async with serve_variant("base06", **options) as served`; the options are those of `serve_front`.

    others: variants that are served beside it
    """

    @dataclass
    class Qwen3Pool(fake):
        variant: str = "custom17"

        def __post_init__(self) -> None:
            self.model = shared(self.variant)
            self.info = self.model.info

        def generate(self, request: Request, **options: Any) -> Any:
            """As an engine does, refuse what the model cannot do, and what it cannot lay out."""
            self.model.plan(self.info.checked(request))
            return super().generate(request, **options)

        def made(self, request: Request, count: int) -> VoicePart:
            voice = self.model.plan(self.info.checked(request)).own
            content = {"codes": np.full((count, 16), len(request.text), np.int16), "speaker": voice.speaker}
            return VoicePart(content=content, tracks=("codes",))

        async def encode(self, waveform: np.ndarray, role: Role) -> VoicePart:
            self.encoded += 1
            arrays = defaultdict[str, list[np.ndarray]](list)
            for name, part in self.model.codec.encode(waveform, role):
                arrays[name].append(part.numpy().copy())
            content = {name: np.concatenate(parts) for name, parts in arrays.items()}
            return VoicePart(content=content, tracks=tuple(name for name in self.info.tracks if name in content))

        async def decode(self, part: VoicePart) -> AsyncGenerator[np.ndarray]:
            for audio in self.model.codec.decode(part.content):
                yield audio.numpy().copy()

    def serve(variant: str, others: Sequence[str] = (), **options: Any) -> AbstractAsyncContextManager[Any]:
        return serve_front(Qwen3Pool(variant=variant), [Qwen3Pool(variant=one) for one in others], **options)

    return serve
