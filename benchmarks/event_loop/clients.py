"""Keep a front busy: text in messages of all sizes, interrupts, uploads and inline recordings.

python -m benchmarks.event_loop.clients HOST:PORT
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

SENTENCES = "A sentence, with Dr. Smith's 3.50 in it; quite ordinary. 这是一个句子，很普通。And “one more”! 👍🏽 "
TEXT = SENTENCES * 20


def speak(stub: Any, size: int, sampling: pb.Sampling, **segmentation: Any) -> None:
    """Send text in messages of `size` characters, and receive it resampled; then interrupt 15,000 characters more."""
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=24000)
    turn = pb.TurnConfig(sampling=sampling)
    config = pb.GenerateConfig(output=output, segmentation=pb.Segmentation(**segmentation), turn=turn)

    def requests() -> Iterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(config=config)
        for at in range(0, len(TEXT), size):
            yield pb.GenerateRequest(text=TEXT[at : at + size])
        yield pb.GenerateRequest(flush=pb.Flush())
        yield pb.GenerateRequest(text=TEXT * 8)
        yield pb.GenerateRequest(flush=pb.Flush())
        yield pb.GenerateRequest(interrupt=pb.Interrupt())
        yield pb.GenerateRequest(text=TEXT)

    assert list(stub.Generate(requests()))[-1].summary.segments


def speak_inline(stub: Any, recording: bytes, sampling: pb.Sampling) -> None:
    prompt = pb.InlinePrompt(audio=pb.EncodedAudio(data=recording), transcript="Hi.")
    turn = pb.TurnConfig(sampling=sampling)
    config = pb.GenerateConfig(conditioning=pb.Conditioning(inline_prompt=prompt), turn=turn)
    list(stub.Generate(iter([pb.GenerateRequest(config=config), pb.GenerateRequest(text="Hello.")])))


def upload(stub: Any, recording: bytes, size: int) -> None:
    digest = pb.UploadDigest(total_bytes=len(recording), sha256=hashlib.sha256(recording).digest())
    preview = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION)

    def requests() -> Iterator[pb.AddReferenceRequest]:
        yield pb.AddReferenceRequest(config=pb.AddReferenceConfig(preview=preview))
        for at in range(0, len(recording), size):
            yield pb.AddReferenceRequest(audio=pb.AudioPart(data=recording[at : at + size], offset_bytes=at))
        yield pb.AddReferenceRequest(commit=pb.UploadCommit(digests=[digest]))

    assert next(iter(stub.AddReference(requests()))).handle.id
    list(stub.ListVoices(pb.ListVoicesRequest()).handles)


def load(address: str, sampling: pb.Sampling) -> None:
    """Run all calls at once until each has ended."""
    waveform = np.random.default_rng(0).uniform(-0.5, 0.5, 50 * 48000).astype(np.float32)
    recording, small = wav_bytes(waveform, 48000), wav_bytes(waveform[: 50 * 16000], 16000)
    with ThreadPoolExecutor(12) as threads, grpc.insecure_channel(address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        work = [threads.submit(speak, stub, size, sampling) for size in (1000, 20_000, 3, 100)]
        for size in (31, 5000):
            work.append(threads.submit(speak, stub, size, sampling, continuity=pb.CONTINUITY_MODE_INDEPENDENT))
            work.append(threads.submit(speak, stub, size, sampling, mode=pb.SEGMENTATION_MODE_MANUAL))
        work.append(threads.submit(upload, stub, recording, 64 << 10))
        work.append(threads.submit(upload, stub, recording + bytes(2 << 20), 1 << 20))
        # Short, because gRPC itself copies a message on the loop, which takes more than 1 ms for each MB.
        work.append(threads.submit(speak_inline, stub, small, sampling))
        for job in work:
            job.result()


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("--steps", type=int, help="most steps of each segment")
    options = parser.parse_args()
    load(options.address, pb.Sampling(max_steps=options.steps))


if __name__ == "__main__":
    main()
