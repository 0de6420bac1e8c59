"""The audio codec as an engine uses it: recordings and codes in chunks, beside the running streams."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
from voxcpm_grpc.models.base import Codec, upload
from voxcpm_grpc.models.qwen3_tts.codec.decoder import AudioDecoder, DecoderState
from voxcpm_grpc.models.qwen3_tts.codec.encoder import Encoder
from voxcpm_grpc.models.qwen3_tts.codec.mel import HOP
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import CodecConfig
from voxcpm_grpc.request import Role

CODES, SPEAKER = "codes", "speaker"
"""The arrays of a voice: int16 [n, q], the codes of each frame, and float32 [h], the vector of the speaker."""

# The codec converts so much audio at once. On a CPU a chunk delays the next step, so it takes less time than a step.
CHUNK_SECONDS = {"cuda": 2.0, "cpu": 0.64, "meta": 2.0}
SPEAKER_SECONDS = 2.0  # seconds that the speaker encoder, which computes less, takes at once


class Qwen3Codec(Codec):
    """The codec of a checkpoint. Only that of a Base model has an encoder and a speaker encoder."""

    def __init__(
        self,
        config: CodecConfig,
        decoder: AudioDecoder,
        encoder: Encoder | None = None,
        speaker: SpeakerEncoder | None = None,
        *,
        reference_silence: float = 0.0,
    ) -> None:
        """reference_silence: seconds of zeros that follow a recording whose speech is continued.

        They keep its last sound from being spoken again. The official package has none.
        """
        self.config, self.decoder, self.encoder, self.speaker = config, decoder, encoder, speaker
        self.silence = round(reference_silence * config.input_sample_rate)  # samples
        self.device = decoder.device
        frames = CHUNK_SECONDS[self.device.type] * config.output_sample_rate / config.decode_upsample_rate
        self.chunk_frames = max(1, round(frames))
        self._decoding: Decoding = _EagerDecoding(decoder)
        self._mel_frames = round(SPEAKER_SECONDS * config.input_sample_rate / HOP)

    def encode(self, waveform: np.ndarray, role: Role) -> Iterator[tuple[str, Tensor]]:
        """The codes of a prompt in chunks, and then the vector of the speaker, behind chunks that are empty.

        A reference has no codes. Raises InvalidRequest if the recording is too short. A model that takes no recordings
        gives nothing: fronts refuse them by its abilities.
        """
        if self.encoder is None or self.speaker is None:
            return iter(())
        return self._encode(waveform, role, self.encoder, self.speaker)

    def _encode(
        self, waveform: np.ndarray, role: Role, encoder: Encoder, speaker: SpeakerEncoder
    ) -> Iterator[tuple[str, Tensor]]:
        if not len(waveform):
            return
        recording = upload(torch.from_numpy(waveform.astype(np.float32, copy=True)), self.device)
        vector = speaker.encode(recording, self._mel_frames)
        result = _advance(vector)  # the speaker comes first, because it refuses recordings that are too short
        if role is Role.PROMPT:
            followed = torch.cat([recording, recording.new_zeros(self.silence)])
            for codes in encoder.encode(followed, self.chunk_frames):
                yield CODES, codes
        while result is None:
            yield SPEAKER, recording.new_empty(0)
            result = _advance(vector)
        yield SPEAKER, result

    def decode(self, content: Mapping[str, np.ndarray]) -> Iterator[Tensor]:
        """Audio of the codes of a voice, 1920 samples a frame. A reference has none."""
        codes = content.get(CODES)
        if codes is None or not len(codes):
            return
        memory = self._decoding.start()
        for chunk in torch.from_numpy(codes.astype(np.int64)).split(self.chunk_frames):
            yield self._decoding(chunk, memory)

    def capture(self) -> Qwen3Codec:
        """The same codec, which decodes by CUDA graphs. Recordings are encoded as they are, by single kernels."""
        captured = copy.copy(self)
        pool = GraphPool(Priority.SPARE, self.device)
        captured._decoding = _CapturedDecoding(self.decoder, self.chunk_frames, pool)
        return captured


class Decoding(Protocol):
    """Decodes consecutive chunks of waveforms, each with a memory of its own."""

    def start(self) -> DecoderState:
        """The memory before the first chunk."""
        ...

    def __call__(self, codes: Tensor, memory: DecoderState) -> Tensor:
        """Audio [samples] of the next chunk [n, q] int64 on the host. Updates the memory."""
        ...


@dataclass(frozen=True, slots=True)
class _EagerDecoding:
    """A `Decoding` by calls. Its memory is on the device, allocated on the stream of the first chunk."""

    decoder: AudioDecoder

    def start(self) -> DecoderState:
        return self.decoder.allocate(1)

    def __call__(self, codes: Tensor, memory: DecoderState) -> Tensor:
        slot = torch.zeros(1, dtype=torch.int64, device=self.decoder.device)
        return self.decoder.decode(upload(codes, self.decoder.device)[None], slot, memory)[0]


class _CapturedDecoding:
    """A `Decoding` by one graph launch between copies from and to the host, where its memory is.

    Zeros follow a shorter chunk, so it must be the last one. Results must be copied to the host as they are: a single
    kernel on the stream would slow down every graph (see `kernels.graph.stream`).
    """

    @torch.inference_mode()
    def __init__(self, decoder: AudioDecoder, frames: int, pool: GraphPool) -> None:
        self._codes = torch.zeros(frames, decoder.config.num_quantizers, dtype=torch.int64, device=decoder.device)
        self._memory = decoder.allocate(1)
        self._slot = torch.zeros(1, dtype=torch.int64, device=decoder.device)  # each launch reads it
        decoder.prepare(frames)
        self._graph = Graph(lambda: decoder.decode(self._codes[None], self._slot, self._memory)[0], pool)

    def start(self) -> DecoderState:
        return self._memory.map(lambda tensor: torch.zeros_like(tensor, device="cpu", pin_memory=True))

    @torch.inference_mode()
    def __call__(self, codes: Tensor, memory: DecoderState) -> Tensor:
        padded = torch.zeros(self._codes.shape, dtype=torch.int64, pin_memory=True)
        padded[: len(codes)] = codes
        self._codes.copy_(padded, non_blocking=True)
        self._memory.copy_(memory)
        audio = self._graph.replay()
        memory.copy_(self._memory)
        return audio[: len(audio) * len(codes) // len(padded)]


def _advance(work: Generator[None, None, Tensor]) -> Tensor | None:
    """Run a generator to its next stop. The result is None until it has ended."""
    try:
        next(work)
    except StopIteration as end:
        return end.value
    return None
