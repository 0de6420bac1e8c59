"""LoRA adapters of the settings of a server."""

from __future__ import annotations

import grpc
from support import goldens
from support.servers import serving

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc


def audio(stub, lora: str) -> bytes:
    sampling = pb.Sampling(seed=3, inference_timesteps=4, min_steps=5, max_steps=6)
    config = pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling, lora=lora))
    return b"".join(
        r.audio for r in stub.Generate(iter([pb.GenerateRequest(config=config), pb.GenerateRequest(text="Hi.")]))
    )


def test_a_server_speaks_with_the_adapters_of_its_settings(tmp_path):
    """Two engine processes, which both read the adapters."""
    flags = ["--lora", f"anna={goldens.GOLDENS / 'lora_attention' / 'adapter'}", "--devices", "cpu:2"]
    with serving(tmp_path, *flags) as server, grpc.insecure_channel(server.address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        assert stub.GetModelInfo(pb.GetModelInfoRequest()).loras == ["anna"]
        alone, adapted = audio(stub, ""), audio(stub, "anna")
        assert len(alone) == len(adapted) and alone != adapted
        assert (audio(stub, ""), audio(stub, "anna")) == (alone, adapted)
