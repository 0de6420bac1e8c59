"""Settings of turns: a message `turn` changes style and sampling from the next turn on."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.clients.grpc_types import EOF
from support.servers.uploads import conditioned, recording

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset

END = pb.Flush(end_turn=True)
SAD = pb.TurnConfig(style="sad")
ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. ", default=True)


def turns(served: Any) -> list[tuple[str, float, int]]:
    return [(r.text, r.sampling.cfg_value, r.sampling.seed) for r in served.pool.requests]


async def test_a_turn_message_applies_from_the_next_turn_on(served):
    turn = pb.TurnConfig(sampling=pb.Sampling(seed=5, cfg_value=1.5))
    await served.generate(
        pb.GenerateConfig(turn=turn),
        "One. ",
        pb.TurnConfig(sampling=pb.Sampling(cfg_value=3)),
        "Two. ",
        pb.Flush(end_turn=True),
        "Three. ",
        pb.Flush(end_turn=True),
        pb.TurnConfig(sampling=pb.Sampling(seed=9)),
        "Four.",
    )
    assert turns(served) == [("One.", 1.5, 5), (" Two.", 1.5, 5), (" Three.", 3, 5), (" Four.", 2, 9)]


async def test_a_new_style_begins_a_voice_anew_and_the_same_one_goes_on(served):
    await served.generate(
        pb.GenerateConfig(turn=pb.TurnConfig(style="calm")),
        "One. ",
        pb.Flush(end_turn=True),
        pb.TurnConfig(style="calm"),
        "Two. ",
        pb.Flush(end_turn=True),
        pb.TurnConfig(style="angry"),
        "Three. Four. ",
        pb.Flush(end_turn=True),
        pb.TurnConfig(),
        "Five.",
    )
    assert [r.text for r in served.pool.requests] == ["One.", " Two.", "Three.", " Four.", " Five."]
    assert [r.style for r in served.pool.requests] == ["calm", "", "angry", "", ""]
    voices = [r.conditioning.prompt and r.conditioning.prompt.text for r in served.pool.requests]
    assert voices == [None, "One.", None, "Three.", "Three. Four."]


async def test_the_last_of_several_messages_counts_and_an_interrupt_ends_the_turn_too(served):
    call = served.stub.Generate()
    bodies: list[dict[str, Any]] = [
        {"text": "One"},
        {"turn": pb.TurnConfig(sampling=pb.Sampling(cfg_value=3))},
        {"turn": pb.TurnConfig(sampling=pb.Sampling(cfg_value=4, seed=8))},
        {"text": " is. "},
        {"flush": pb.Flush(tag="one")},
    ]
    for body in bodies:
        await call.write(pb.GenerateRequest(**body))
    while not (await call.read()).HasField("flush_done"):
        pass
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
    await call.write(pb.GenerateRequest(text="Two."))
    await call.done_writing()
    last = None
    while (chunk := await call.read()) is not EOF:
        last = chunk
    assert last is not None and last.summary.turns == 2
    (_, one, seed), (_, two, other) = turns(served)
    assert (one, two, other) == (2, 4, 8)
    assert seed != other


async def test_an_empty_text_opens_no_turn(served):
    await served.generate("", pb.TurnConfig(sampling=pb.Sampling(cfg_value=3)), "One.")
    assert [cfg for _, cfg, _ in turns(served)] == [3]


async def test_a_first_message_with_settings_equals_a_config_with_them(serve_front):
    """Also for the voice: a stream with a style gets no default voice, which could be a prompt."""
    turn = pb.TurnConfig(style="calm", sampling=pb.Sampling(seed=5, cfg_value=3))
    async with serve_front(presets=[(ANNA, recording(0))]) as served:
        streams = [await served.generate(first, "One.") for first in (turn, pb.GenerateConfig(turn=turn))]
        for chunks in streams:
            assert (chunks[0].header.seed, chunks[0].header.voice) == (5, "")
        assert turns(served) == [("One.", 3, 5)] * 2
        assert [r.style for r in served.pool.requests] == ["calm", "calm"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(turn, pb.GenerateConfig(), "One.")
    assert "config must be the first message" in str(caught.value.details())


async def refused(served: Any, details_of: Any, *messages: Any) -> tuple[str, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(*messages)
    return caught.value.code().name, details_of(caught.value).field, str(caught.value.details())


async def test_a_style_of_a_turn_cannot_go_with_the_prompt_of_the_stream(serve_front, details_of):
    async with serve_front(presets=[(ANNA, recording(0))]) as served:
        for first in (conditioned(voice="anna"), pb.GenerateConfig()):
            for messages in ((first, "One.", SAD), (first, SAD, "One."), (first, "One.", END, SAD)):
                code, field, text = await refused(served, details_of, *messages)
                assert (code, field) == ("INVALID_ARGUMENT", "turn.style")
                assert "a style cannot be combined with a prompt" in text
        await served.generate(conditioned(voice="anna"), "One.", END, pb.TurnConfig(), "Two.")  # without a style


@pytest.mark.parametrize(
    ("turn", "code", "field"),
    [
        (pb.TurnConfig(style="x" * 501), "INVALID_ARGUMENT", "turn.style"),
        (pb.TurnConfig(sampling=pb.Sampling(cfg_value=11)), "INVALID_ARGUMENT", "turn.sampling.cfg_value"),
        (pb.TurnConfig(sampling=pb.Sampling(temperature=-1)), "INVALID_ARGUMENT", "turn.sampling.temperature"),
        (pb.TurnConfig(sampling=pb.Sampling(seed=2**63)), "INVALID_ARGUMENT", "turn.sampling.seed"),
        (
            pb.TurnConfig(sampling=pb.Sampling(min_steps=5, max_steps=4)),
            "INVALID_ARGUMENT",
            "turn.sampling.min_steps",
        ),
        (
            pb.TurnConfig(sampling=pb.Sampling(inference_timesteps=5)),
            "FAILED_PRECONDITION",
            "",  # only INVALID_ARGUMENT has details with the field; the text names it
        ),
    ],
)
async def test_bad_settings_of_a_turn_name_their_field(served, details_of, turn, code, field):
    for messages in (("One.", turn), (turn, "One.")):
        assert (await refused(served, details_of, *messages))[:2] == (code, field)
