"""The memory of an encoder is free when its stream ends, without the garbage collector."""

from __future__ import annotations

import numpy as np
import pytest
from support.doubles.cycles import no_garbage

from voxcpm_grpc.audio import AudioFormat, Encoding, OutputPipeline
from voxcpm_grpc.audio.effects import NO_EFFECTS, Effects
from voxcpm_grpc.errors import Internal

NATIVE = 48000
SPEECH = np.random.default_rng(5).uniform(-0.5, 0.5, NATIVE // 5).astype(np.float32)


def ended(pipeline: OutputPipeline) -> None:
    pipeline.end_turn()
    pipeline.begin_turn(NO_EFFECTS)
    pipeline.push(SPEECH)
    pipeline.flush()


def interrupted(pipeline: OutputPipeline) -> None:
    pipeline.discard()
    pipeline.push(SPEECH)
    pipeline.flush()


def failed(pipeline: OutputPipeline) -> None:
    with pytest.raises(Internal):
        pipeline.push(np.full(4, np.nan, np.float32))


def cancelled(_: OutputPipeline) -> None:
    """Nothing follows."""


@pytest.mark.parametrize("effects", [NO_EFFECTS, Effects(1.3, 5.0)], ids=["plain", "with effects"])
@pytest.mark.parametrize("encoding", Encoding)
def test_a_stream_leaves_no_object_however_it_ends(encoding, effects):
    def streams() -> None:
        for end in (ended, interrupted, failed, cancelled):
            for rate in (16000, NATIVE if encoding not in (Encoding.MULAW, Encoding.ALAW) else 8000):
                pipeline = OutputPipeline(NATIVE, AudioFormat(encoding, rate))
                pipeline.begin_turn(effects)
                pipeline.push(SPEECH)
                end(pipeline)

    streams()  # loads modules
    with no_garbage():
        streams()
