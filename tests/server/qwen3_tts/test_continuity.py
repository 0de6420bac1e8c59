"""The speech that segments continue, and the doubts about what a caller asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.servers.uploads import add_prompt, chunks_of, conditioned, upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

CARRY = pb.Segmentation(continuity=pb.CONTINUITY_MODE_CARRY)
CONTINUITY, TRANSCRIPT = pb.WARNING_KIND_CONTINUITY, pb.WARNING_KIND_TRANSCRIPT
SPOKEN = "These are the words of it. "


def audio(seconds: float = 2.0) -> pb.EncodedAudio:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, int(seconds * 16000))
    return pb.EncodedAudio(data=wav_bytes(noise.astype(np.float32), 16000))


def prompted(seconds: float = 2.0, transcript: str = SPOKEN) -> pb.GenerateConfig:
    return conditioned(inline_prompt=pb.InlinePrompt(audio=audio(seconds), transcript=transcript))


def referenced() -> pb.GenerateConfig:
    return conditioned(inline_reference=pb.InlineReference(audio=audio()))


def prompts(served: Any) -> list[str | None]:
    """The text of the prompt of each request."""
    return [one.conditioning.prompt and one.conditioning.prompt.text for one in served.pool.requests]


def kinds(chunks: list[pb.AudioChunk]) -> list[int]:
    return [warning.kind for chunk in chunks for warning in chunk.warnings]


# ---- CARRY


async def test_codes_of_the_recording_are_followed_by_those_of_earlier_segments(serve_variant):
    async with serve_variant("base17") as served:
        await served.generate(prompted(), "One. ", "Two two. ", "Three.")
        first, second, third = (request.conditioning.prompt for request in served.pool.requests)
        assert [request.text for request in served.pool.requests] == ["One.", " Two two.", " Three."]
        assert prompts(served) == [SPOKEN, f"{SPOKEN}One.", f"{SPOKEN}One. Two two."]
        recorded = first.content["codes"]
        made = [np.full((length, 16), length, np.int16) for length in (len("One."), len(" Two two."))]
        np.testing.assert_array_equal(second.content["codes"], np.concatenate([recorded, made[0]]))
        np.testing.assert_array_equal(third.content["codes"], np.concatenate([recorded, *made]))
        for part in (second, third):
            np.testing.assert_array_equal(part.content["speaker"], first.content["speaker"], strict=True)


async def test_a_reference_is_continued_by_the_speech_of_the_stream_in_its_own_voice(serve_variant):
    async with serve_variant("base06") as served:
        await served.generate(referenced(), "One. ", "Two.")
        first, second = (request.conditioning for request in served.pool.requests)
        assert first.prompt is None and second.prompt is not None and second.prompt.text == "One."
        assert second.prompt.content["codes"].shape == (4, 16)
        vector = first.reference.content["speaker"]
        np.testing.assert_array_equal(second.reference.content["speaker"], vector, strict=True)
        np.testing.assert_array_equal(second.prompt.content["speaker"], vector, strict=True)


async def test_speech_that_was_cut_is_not_carried(serve_variant):
    async with serve_variant("base06") as served:
        config = referenced()
        config.turn.sampling.CopyFrom(pb.Sampling(max_steps=6, min_steps=2))
        await served.generate(config, "A sentence that is cut. ", "Two. ", "Three.")
        assert prompts(served) == [None, None, "Two."]


async def test_carried_speech_is_bounded(serve_variant):
    async with serve_variant("base06", max_carry_seconds=1.0) as served:  # 12 steps
        await served.generate(referenced(), "One. ", "Two two. ", "Three and four and five. ", "End.")
        assert prompts(served) == [None, "One.", "Two two.", "Two two."]


@pytest.mark.parametrize("other", [pb.TurnConfig(language="de"), pb.TurnConfig(language="English")])
async def test_a_turn_with_another_language_begins_anew(serve_variant, other):
    async with serve_variant("base06") as served:
        config = referenced()
        config.turn.language = "fr"
        await served.generate(config, "One. ", "Two.", pb.Flush(end_turn=True), other, "Three.")
        assert prompts(served) == [None, "One.", None]
        assert [request.language for request in served.pool.requests][:2] == ["fr", "fr"]


async def test_a_turn_of_the_same_language_or_of_none_goes_on(serve_variant):
    async with serve_variant("base06") as served:
        config = referenced()
        config.turn.language = "fr"
        end, same = pb.Flush(end_turn=True), pb.TurnConfig(language="fr-CA")
        await served.generate(config, "One.", end, same, "Two.", end, pb.TurnConfig(), "Three.")
        assert [text is None for text in prompts(served)] == [True, False, False]
        assert [request.language for request in served.pool.requests] == ["fr", "fr", ""]


@pytest.mark.parametrize("variant", ["custom06", "custom17", "design"])
async def test_carry_by_name_is_doubted_where_no_speech_is_continued(serve_variant, variant):
    async with serve_variant(variant) as served:
        chunks = await served.generate(pb.GenerateConfig(segmentation=CARRY), "One. ", "Two.")
        assert kinds(chunks) == [CONTINUITY] and [one.kind for one in chunks[0].warnings] == [CONTINUITY]
        assert chunks[0].HasField("header")
        voice = "and may have another voice" if variant == "design" else "in the voice of the stream"
        assert f"each segment speaks for itself, {voice}" in chunks[0].warnings[0].message
        assert not kinds(await served.generate("One. ", "Two."))
        independent = pb.Segmentation(continuity=pb.CONTINUITY_MODE_INDEPENDENT)
        assert not kinds(await served.generate(pb.GenerateConfig(segmentation=independent), "One. ", "Two."))
        assert prompts(served) == [None] * 6
        assert len({request.sampling.seed for request in served.pool.requests[:2]}) == 1


async def test_carry_by_name_is_not_doubted_where_speech_is_continued(serve_variant):
    async with serve_variant("base06") as served:
        config = referenced()
        config.segmentation.CopyFrom(CARRY)
        assert CONTINUITY not in kinds(await served.generate(config, "One. ", "Two."))


# ---- transcripts


@pytest.mark.parametrize(
    ("seconds", "transcript", "doubt"),
    [
        (2.0, "Hello world. ", None),
        (2.0, "你好世界,今天", None),
        (1.0, "w" * 26, "are many for 1.0 s of speech: it takes 1.0 to 13.0 s"),
        (1.0, "w" * 25, None),
        (4.0, "seven c", "are few for 4.0 s of speech: it takes 0.3 to 3.5 s"),
        (4.0, "eight ch", None),
        (1.0, "你好" * 6, "are many for 1.0 s of speech: it takes 1.2"),
        (3.0, "你好", "are few for 3.0 s of speech"),
    ],
)
async def test_a_transcript_that_does_not_fit_its_recording_is_doubted(serve_variant, seconds, transcript, doubt):
    async with serve_variant("base06") as served:
        upload_config = pb.AddPromptConfig(transcript=transcript)
        messages = upload(pb.AddPromptRequest, upload_config, (0, audio(seconds).data), size=100_000)
        for chunks in (
            await served.generate(prompted(seconds, transcript), "Hello."),
            await chunks_of(served.stub.AddPrompt, messages),
        ):
            found = [one.message for one in chunks[0].warnings if one.kind == TRANSCRIPT]
            assert len(found) == (doubt is not None), found
            assert doubt is None or f"{len(transcript.strip())} characters, which {doubt}" in found[0]
            assert doubt is None or "write exactly the words of the recording" in found[0]


async def test_a_model_that_reads_no_transcript_beside_the_speech_has_no_doubt(served):
    chunks = await served.generate(prompted(2.0, "w" * 200), "Hello.")
    assert TRANSCRIPT not in kinds(chunks)
    assert (await add_prompt(served, transcript="w" * 200)).id
