"""Several models behind one address, each with a fake pool of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.grpc_types import message_of
from support.clients.status_details import details_of
from support.servers.uploads import add_hifi, add_prompt, add_reference, chunks_of, recording, upload

from voxcpm_grpc.models.voxcpm.config.abilities import sampling_options
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset, load

PRESETS = ((Preset(name="anna", kind="reference", recording="a.wav", default=True), recording(9)),)


@pytest.fixture
def two(serve_front, fake):
    """Starts a front with the models `small`, the default, and `large`."""

    def serve(**options: Any) -> Any:
        small = fake()
        small.info = replace(small.info, name="small", languages=("en",))
        other = {"name": "large", "fingerprint": "e" * 40, "languages": (), "options": sampling_options((5,))}
        large = fake(info=replace(small.info, **other))
        return serve_front(small, others=(large,), **options)

    return serve


def config(model: str, **fields: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(model=model, **fields)


async def refused(code: grpc.StatusCode, call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code
    return message_of(caught.value)


async def test_a_stream_speaks_with_the_model_that_it_names(two, spoken_by):
    async with two() as served:
        small, large = served.pools
        for name, pool in (("", small), ("small", small), ("large", large)):
            chunks = await served.generate(config(name), "Hello.")
            assert chunks[0].header.model == pool.info.name
            assert chunks[0].header.model_fingerprint == pool.info.fingerprint
            assert [request.text for request in pool.requests] == ["Hello."]
            pool.requests.clear()
        await served.generate("Without a config.")
        assert len(small.requests) == 1 and not large.requests


async def test_the_rules_for_a_stream_are_those_of_its_model(two):
    async with two() as served:
        _, large = served.pools
        turn = pb.TurnConfig(sampling=pb.Sampling(inference_timesteps=5))
        await served.generate(config("large", turn=turn), "One.", pb.Flush(end_turn=True), turn, "Two.")
        assert [request.sampling.inference_timesteps for request in large.requests] == [5, 5]
        await served.generate(config("large"), "Default.")
        assert large.requests[-1].sampling.inference_timesteps == 5
        said = await refused(grpc.StatusCode.FAILED_PRECONDITION, served.generate(config("small", turn=turn), "One."))
        assert "inference_timesteps is 5 and this server runs 4, 6, 10" in said


async def test_an_unknown_model_is_refused_with_the_names_of_all(two):
    async with two() as served:
        said = await refused(grpc.StatusCode.NOT_FOUND, served.generate(config("huge"), "Hello."))
        assert said == ("there is no model 'huge'; this server has small, large; leave model empty for the first one")
        for call in (
            served.stub.GetModelInfo(pb.GetModelInfoRequest(model="huge")),
            served.stub.ListVoices(pb.ListVoicesRequest(model="huge")),
            served.stub.GetVoice(pb.GetVoiceRequest(id="a", model="huge")),
            served.stub.UpdateVoice(pb.UpdateVoiceRequest(id="a", display_name="b", model="huge")),
            served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="a", model="huge")),
            add_reference(served, model="huge"),
        ):
            assert "'huge'" in await refused(grpc.StatusCode.NOT_FOUND, call)


async def test_the_models_are_listed_and_described(two):
    async with two(presets=PRESETS) as served:
        small, large = (await served.stub.ListModels(pb.ListModelsRequest())).models
        assert [(small.name, small.is_default), (large.name, large.is_default)] == [("small", True), ("large", False)]
        assert (large.model_fingerprint, large.presets, large.serving) == ("e" * 40, ["anna"], True)
        assert (small.languages, small.default_voice, small.output_sample_rate_hz) == (["en"], "anna", 48000)
        for name, timesteps in (("", [4, 6, 10]), ("small", [4, 6, 10]), ("large", [5])):
            info = await served.stub.GetModelInfo(pb.GetModelInfoRequest(model=name))
            assert (info.model, info.inference_timesteps) == (name or "small", timesteps)


async def test_one_model_is_listed_too(served):
    [only] = (await served.stub.ListModels(pb.ListModelsRequest())).models
    assert (only.name, only.is_default) == ("fake", True)
    assert (await served.generate(config("fake"), "Hello."))[0].header.model == "fake"


async def test_a_voice_is_encoded_by_its_model_and_used_with_it(two):
    async with two() as served:
        small, large = served.pools
        handle = await add_reference(served, model="large")
        assert (handle.model, handle.model_fingerprint) == ("large", "e" * 40)
        assert (small.encoded, large.encoded) == (0, 1)
        voice = pb.Conditioning(reference_id=handle.id)
        await served.generate(config("large", conditioning=voice), "Hello.")
        assert large.requests[-1].conditioning.reference is not None
        said = await refused(
            grpc.StatusCode.FAILED_PRECONDITION, served.generate(config("", conditioning=voice), "Hello.")
        )
        assert said == (
            f"voice {handle.id} was made for the model 'large' and this request is for 'small'; set model to 'large', "
            "or upload the recording again for this model"
        )
        again = await add_reference(served, model="small")
        assert again.id != handle.id and not again.reused  # the same recording for the other model
        await served.generate(config("", conditioning=pb.Conditioning(reference_id=again.id)), "Hello.")


async def test_voices_of_one_name_are_those_of_the_model(two):
    async with two() as served:
        options = pb.VoiceOptions(display_name="Ann")
        first = await add_reference(served, options=options)
        second = await add_reference(served, options=options, model="large")
        for name, handle in (("", first), ("small", first), ("large", second)):
            chunks = await served.generate(config(name, conditioning=pb.Conditioning(voice="Ann")), "Hello.")
            assert chunks[0].header.voice == handle.id
            found = await served.stub.GetVoice(pb.GetVoiceRequest(id="Ann", model=name))
            assert (found.handle.id, found.handle.model) == (handle.id, name or "small")
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="Ann", model="large"))
        await refused(grpc.StatusCode.NOT_FOUND, served.stub.GetVoice(pb.GetVoiceRequest(id=second.id)))
        changed = pb.UpdateVoiceRequest(id=first.id, display_name="Bea")
        assert (await served.stub.UpdateVoice(changed)).handle.model == "small"


async def test_voices_are_listed_by_model(two):
    async with two(presets=PRESETS) as served:
        first, second = await add_prompt(served), await add_prompt(served, model="large")

        async def listed(**fields: Any) -> list[tuple[str, str]]:
            found = (await served.stub.ListVoices(pb.ListVoicesRequest(**fields))).handles
            return [(handle.display_name or handle.id, handle.model) for handle in found]

        presets = [("anna", "small"), ("anna", "large")]
        assert await listed() == [(second.id, "large"), (first.id, "small"), *presets]
        assert await listed(model="large") == [(second.id, "large"), ("anna", "large")]
        assert await listed(model="small", page_size=1) == [(first.id, "small")]
        ids = [handle.id for handle in (await served.stub.ListVoices(pb.ListVoicesRequest())).handles]
        for id in ids[2:]:  # a preset of each model
            assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=id))).handle.id == id
        chunks = await served.generate(config("large"), "Hello.")
        assert chunks[0].header.voice == "anna"
        assert served.pools[1].requests[-1].conditioning.reference is not None


async def test_a_preset_of_another_model_is_refused_with_the_model_that_has_it(two):
    async with two() as served:
        small, large = served.models
        await load(large.catalog, large.info, PRESETS, large.builder, "auto")
        [preset] = (await served.stub.ListVoices(pb.ListVoicesRequest(model="large"))).handles
        for given in (
            pb.Conditioning(voice=preset.id),
            pb.Conditioning(voice="anna"),
            pb.Conditioning(voice="Anna"),
            pb.Conditioning(preset="anna"),
            pb.Conditioning(reference_id=preset.id),
            pb.Conditioning(reference_id="anna"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(config("small", conditioning=given), "Hello.")
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION, caught.value.details()
            assert message_of(caught.value) == (
                "voice 'anna' is a preset of the model 'large' and this request is for 'small'; set model to 'large', "
                "or choose another voice"
            )
            details = details_of(caught.value)
            assert details.reason == "VOICE_OF_ANOTHER_MODEL"
            assert details.values == {"voice": preset.id, "model": "large"}
        assert not small.pool.requests
        for name in (preset.id, "anna"):
            for model in ("", "small", "large"):
                asked = pb.GetVoiceRequest(id=name, model=model)
                assert (await served.stub.GetVoice(asked)).handle == preset
            kept = served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=name))
            assert "is the preset 'anna' of the model" in await refused(grpc.StatusCode.FAILED_PRECONDITION, kept)


async def test_a_name_means_a_voice_of_the_model_before_a_preset_of_another_one(two):
    async with two() as served:
        _, large = served.models
        await load(large.catalog, large.info, PRESETS, large.builder, "auto")
        stored = await add_reference(served, 5, options=pb.VoiceOptions(display_name="Anna"))
        chunks = await served.generate(config("small", conditioning=pb.Conditioning(voice="anna")), "Hello.")
        assert chunks[0].header.voice == stored.id


async def test_a_hifi_voice_has_members_of_one_model(two):
    async with two() as served:
        prompt = await add_prompt(served)
        uploaded = {"uploaded_reference": pb.UploadedReference(), "prompt_id": prompt.id}
        said = await refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            add_hifi(served, (pb.AUDIO_ROLE_REFERENCE, recording(2)), model="large", **uploaded),
        )
        assert "was made for the model 'small'" in said
        chunks = await add_hifi(served, (pb.AUDIO_ROLE_REFERENCE, recording(2)), **uploaded)
        assert chunks[0].handle.model == "small"


async def test_latents_and_previews_are_those_of_the_model(two):
    async with two() as served:
        small, large = served.pools
        source = pb.EncodeLatentsConfig(role=pb.AUDIO_ROLE_REFERENCE, model="large")
        messages = upload(pb.EncodeLatentsRequest, source, (0, recording()))
        latents = (await served.stub.EncodeLatents(iter(list(messages)))).latents
        assert latents.model_fingerprint == "e" * 40
        inline = pb.Conditioning(inline_reference=pb.InlineReference(latents=latents))
        await served.generate(config("large", conditioning=inline), "Hello.")
        said = await refused(
            grpc.StatusCode.FAILED_PRECONDITION, served.generate(config("small", conditioning=inline), "Hello.")
        )
        assert "the latents are of model eeee" in said
        preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="Try me.")
        added = pb.AddReferenceConfig(model="large", preview=preview)
        chunks = await chunks_of(served.stub.AddReference, upload(pb.AddReferenceRequest, added, (0, recording(3))))
        assert [request.text for request in large.requests][-1] == "Try me." and not small.requests
        assert next(chunk.header.model for chunk in chunks if chunk.HasField("header")) == "large"
        assert np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<i2").size
