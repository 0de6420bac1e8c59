"""LoRA adapters of voices and presets: turns that name none speak with the adapter of their voice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from support.servers.uploads import add_hifi, add_prompt, add_reference, chunks_of, conditioned, recording, upload
from support.servers.voice_stores import voice

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import VoiceChange
from voxcpm_server.voices.presets import Preset

NOT_FOUND, FAILED, INVALID = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)
ANNA, BERT, NONE, UNSET = pb.TurnConfig(lora="anna"), pb.TurnConfig(lora="bert"), pb.TurnConfig(lora=""), None
END = pb.Flush(end_turn=True)
NARRATOR = Preset(name="narrator", kind="reference", recording="n.wav", lora="anna", default=True)


def having(pool: Any, *names: str) -> Any:
    """The pool, whose engines have the adapters of these names."""
    pool.set_adapters(*names)
    return pool


def adapters(served: Any) -> list[str]:
    """The adapter of each segment so far."""
    return [content.removesuffix("1") for content in served.pool.spoken_with]


def named(lora: str | None, name: str = "") -> pb.VoiceOptions:
    return pb.VoiceOptions(display_name=name, lora=lora)


async def lora_of(served: Any, **conditioning: Any) -> str:
    """The adapter of a stream that names only its voice."""
    await served.generate(conditioned(**conditioning), "Hello.")
    return adapters(served)[-1]


async def shown(served: Any, id: str) -> str:
    return (await served.stub.GetVoice(pb.GetVoiceRequest(id=id))).handle.lora


async def error_of(work: Any) -> tuple[grpc.StatusCode, str, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return caught.value.code(), str(caught.value.details()), caught.value


@pytest.fixture
async def served(serve_front, fake):
    async with serve_front(having(fake(), "anna", "bert")) as front:
        yield front


async def test_a_stream_speaks_with_the_adapter_of_its_voice(served):
    prompt = await add_prompt(served, options=named("anna"))
    reference = await add_reference(served, options=named("bert", "Bea"))
    members = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi."), "same_as_prompt": pb.SameAsPrompt()}
    hifi = (await add_hifi(served, (0, recording(2)), options=named("anna"), **members))[0].handle
    without = await add_reference(served, 7)
    assert [prompt.lora, reference.lora, hifi.lora, without.lora] == ["anna", "bert", "anna", ""]
    assert await lora_of(served, voice=prompt.id) == await lora_of(served, prompt_id=prompt.id) == "anna"
    assert await lora_of(served, voice="Bea") == await lora_of(served, reference_id=reference.id) == "bert"
    assert await lora_of(served, hifi_id=hifi.id) == await lora_of(served, prompt_id=hifi.prompt_id) == "anna"
    assert await lora_of(served, voice=without.id) == await lora_of(served, no_voice=True) == ""
    assert await lora_of(served, prompt_id=prompt.id, reference_id=without.id) == "anna"
    listed = (await served.stub.ListVoices(pb.ListVoicesRequest())).handles
    assert {handle.id: handle.lora for handle in listed if not handle.prompt_id and handle.id != hifi.prompt_id} == {
        prompt.id: "anna",
        reference.id: "bert",
        without.id: "",
        hifi.reference_id: "anna",
    }


@pytest.mark.parametrize(("turn", "expected"), [(UNSET, "anna"), (NONE, ""), (BERT, "bert"), (ANNA, "anna")])
async def test_a_turn_overrides_the_adapter_of_the_voice(served, turn, expected):
    stored = await add_reference(served, options=named("anna"))
    config = conditioned(voice=stored.id)
    config.turn.CopyFrom(turn or pb.TurnConfig())
    await served.generate(config, "One. ", END, turn or pb.TurnConfig(), "Two.")
    assert adapters(served) == [expected, expected]


async def test_turns_that_change_the_adapter_in_force_continue_no_speech_before_them(served):
    stored = await add_reference(served, options=named("anna"))
    config = conditioned(voice=stored.id)
    config.segmentation.continuity = pb.CONTINUITY_MODE_CARRY
    style = pb.TurnConfig(sampling=pb.Sampling(cfg_value=3.0))
    turns = ["One. ", END, ANNA, "Two. ", END, NONE, "Three. ", END, style, "Four. ", END, BERT, "Five."]
    await served.generate(config, *turns)
    continued = [request.conditioning.prompt for request in served.pool.requests]
    assert [(lora, prompt and prompt.text) for lora, prompt in zip(adapters(served), continued, strict=True)] == [
        ("anna", None),
        ("anna", "One."),
        ("", None),
        ("anna", None),
        ("bert", None),
    ]
    assert all(request.conditioning.reference is not None for request in served.pool.requests)


async def test_two_voices_with_different_adapters_need_a_choice(served, details_of):
    prompt = await add_prompt(served, options=named("anna"))
    reference = await add_reference(served, options=named("bert"))
    both = {"prompt_id": prompt.id, "reference_id": reference.id}
    code, text, error = await error_of(lora_of(served, **both))
    assert code is INVALID and details_of(error).field == "config.turn.lora"
    for part in (prompt.id, reference.id, "'anna'", "'bert'", "set lora to one of them"):
        assert part in text
    config = conditioned(**both)
    config.turn.lora = "bert"
    await served.generate(config, "Hello.")
    assert adapters(served) == ["bert"]
    hifi = (await add_hifi(served, **both))[0].handle
    assert (hifi.lora, await lora_of(served, voice=hifi.id)) == ("", "")  # its own, whatever its members have


async def test_the_adapter_of_a_voice_is_updated_and_removed(served):
    first = await add_reference(served, options=named("anna"))
    for name, lora, expected in ((None, "bert", "bert"), ("Ada", None, "bert"), (None, "", ""), (None, "anna", "anna")):
        change = pb.UpdateVoiceRequest(id=first.id, display_name=name, lora=lora)
        updated = (await served.stub.UpdateVoice(change)).handle
        assert (updated.id, updated.lora, await shown(served, first.id)) == (first.id, expected, expected)
        assert await lora_of(served, voice=first.id) == expected
    code, text, _ = await error_of(served.stub.UpdateVoice(pb.UpdateVoiceRequest(id=first.id, lora="nobody")))
    assert code is NOT_FOUND
    assert "there is no LoRA adapter 'nobody'; the server has anna, bert" in text
    assert await shown(served, first.id) == "anna"


async def test_a_recording_that_is_uploaded_again_replaces_the_adapter_if_it_names_one(served):
    first = await add_reference(served, options=named("anna"))
    for lora, expected in ((None, "anna"), ("bert", "bert"), ("", "")):
        again = await add_reference(served, options=named(lora))
        assert (again.id, again.reused, again.lora) == (first.id, True, expected)
        assert await shown(served, first.id) == expected
    assert served.pool.encoded == 1


async def test_an_unknown_adapter_is_refused_before_the_recording_is_read(served):
    config = pb.AddReferenceConfig(options=named("nobody"))
    messages = upload(pb.AddReferenceRequest, config, (0, b"no recording"))
    code, text, _ = await error_of(chunks_of(served.stub.AddReference, messages))
    assert code is NOT_FOUND
    assert "there is no LoRA adapter 'nobody'; the server has anna, bert" in text
    assert not (await served.stub.ListVoices(pb.ListVoicesRequest())).handles


async def test_previews_and_auditions_speak_with_the_adapter_of_the_new_voice(served):
    preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="Hello.", auditions=True)
    config = pb.AddReferenceConfig(options=named("anna"), preview=preview)
    asked = [pb.Audition(text="One."), pb.Audition(text="Two.", turn=NONE), pb.Audition(text="Three.", turn=BERT)]
    auditions = [pb.AddReferenceRequest(audition=one) for one in asked]
    messages = [*upload(pb.AddReferenceRequest, config, (0, recording())), *auditions]
    await chunks_of(served.stub.AddReference, messages)
    assert adapters(served) == ["anna", "anna", "", "bert"]


async def test_an_adapter_that_is_gone_is_named_with_its_voice_and_the_remedies(serve_front, fake):
    async with serve_front(having(fake(), "anna")) as before:
        stored = await add_reference(before, options=named("anna"))
    async with serve_front(having(fake(), "bert")) as served:
        assert await shown(served, stored.id) == "anna"
        later = pb.GenerateConfig(conditioning=pb.Conditioning(voice=stored.id), turn=NONE)
        streams = [(conditioned(voice=stored.id), "Hello."), (later, "One. ", END, pb.TurnConfig(), "Two.")]
        for messages in streams:
            code, text, _ = await error_of(served.generate(*messages))
            assert code is FAILED
            for part in (f"voice {stored.id}", "'anna'", "register the adapter", "set lora to an empty string"):
                assert part in text
        config = conditioned(voice=stored.id)
        config.turn.CopyFrom(BERT)
        await served.generate(config, "Hello.")
        assert adapters(served)[-1] == "bert"
        preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="Hello.")
        code, text, _ = await error_of(add_reference(served, preview=preview))
        assert code is FAILED and "register the adapter" in text
        assert (await add_reference(served, options=named(""))).lora == ""
        assert await lora_of(served, voice=stored.id) == ""


async def test_a_preset_has_an_adapter(serve_front, fake):
    async with serve_front(having(fake(), "anna", "bert"), presets=[(NARRATOR, recording())]) as served:
        assert (
            await lora_of(served, voice="narrator") == await lora_of(served) == await lora_of(served, preset="narrator")
        )
        assert adapters(served)[-1] == "anna"
        assert await shown(served, "narrator") == "anna"
        await served.generate(NONE, "Hello.")
        assert adapters(served)[-1] == ""
        again = await add_reference(served, 0, options=named("bert"))
        assert (again.reused, again.lora) == (True, "anna")  # a preset keeps its own
        code, _, _ = await error_of(served.stub.UpdateVoice(pb.UpdateVoiceRequest(id="narrator", lora="bert")))
        assert code is FAILED


async def test_a_preset_without_its_adapter_keeps_the_server_from_starting(serve_front, fake):
    with pytest.raises(StartupError, match="names a LoRA adapter for narrator: there is no LoRA adapter 'anna'"):
        async with serve_front(having(fake(), "bert"), presets=[(NARRATOR, recording())]):
            pass


async def test_models_have_adapters_of_their_own(serve_front, fake):
    """Voices are updated by the adapters of the model that they are for, whatever model the request names."""
    one, two = having(fake(), "anna"), having(fake(), "bert")
    one.info, two.info = replace(one.info, name="one"), replace(two.info, name="two", fingerprint="e" * 40)
    async with serve_front(one, [two]) as served:
        stored = await add_reference(served, options=named("bert"), model="two")
        code, _, _ = await error_of(add_reference(served, options=named("anna"), model="two"))
        assert code is NOT_FOUND
        code, text, _ = await error_of(served.stub.UpdateVoice(pb.UpdateVoiceRequest(id=stored.id, lora="anna")))
        assert code is NOT_FOUND and "the server has bert" in text
        update = pb.UpdateVoiceRequest(id=stored.id, lora="bert", display_name="Bea")
        assert (await served.stub.UpdateVoice(update)).handle.lora == "bert"
        config = conditioned(voice="Bea")
        config.model = "two"
        await served.generate(config, "Hello.")
        assert two.spoken_with == ["bert1"]


async def test_every_store_keeps_the_adapter_for_all_servers(servers):
    one, other = servers.open(), servers.open()
    [(stored, _)] = await one.add(voice(lora="anna"))
    assert (await other.load(stored.id)).voice.lora == (await other.find(stored.id)).lora == "anna"
    assert (await other.update(stored.id, VoiceChange(lora="bert"))).lora == "bert"
    assert (await one.load(stored.id)).voice.lora == (await one.page())[0][0].lora == "bert"
    assert (await servers.open().update(stored.id, VoiceChange(lora=""))).lora == ""
