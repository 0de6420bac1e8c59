"""LoRA adapters by turn: their names, other adapters in later turns, unknown ones, and those that streams hold."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.servers.waiting import until

from voxcpm_grpc.request import Adapter, content_of
from voxcpm_grpc.v1 import tts_pb2 as pb

ANNA, BERT = pb.TurnConfig(lora="anna"), pb.TurnConfig(lora="bert")
END = pb.Flush(end_turn=True)
CARRY = pb.Segmentation(continuity=pb.CONTINUITY_MODE_CARRY)


def register(served, *names: str) -> None:
    """Let the pool have adapters of these names and no others, each with its name and the number 1 as content."""
    served.pool.set_adapters(*names)


def held(served, name: str) -> int:
    """The number of streams with the adapter of this name."""
    adapter = Adapter(fingerprint=f"{name}1", directory="", name=name, source="")
    return served.models.default.streams_with(adapter)


@pytest.fixture
async def served(serve_front):
    async with serve_front() as front:
        register(front, "anna", "bert")
        yield front


def spoken(served) -> list[tuple[str, str, str | None]]:
    """Text and adapter of each segment, and the text that it continues."""
    requests = served.pool.requests
    return [
        (r.text, content_of(r.conditioning.adapter), r.conditioning.prompt and r.conditioning.prompt.text)
        for r in requests
    ]


class Stream:
    """A Generate stream whose messages are sent one by one, as fields of GenerateRequest."""

    def __init__(self, served) -> None:
        self.call = served.stub.Generate()

    async def send(self, **field: Any) -> None:
        await self.call.write(pb.GenerateRequest(**field))

    async def say(self, text: str) -> None:
        """Speak a turn, and wait until it is sent."""
        await self.send(text=text)
        await self.send(flush=pb.Flush(tag=text, end_turn=True))
        while (await self.call.read()).flush_done.tag != text:
            pass


async def test_each_turn_has_its_adapter(served):
    await served.generate(pb.GenerateConfig(turn=ANNA), "One. ", END, pb.TurnConfig(), "Two. ", END, BERT, "Three.")
    assert [(text.strip(), lora) for text, lora, _ in spoken(served)] == [
        ("One.", "anna1"),
        ("Two.", ""),
        ("Three.", "bert1"),
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


async def test_the_model_info_lists_the_adapters_of_this_moment(served):
    register(served, "bert", "carl")
    assert (await served.stub.GetModelInfo(pb.GetModelInfoRequest())).loras == ["bert", "carl"]
    register(served)
    assert not (await served.stub.GetModelInfo(pb.GetModelInfoRequest())).loras


async def test_a_turn_holds_its_adapter_until_its_speech_has_ended(served):
    served.pool.hold_after = 1
    stream = Stream(served)
    await stream.send(config=pb.GenerateConfig(turn=ANNA))
    await stream.send(text="One is here. ")
    await until(lambda: served.pool.running)
    assert (held(served, "anna"), held(served, "bert")) == (1, 0)
    await stream.send(flush=END)
    await stream.send(turn=BERT)
    await until(lambda: held(served, "bert") == 1)
    assert held(served, "anna") == 1
    register(served)  # neither of the two
    served.pool.release()
    await stream.say("Two is here. ")
    assert (held(served, "anna"), held(served, "bert")) == (0, 1)
    assert [lora for _, lora, _ in spoken(served)] == ["anna1", "bert1"]
    await stream.send(turn=pb.TurnConfig())
    await until(lambda: not held(served, "bert"))
    stream.call.cancel()


@pytest.mark.parametrize("end", ["finish", "cancel", "interrupt", "error"])
async def test_a_stream_that_ends_holds_no_adapter(served, end):
    served.pool.hold_after = 1
    stream = Stream(served)
    await stream.send(config=pb.GenerateConfig(turn=ANNA))
    await stream.send(text="One is here. ")
    await until(lambda: served.pool.running)
    assert held(served, "anna") == 1
    match end:
        case "finish":
            served.pool.release()
            await stream.call.done_writing()
        case "cancel":
            stream.call.cancel()
        case "interrupt":
            await stream.send(turn=BERT)
            await stream.send(interrupt=pb.Interrupt())
        case "error":
            await stream.send(turn=pb.TurnConfig(lora="nobody"))
    await until(lambda: not held(served, "anna"))
    assert held(served, "bert") == (end == "interrupt")
    stream.call.cancel()


async def test_a_turn_with_an_adapter_that_was_registered_anew_speaks_with_the_new_one(served):
    stream = Stream(served)
    await stream.send(config=pb.GenerateConfig(turn=ANNA, segmentation=CARRY))
    await stream.say("One.")
    served.pool.set_adapters("anna", content="2")
    await stream.say("Two.")
    await stream.send(turn=ANNA)
    await stream.say("Three.")
    found = [(text.strip(), *rest) for text, *rest in spoken(served)]
    assert found == [("One.", "anna1", None), ("Two.", "anna1", "One."), ("Three.", "anna2", None)]
    stream.call.cancel()
