"""Every RPC, and the ways in which they fail, with text and audio that a log can be searched for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration
from support.servers import uploads
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

TEXT = "Quixotic zephyrs vex"
SAMPLES = b"\x12\x34QVZX\x56\x78"
MARKS = ("Quixotic", "zephyrs", "QVZX", SAMPLES.hex())
REQUEST_ID = "marked-1"
SERVICE = "/voxcpm_grpc.v1.VoxCPMService/"


def recording() -> bytes:
    """A recording of noise with the mark among its samples."""
    noise = np.random.default_rng(3).integers(-8000, 8000, 4000, np.int16).tobytes()
    return wav_bytes(np.frombuffer(SAMPLES + noise, "<i2").astype(np.float32) / 32768, 16000)


def call_all(address: str) -> list[str]:
    """Make all calls. Returns the names of the status codes that were seen."""
    with grpc.insecure_channel(address) as channel:
        calls = _Calls(channel)
        for call in (calls.speak, calls.store, calls.fail_to_speak, calls.fail_to_store, calls.break_the_contract):
            call()
        return calls.codes


class _Calls:
    def __init__(self, channel: grpc.Channel) -> None:
        self.codes: list[str] = []
        self._channel = channel
        self._stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            result = call()
            result = list(result) if hasattr(result, "__next__") else result
            self.codes.append("OK")
            return result
        except grpc.RpcError as error:
            self.codes.append(error.code().name)  # type: ignore[attr-defined]

    def _generate(self, *messages: pb.GenerateRequest, timeout: float = HANG_SECONDS) -> Any:
        return self._try(lambda: self._stub.Generate(iter(messages), timeout=timeout))

    def speak(self) -> None:
        text = pb.GenerateRequest(text=f"{TEXT}. ")
        config = pb.GenerateConfig(request_id=REQUEST_ID, turn=pb.TurnConfig(sampling=pb.Sampling(max_steps=3)))
        flush, interrupt = pb.Flush(tag=TEXT), pb.Interrupt(tag=TEXT)
        self._generate(pb.GenerateRequest(config=config), text, pb.GenerateRequest(flush=flush), text)
        self._generate(pb.GenerateRequest(config=config), text, pb.GenerateRequest(interrupt=interrupt), text)
        inline = pb.InlinePrompt(transcript=TEXT, audio=pb.EncodedAudio(data=recording()))
        config.conditioning.CopyFrom(pb.Conditioning(inline_prompt=inline))
        self._generate(pb.GenerateRequest(config=config), text)
        call = self._stub.Generate(iter([text] * 50), timeout=HANG_SECONDS)
        with contextlib.suppress(grpc.RpcError):
            next(call)
            call.cancel()
            next(call)

    def store(self) -> None:
        stub, sent = self._stub, recording()
        prompt = self._upload(stub.AddPrompt, pb.AddPromptRequest, pb.AddPromptConfig(transcript=TEXT), (0, sent))
        self._upload(stub.AddReference, pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, sent))
        self._upload(
            stub.AddHifi,
            pb.AddHifiRequest,
            pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript=TEXT), same_as_prompt=pb.SameAsPrompt()),
            (uploads.PROMPT, sent),
        )
        self._upload(
            stub.EncodeLatents, pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=uploads.REFERENCE), (0, sent)
        )
        self._audition(pb.Audition(text=f"{TEXT}.", tag=TEXT))
        self._audition(pb.Audition(text=f"{TEXT}.", turn=pb.TurnConfig(style=TEXT * 30)))
        id = prompt[0].handle.id if prompt else "prm_" + "0" * 32
        self._generate(
            pb.GenerateRequest(config=uploads.conditioned(prompt_id=id)), pb.GenerateRequest(text=f"{TEXT}.")
        )
        self._try(lambda: stub.GetVoice(pb.GetVoiceRequest(id=id)))
        self._try(lambda: stub.ListVoices(pb.ListVoicesRequest()))
        self._try(lambda: stub.UpdateVoice(pb.UpdateVoiceRequest(id=id)))
        self._try(lambda: stub.DeleteVoice(pb.DeleteVoiceRequest(id=id)))
        self._try(lambda: stub.GetModelInfo(pb.GetModelInfoRequest()))

    def _audition(self, audition: pb.Audition) -> None:
        short = pb.TurnConfig(sampling=pb.Sampling(max_steps=3))
        preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text=f"{TEXT}.", turn=short, auditions=True)
        config, sent = pb.AddReferenceConfig(preview=preview), (0, recording())
        messages = [
            *uploads.upload(pb.AddReferenceRequest, config, sent),
            pb.AddReferenceRequest(audition=audition),
        ]
        self._try(lambda: self._stub.AddReference(iter(messages), timeout=HANG_SECONDS))

    def fail_to_speak(self) -> None:
        text = pb.GenerateRequest(text=TEXT)
        for config in (
            pb.GenerateConfig(turn=pb.TurnConfig(style=TEXT * 30)),
            pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(cfg_value=11))),
            pb.GenerateConfig(max_queue_time=Duration(seconds=-1)),
            uploads.conditioned(prompt_id="prm_" + "a" * 32),
            uploads.conditioned(inline_prompt=pb.InlinePrompt(transcript=TEXT)),
            uploads.conditioned(
                inline_prompt=pb.InlinePrompt(transcript=TEXT, audio=pb.EncodedAudio(data=50 * SAMPLES))
            ),
            uploads.conditioned(
                inline_prompt=pb.InlinePrompt(transcript=TEXT, latents=pb.Latents(data=50 * SAMPLES, feat_dim=8))
            ),
        ):
            self._generate(pb.GenerateRequest(config=config), text)
        self._generate(pb.GenerateRequest(config=pb.GenerateConfig()), pb.GenerateRequest(config=pb.GenerateConfig()))
        self._generate(pb.GenerateRequest(text=TEXT * 2000))
        self._generate(pb.GenerateRequest(text=TEXT), pb.GenerateRequest(finish=pb.Finish()), text)
        self._generate(text, timeout=0.001)

    def fail_to_store(self) -> None:
        stub, config = self._stub, pb.AddPromptConfig(transcript=TEXT)
        for data in (50 * SAMPLES, recording()[:60] + SAMPLES, b""):
            self._upload(stub.AddPrompt, pb.AddPromptRequest, config, (0, data))
        self._upload(stub.AddPrompt, pb.AddPromptRequest, pb.AddPromptConfig(), (0, recording()))
        broken = [pb.AddPromptRequest(config=config), pb.AddPromptRequest(audio=pb.AudioPart(data=SAMPLES))]
        self._try(lambda: stub.AddPrompt(iter([*broken, pb.AddPromptRequest(config=config)]), timeout=HANG_SECONDS))
        self._try(lambda: stub.AddPrompt(iter(broken[1:]), timeout=HANG_SECONDS))

    def break_the_contract(self) -> None:
        """Send bytes that are no message, and one that is larger than the limit."""
        for method in ("Generate", "AddPrompt", "GetVoice"):
            call = self._channel.stream_stream(SERVICE + method)
            for data in (f"\xff{TEXT}".encode("latin-1") + SAMPLES, TEXT.encode() * 300_000):
                self._try(lambda call=call, data=data: call(iter([data]), timeout=HANG_SECONDS))

    def _upload(self, method: Any, kind: Any, config: Any, *recordings: tuple[int, bytes]) -> Any:
        messages = list(uploads.upload(kind, config, *recordings))
        return self._try(lambda: method(iter(messages), timeout=HANG_SECONDS))
