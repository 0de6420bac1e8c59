"""A description in parentheses steers the voice where it may, and phonemes reach the model as they are."""

from __future__ import annotations

from dataclasses import replace

import grpc
import numpy as np
import pytest

from voxcpm_grpc.models.voxcpm.config.abilities import abilities
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.values.inputs import TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment

STARTED = pb.SEGMENT_EVENT_KIND_STARTED
ALONE = pb.Segmentation(continuity=pb.CONTINUITY_MODE_INDEPENDENT)


class Shouting:
    """Normalises text to capitals."""

    async def normalize(self, text: str, language: str = "") -> str:
        return text.upper()


def segment(text: str, **options) -> Segment:
    return Segment(
        turn=0,
        index=0,
        text=text,
        spaced=False,
        start=0,
        end=len(text),
        cut=CutReason.FLUSH,
        source=text,
        turn_config=TurnConfig(**options),
    )


async def prepared(text: str, lexicon: dict[str, str] | None = None, **options) -> str:
    preparation = TextPreparation(Lexicon().preceded_by(lexicon or {}), Shouting())  # pyright: ignore[reportArgumentType]
    return (await preparation.prepare(segment(text, **options))).text


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("(angry)Hello.", "angry Hello."),
        ("(Angry. Loud!) Hello.", "Angry. Loud! Hello."),
        ("（生气）你好。", "生气 你好。"),
        ("((angry))Hello.", "angry Hello."),
        ("(a)(b) Hello.", "a (b) Hello."),
        ("\u200b(angry)Hello.", "\u200bangry Hello."),
        ("- (angry) Hello.", "- angry Hello."),
        ("﹙angry﹚Hello.", "angry Hello."),
        ("(angry Hello.", "angry Hello."),
        ("Hello (angry) you.", "Hello (angry) you."),
        ("1 (angry)", "1 (angry)"),
        ("(So). Hello.", "So. Hello."),
        ("(a (b) c) d", "a (b) c d"),
        (") (a) b", "a b"),
        ("(" * 20_000 + "a", "a"),
    ],
)
async def test_text_steers_no_voice_unless_it_may(text, spoken):
    assert await prepared(text) == spoken
    assert await prepared(text, style_in_text=True) == text


async def test_the_model_gets_no_parentheses_at_the_start_of_a_segment(serve_front):
    async with serve_front() as served:
        config = pb.GenerateConfig(segmentation=ALONE)
        chunks = await served.generate(config, "(angry)Hello. (Sad. So.) Good day. (x) is y.")
        texts = [request.text.strip() for request in served.pool.requests]
        assert texts[0] == "angry Hello."
        assert not any(text.startswith("(") for text in texts)
        events = [event for chunk in chunks for event in chunk.segment_events if event.kind == STARTED]
        assert [event.text for event in events] == texts
        assert (events[0].input_start, events[0].input_end) == (0, 14)


async def test_a_turn_may_begin_with_a_style_in_its_text(serve_front):
    async with serve_front() as served:
        turn = pb.TurnConfig(style_in_text=True)
        end = pb.Flush(end_turn=True)
        texts = "(An old man. ", "He is calm.)Hello there. We go.", end, "（生气）你好。", end
        chunks = await served.generate(pb.GenerateConfig(turn=turn), *texts)
        requests = served.pool.requests
        assert [(request.style, request.text) for request in requests] == [
            ("An old man. He is calm.", "Hello there."),
            ("", " We go."),
            ("生气", "你好。"),
        ]
        assert [request.conditioning.prompt is None for request in requests] == [True, False, True]
        events = [event for chunk in chunks for event in chunk.segment_events if event.kind == STARTED]
        assert [(event.text, event.input_start) for event in events] == [
            ("Hello there.", 0),
            ("We go.", 38),
            ("你好。", 0),
        ]


async def test_a_style_in_the_text_is_left_out_where_the_voice_takes_none(serve_front):
    async with serve_front() as served:
        latents = pb.Latents(data=np.zeros((2, 4, 8), "<f4").tobytes(), feat_dim=8)
        prompt = pb.InlinePrompt(latents=latents, transcript="Hi.")
        turn = pb.TurnConfig(style_in_text=True)
        config = pb.GenerateConfig(turn=turn, conditioning=pb.Conditioning(inline_prompt=prompt))
        await served.generate(config, "(angry)Hello.")
        assert (served.pool.requests[-1].style, served.pool.requests[-1].text) == ("", "Hello.")


@pytest.mark.parametrize("default", [False, True])
async def test_the_server_has_a_default_that_a_turn_overrides(serve_front, default):
    async with serve_front(server={"text": {"style_in_text": default}}) as served:
        for turn, steers in (
            (pb.TurnConfig(), default),
            (pb.TurnConfig(style_in_text=True), True),
            (pb.TurnConfig(style_in_text=False), False),
        ):
            await served.generate(pb.GenerateConfig(turn=turn), "(angry)Hello.")
            assert served.pool.requests[-1].style == ("angry" if steers else "")


async def test_models_without_styles_refuse_a_style_in_the_text(serve_front, fake):
    pool = fake()
    pool.info = replace(pool.info, abilities=abilities(references=False, styles=False))
    async with serve_front(pool) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(style_in_text=True)), "Hello.")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(style_in_text=False)), "Hello.")


PHONEMES = ("{HH AH0 L OW1}", "{ni3}{hao3}", "{nü3}", "{JH IH1 F}")


@pytest.mark.parametrize("phonemes", PHONEMES)
async def test_phonemes_reach_the_model_as_they_are(phonemes):
    text = f"say {phonemes}, hh ni3 now"
    lexicon = {"hh": "aitch", "ni3": "you", "JH": "x"}
    assert await prepared(text, lexicon) == f"say {phonemes}, aitch you now"
    assert await prepared("a gif now", {"gif": phonemes}) == f"a {phonemes} now"
