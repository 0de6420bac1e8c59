"""Presets: voices of a model that have names, are listed, and are neither stored nor deleted."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest
from support.engines.voice_parts import latents_of
from support.servers.uploads import add_hifi, add_prompt, add_reference, conditioned, recording

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset, read

ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. ", labels={"language": "en"})
OTTO = Preset(name="otto", kind="reference", recording="otto.wav")
BOTH = Preset(name="both", kind="hifi", recording="both.wav", transcript="Hi there. ")
PRESETS = [(ANNA, recording(0)), (OTTO, recording(1)), (BOTH, recording(2))]


def fault(code: grpc.StatusCode, match: str = ""):
    """Expects that the call in the block fails with this status."""
    return pytest.raises(grpc.aio.AioRpcError, match=f"(?s){code.name}.*{match}")


async def handles(served, **request) -> dict[str, pb.VoiceHandle]:
    """The listed voices by name."""
    found = (await served.stub.ListVoices(pb.ListVoicesRequest(**request))).handles
    assert len({handle.id for handle in found}) == len(found)
    return {handle.display_name: handle for handle in found}


async def conditioning_of(served, text: str = "Hello.", **conditioning):
    """Run a stream and return its conditioning."""
    await served.generate(conditioned(**conditioning), text)
    return served.pool.requests[-1].conditioning


async def test_presets_are_named_and_listed_and_not_stored(serve_front):
    async with serve_front(presets=PRESETS) as served:
        assert (await served.stub.GetModelInfo(pb.GetModelInfoRequest())).presets == ["anna", "otto", "both"]
        listed = await handles(served)
        assert list(listed) == ["anna", "otto", "both"]
        anna, otto, both = listed.values()
        assert (anna.kind, anna.transcript, anna.labels) == (pb.VOICE_KIND_PROMPT, "Hi there. ", {"language": "en"})
        assert otto.kind == pb.VOICE_KIND_REFERENCE and otto.reference_duration.ToMilliseconds() == 250
        assert both.kind == pb.VOICE_KIND_HIFI
        for handle in listed.values():
            assert not handle.HasField("expire_time") and not handle.HasField("create_time")
            assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle == handle
        assert list(await handles(served, kind=pb.VOICE_KIND_REFERENCE)) == ["otto"]
        assert list(await handles(served, labels={"language": "en"})) == ["anna"]
        assert not list(served.directory.rglob("*.*"))


async def test_a_preset_conditions_like_its_recording(serve_front):
    async with serve_front(presets=PRESETS) as served:
        listed = await handles(served)
        uploads = {
            "anna": {"prompt_id": listed["anna"].id},
            "otto": {"reference_id": listed["otto"].id},
            "both": {"hifi_id": listed["both"].id},
        }
        for name, by_id in uploads.items():
            named, stored = await conditioning_of(served, preset=name), await conditioning_of(served, **by_id)
            assert (named.prompt is None) == (name == "otto") and (named.reference is None) == (name == "anna")
            if named.prompt is not None:
                assert named.prompt.text == stored.prompt.text == "Hi there. "
                np.testing.assert_array_equal(latents_of(named.prompt), latents_of(stored.prompt))
            if named.reference is not None:
                np.testing.assert_array_equal(latents_of(named.reference), latents_of(stored.reference))
        inline = pb.InlineReference(audio=pb.EncodedAudio(data=recording(1)))
        sent_inline = await conditioning_of(served, inline_reference=inline)
        np.testing.assert_array_equal(
            latents_of(sent_inline.reference), latents_of((await conditioning_of(served, preset="otto")).reference)
        )


async def test_presets_need_no_store(serve_front):
    async with serve_front(presets=PRESETS) as served:
        served.directory.rmdir()
        for name in ("anna", "otto", "both"):
            assert await conditioning_of(served, preset=name)
        with fault(grpc.StatusCode.UNAVAILABLE):
            await handles(served)


async def test_a_preset_and_a_stored_voice_of_one_recording_have_one_id(serve_front):
    async with serve_front() as before:
        stored = await add_prompt(before, 0, ANNA.transcript, options=pb.VoiceOptions(display_name="mine"))
    async with serve_front(presets=PRESETS) as served:
        listed = await handles(served)
        assert list(listed) == ["anna", "otto", "both"]  # replaces the stored voice
        assert listed["anna"].id == stored.id
        again = await add_prompt(served, 0, ANNA.transcript)
        assert again.reused and again.display_name == "anna"
        assert (await add_reference(served, 1)).reused
        assert list(await handles(served)) == ["anna", "otto", "both"]
    async with serve_front() as after:  # the stored voice still exists
        assert list(await handles(after)) == ["mine"]


async def test_members_of_a_preset_can_be_combined_with_other_voices(serve_front):
    async with serve_front(presets=PRESETS) as served:
        both = (await handles(served))["both"]
        reference = await add_reference(served, 7)
        made = (await add_hifi(served, prompt_id=both.prompt_id, reference_id=reference.id))[0].handle
        assert (made.prompt_id, made.reference_id, made.reused) == (both.prompt_id, reference.id, False)
        assert (await conditioning_of(served, hifi_id=made.id)).prompt.text == "Hi there. "
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=made.id, cascade=True))
        assert await conditioning_of(served, prompt_id=both.prompt_id)
        assert (await add_hifi(served, prompt_id=both.prompt_id, reference_id=both.reference_id))[0].handle.reused


async def test_a_stored_voice_may_have_the_name_of_a_preset(serve_front):
    async with serve_front() as before:  # of another model
        mine = await add_reference(before, 9, options=pb.VoiceOptions(display_name="anna"))
    async with serve_front(presets=PRESETS) as served:
        everything = (await served.stub.ListVoices(pb.ListVoicesRequest())).handles
        assert [handle.display_name for handle in everything] == ["anna", "anna", "otto", "both"]
        assert everything[0].id == mine.id
        assert (await conditioning_of(served, preset="anna")).prompt is not None  # a name means a preset
        assert (await conditioning_of(served, reference_id=mine.id)).prompt is None


async def test_pages_continue_from_stored_voices_to_presets(serve_front):
    async with serve_front(presets=PRESETS) as served:
        for seed in (7, 8):
            await add_reference(served, seed, options=pb.VoiceOptions(display_name=f"mine {seed}"))
        for size in (1, 2, 3, 5, 6):
            seen, token = [], ""
            for _ in range(10):
                page = await served.stub.ListVoices(pb.ListVoicesRequest(page_size=size, page_token=token))
                assert len(page.handles) <= size
                seen += [handle.display_name for handle in page.handles]
                if not (token := page.next_page_token):
                    break
            assert seen == ["mine 8", "mine 7", "anna", "otto", "both"]


async def test_errors_with_presets(serve_front):
    async with serve_front(presets=PRESETS) as served:
        both = (await handles(served))["both"]
        for id in (both.id, both.prompt_id):
            with fault(grpc.StatusCode.FAILED_PRECONDITION, "is the preset .both. of the model"):
                await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=id, allow_missing=True))
        with fault(grpc.StatusCode.NOT_FOUND, "'emil'; the model's presets are anna, otto, both"):
            await conditioning_of(served, preset="emil")
        with fault(grpc.StatusCode.NOT_FOUND, "did you mean 'otto'"):
            await conditioning_of(served, preset="OTTA")
        for name in ("anna", "both"):
            config = conditioned(preset=name)
            config.turn.style = "calm"
            with fault(grpc.StatusCode.INVALID_ARGUMENT, "a style cannot be combined with a prompt"):
                await served.generate(config, "Hello.")
        config = conditioned(preset="otto")
        config.turn.style = "calm"
        await served.generate(config, "Hello.")
        assert (served.pool.requests[-1].style, served.pool.requests[-1].text) == ("calm", "Hello.")


LISTED = {"name": "anna", "kind": "reference", "recording": "anna.wav"}


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ("nonsense", "not a list of presets"),
        ([LISTED | {"name": "ref_anna"}], "name"),
        ([LISTED | {"name": "spk_anna"}], "name"),
        ([LISTED | {"name": ""}], "name"),
        ([LISTED | {"recording": "../anna.wav"}], "recording"),
        ([LISTED | {"recording": "/etc/passwd"}], "recording"),
        ([LISTED | {"kind": "song"}], "song"),
        ([LISTED | {"colour": "red"}], "colour"),
        ([LISTED | {"kind": "prompt"}], "no transcript for anna, and a prompt needs one"),
        ([LISTED, LISTED], "names anna more than once"),
        ([LISTED | {"recording": "emil.wav"}], "emil.wav is in presets.json and cannot be read"),
    ],
)
def test_a_bad_list_is_an_error_at_the_start(tmp_path, listed, error):
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "anna.wav").write_bytes(recording())
    (folder / "presets.json").write_text(json.dumps(listed))
    with pytest.raises(StartupError, match=f"{error}.*; correct it, or remove the folder presets"):
        read(tmp_path)


async def test_a_file_that_is_not_a_recording_is_an_error_at_the_start(serve_front):
    with pytest.raises(StartupError, match=r"otto\.wav cannot be the preset otto: .*audio"):
        async with serve_front(presets=[(OTTO, b"not audio")]):
            pass


def test_a_model_without_presets_has_none(tmp_path):
    assert read(tmp_path) == ()
