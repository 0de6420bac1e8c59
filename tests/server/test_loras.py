"""LoRA adapters by turn: their names, other adapters in later turns, and unknown ones."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from support import goldens
from support.servers import serving

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

ANNA, BERT = pb.TurnConfig(lora="anna"), pb.TurnConfig(lora="bert")
END = pb.Flush(end_turn=True)
CARRY = pb.Segmentation(continuity=pb.CONTINUITY_MODE_CARRY)


@pytest.fixture
async def served(serve_front, fake):
    pool = fake()
    pool.info = replace(pool.info, loras=("anna", "bert"))
    async with serve_front(pool) as front:
        yield front


def spoken(served) -> list[tuple[str, str, str | None]]:
    """Text and adapter of each segment, and the text that it continues."""
    requests = served.pool.requests
    return [(r.text, r.lora, r.conditioning.prompt and r.conditioning.prompt.text) for r in requests]


async def test_each_turn_has_its_adapter(served):
    await served.generate(pb.GenerateConfig(turn=ANNA), "One. ", END, pb.TurnConfig(), "Two. ", END, BERT, "Three.")
    assert [(text.strip(), lora) for text, lora, _ in spoken(served)] == [
        ("One.", "anna"),
        ("Two.", ""),
        ("Three.", "bert"),
    ]


async def test_another_adapter_continues_no_speech_before_it(served):
    await served.generate(
        pb.GenerateConfig(turn=ANNA, segmentation=CARRY),
        "One. ",
        END,
        ANNA,
        "Two. ",
        END,
        BERT,
        "Three. Four. ",
        END,
        "Five.",
    )
    assert [continued for _, _, continued in spoken(served)] == [None, "One.", None, "Three.", "Three. Four."]


@pytest.mark.parametrize("place", ["config", "turn"])
async def test_an_unknown_adapter_is_not_found(served, place):
    unknown = pb.TurnConfig(lora="nobody")
    sent = (pb.GenerateConfig(turn=unknown), "One.") if place == "config" else (pb.GenerateConfig(), unknown, "One.")
    with pytest.raises(grpc.RpcError) as caught:
        await served.generate(*sent)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "there is no LoRA adapter 'nobody'; the server has anna, bert" in str(caught.value.details())


async def test_a_server_without_adapters_names_the_setting(serve_front):
    async with serve_front() as front:
        with pytest.raises(grpc.RpcError, match="--lora NAME=DIRECTORY"):
            await front.generate(pb.GenerateConfig(turn=ANNA), "One.")


async def test_the_model_info_lists_adapters(served):
    info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.loras == ["anna", "bert"]


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
