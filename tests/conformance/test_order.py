"""The order of the messages of every stream: of those that a client sends, and of the replies."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.servers.targets import Service, config, message, refusal, rest
from support.servers.uploads import PROMPT, REFERENCE, upload

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LONG = "A sentence that goes on and on, as it has nothing better to do. " * 20
MANUAL = pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL)


def check_replies(chunks: list[pb.AudioChunk]) -> None:
    """Numbers and positions have no gaps, the header comes first and alone, the summary last and alone."""
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))
    position = 0
    for chunk in chunks:
        assert chunk.offset_samples == position
        position += chunk.sample_count
    assert [chunk.sequence for chunk in chunks if chunk.HasField("header")] == [0]
    assert [chunk.sequence for chunk in chunks if chunk.HasField("summary")] == [len(chunks) - 1]
    assert chunks[-1].summary.total_samples == position


def events(chunks: list[pb.AudioChunk]) -> list[tuple[str, int]]:
    """Starts and ends of segments, with their index."""
    kinds = {1: "started", 2: "finished", 3: "dropped"}
    return [(kinds[event.kind], event.segment_index) for chunk in chunks for event in chunk.segment_events]


# ---- Generate


async def test_replies_follow_each_other_without_gaps(service: Service, info: pb.GetModelInfoResponse) -> None:
    chunks = await service.speak(config(), "One is here. ", "Two is here. ")
    check_replies(chunks)
    assert chunks[0].sample_count == 0, "the header is sent before the first audio exists"
    assert chunks[-1].summary.segments == 2
    assert events(chunks) == [("started", 0), ("finished", 0), ("started", 1), ("finished", 1)]
    assert chunks[-1].summary.total_samples == 8 * info.samples_per_step
    assert all(chunk.turn_index == 0 for chunk in chunks)


async def test_a_config_is_not_needed_and_a_stream_without_text_ends_with_ok(service: Service) -> None:
    check_replies(await service.speak("Hello."))
    check_replies(await service.speak())
    check_replies(await service.speak(config()))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([config(), config()], "config"),
        (["Hello.", config()], "config"),
        ([pb.Flush(), config()], "config"),
        ([pb.GenerateRequest()], "request"),
        (["Hello.", pb.GenerateRequest()], "request"),
        ([LONG, pb.Finish(), "More."], "finish"),
        ([LONG, pb.Finish(), pb.Finish()], "finish"),
        ([LONG, pb.Finish(), pb.Interrupt()], "finish"),
    ],
)
async def test_messages_out_of_order_are_refused(service: Service, messages: list[Any], field: str) -> None:
    code, _, details = await refusal(service.speak(*messages))
    assert (code, details.field) == (INVALID, field)
    assert details.request_id


async def test_finish_ends_the_stream_though_the_client_does_not_half_close(service: Service) -> None:
    call = service.Generate()
    for body in (config(), "Hello.", pb.Finish()):
        await call.write(message(body))
    chunks = await rest(call)
    check_replies(chunks)
    assert chunks[-1].summary.total_samples
    assert await call.code() is grpc.StatusCode.OK


async def test_a_flush_is_answered_after_all_audio_of_its_text(service: Service) -> None:
    call = service.Generate()
    for body in (config(segmentation=MANUAL), "One is here. Two", pb.Flush(tag="a"), pb.Flush(tag="b", end_turn=True)):
        await call.write(message(body))
    chunks: list[pb.AudioChunk] = []
    while not (chunks and chunks[-1].flush_done.tag == "b"):
        chunks.append(await call.read())
    spoken = sum(chunk.sample_count for chunk in chunks)
    answers = [chunk.flush_done for chunk in chunks if chunk.HasField("flush_done")]
    assert [(answer.tag, answer.at_samples) for answer in answers] == [("a", spoken), ("b", spoken)]
    await call.write(message("Three."))
    await call.done_writing()
    later = await rest(call)
    check_replies([*chunks, *later])
    assert {chunk.turn_index for chunk in later if chunk.sample_count} == {1}, "end_turn has opened another turn"


async def test_no_audio_of_an_interrupted_turn_follows_the_answer(service: Service) -> None:
    call = service.Generate()
    await call.write(message(config(200, segmentation=MANUAL)))
    for _ in range(3):
        await call.write(message("A sentence of some length that is interrupted before its end. "))
        await call.write(message(pb.Flush()))
    chunks = []
    while not (chunks and chunks[-1].sample_count):
        chunks.append(await call.read())
    await call.write(message(pb.Interrupt(tag="stop")))
    await call.write(message("Two."))
    await call.done_writing()
    chunks += await rest(call)
    check_replies(chunks)
    [at] = [index for index, chunk in enumerate(chunks) if chunk.HasField("interrupted")]
    assert chunks[at].interrupted.tag == "stop"
    assert chunks[at].interrupted.sent_samples == sum(chunk.sample_count for chunk in chunks[: at + 1])
    later = [chunk for chunk in chunks[at + 1 :] if chunk.sample_count]
    assert later and {chunk.turn_index for chunk in later} == {1}
    assert ("dropped", 0) in events(chunks)


async def test_an_interrupt_names_what_was_heard_and_the_flushes_it_drops(service: Service) -> None:
    call = service.Generate()
    await call.write(message(config(200, segmentation=MANUAL)))
    await call.write(message("One. "))
    await call.write(message(pb.Flush(tag="kept")))
    chunks = []
    while not (chunks and chunks[-1].flush_done.tag == "kept"):
        chunks.append(await call.read())
    for number in range(3):
        await call.write(message("A sentence of some length that is interrupted before its end. "))
        await call.write(message(pb.Flush(tag=f"dropped {number}")))
    await call.write(message(pb.Interrupt(played_samples=chunks[-1].flush_done.at_samples)))
    await call.done_writing()
    chunks += await rest(call)
    check_replies(chunks)
    [answer] = [chunk.interrupted for chunk in chunks if chunk.HasField("interrupted")]
    assert answer.HasField("heard_input_end")
    assert answer.heard_turn_index == 0 and answer.heard_input_end <= len("One. "), "the rest was not heard"
    answered = [chunk.flush_done.tag for chunk in chunks if chunk.HasField("flush_done")]
    assert answered + list(answer.dropped_flush_tags) == ["kept", "dropped 0", "dropped 1", "dropped 2"]


async def test_the_settings_of_a_turn_may_change(service: Service) -> None:
    long, short = (config(steps).turn for steps in (12, 2))
    bodies = ["One is spoken here.", short, pb.Flush(end_turn=True), "Two is spoken here."]
    chunks = await service.speak(pb.GenerateConfig(turn=long, segmentation=MANUAL), *bodies)
    check_replies(chunks)
    samples = [sum(chunk.sample_count for chunk in chunks if chunk.turn_index == turn) for turn in (0, 1)]
    assert samples[0] > 3 * samples[1] > 0


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        (pb.TurnConfig(sampling=pb.Sampling(temperature=11)), "turn.sampling.temperature"),
        (pb.TurnConfig(style="x" * 100_000), "turn.style"),
    ],
)
async def test_wrong_settings_of_a_turn_are_refused(service: Service, turn: pb.TurnConfig, field: str) -> None:
    code, _, details = await refusal(service.speak(config(), "Hello.", turn))
    assert (code, details.field) == (INVALID, field)


async def test_answers_have_the_order_of_their_requests(service: Service) -> None:
    bodies = [pb.Flush(tag="1"), pb.Interrupt(tag="2"), pb.Flush(tag="3"), pb.Interrupt(tag="4"), pb.Flush(tag="5")]
    chunks = await service.speak(config(), *bodies, "Hello.", pb.Flush(tag="6"))
    check_replies(chunks)
    answered: list[str] = []
    for chunk in chunks:
        if chunk.HasField("interrupted"):  # it may come before the answer to a flush, which it drops
            answered += [*chunk.interrupted.dropped_flush_tags, chunk.interrupted.tag]
        elif chunk.HasField("flush_done"):
            answered.append(chunk.flush_done.tag)
    assert answered == ["1", "2", "3", "4", "5", "6"]


# ---- uploads

UPLOADS: dict[str, tuple[Any, Any]] = {
    "AddPrompt": (pb.AddPromptRequest, pb.AddPromptConfig(transcript="A tone.")),
    "AddReference": (pb.AddReferenceRequest, pb.AddReferenceConfig()),
    "AddHifi": (
        pb.AddHifiRequest,
        pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript="A tone."), same_as_prompt=pb.SameAsPrompt()),
    ),
    "EncodeLatents": (pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=PROMPT)),
}


MARKS: dict[str, Any] = {
    "AddPrompt": pytest.mark.prompts,
    "AddReference": pytest.mark.references,
    "AddHifi": pytest.mark.references,
    "EncodeLatents": pytest.mark.latents,
}
METHODS = [pytest.param(method, marks=[MARKS[method]]) for method in UPLOADS]
ADDING = METHODS[:3]


def part(kind: Any, data: bytes = b"x", offset: int = 0, role: Any = 0) -> Any:
    return kind(audio=pb.AudioPart(data=data, offset_bytes=offset, role=role))


def commit(kind: Any, *sizes: int, sha256: bytes = b"") -> Any:
    return kind(commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=size, sha256=sha256) for size in sizes]))


MISTAKES: dict[str, tuple[Any, str]] = {  # the messages of kind k with the config c and the recording r
    "no message": (lambda k, c, r: [], "commit"),
    "no config": (lambda k, c, r: [part(k, r), commit(k, len(r))], "config"),
    "commit first": (lambda k, c, r: [commit(k, 0)], "config"),
    "two configs": (lambda k, c, r: [c, c], "config"),
    "config after audio": (lambda k, c, r: [c, part(k, r), c], "config"),
    "empty message": (lambda k, c, r: [c, k()], "request"),
    "no commit": (lambda k, c, r: [c, part(k, r)], "commit"),
    "config alone": (lambda k, c, r: [c], "commit"),
    "no audio": (lambda k, c, r: [c, commit(k, 0)], "audio"),
    "gap": (lambda k, c, r: [c, part(k, r[:9]), part(k, r[10:], 10)], "audio.offset_bytes"),
    "overlap": (lambda k, c, r: [c, part(k, r[:9]), part(k, r[8:], 8)], "audio.offset_bytes"),
    "another role": (lambda k, c, r: [c, part(k, r, 0, 99)], "audio.role"),
    "no digest": (lambda k, c, r: [c, part(k, r), commit(k)], "commit.digests"),
    "two digests": (lambda k, c, r: [c, part(k, r), commit(k, len(r), len(r))], "commit.digests"),
    "another size": (lambda k, c, r: [c, part(k, r), commit(k, len(r) + 1)], "commit.digests.total_bytes"),
    "another hash": (lambda k, c, r: [c, part(k, r), commit(k, len(r), sha256=bytes(32))], "commit.digests.sha256"),
    "audio after": (lambda k, c, r: [c, part(k, r), commit(k, len(r)), part(k, r, len(r))], "audio"),
    "config after": (lambda k, c, r: [c, part(k, r), commit(k, len(r)), c], "config"),
    "two commits": (lambda k, c, r: [c, part(k, r), commit(k, len(r)), commit(k, len(r))], "commit"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("method", METHODS)
async def test_uploads_out_of_order_are_refused_and_store_nothing(
    target, service: Service, recording: bytes, method: str, mistake: str
) -> None:
    kind, settings = UPLOADS[method]
    settings = type(settings).FromString(settings.SerializeToString())
    if hasattr(settings, "options"):
        settings.options.CopyFrom(target.options_of_voice(labels={"mistake": f"{method} {mistake}"}))
    make, field = MISTAKES[mistake]
    messages = make(kind, kind(config=settings), recording)
    replies = getattr(service, method)(iter(messages))
    code, text, details = await refusal(replies)
    assert (code, details.field) == (INVALID, field), text
    assert details.request_id and details.bad_request and details.retry_seconds is None
    labels = {"mistake": f"{method} {mistake}"}
    assert not (await service.ListVoices(pb.ListVoicesRequest(labels=labels))).handles


@pytest.mark.parametrize("method", ADDING)
async def test_the_handle_of_a_voice_comes_before_its_preview(
    target, service: Service, info: pb.GetModelInfoResponse, recording: bytes, method: str
) -> None:
    kind, settings = UPLOADS[method]
    mode = pb.PREVIEW_MODE_RECONSTRUCTION
    if method == "AddReference" and not info.feat_dim:  # the model keeps no audio of a reference
        mode = pb.PREVIEW_MODE_SYNTHESIS
    asked = type(settings)(options=target.options_of_voice(), preview=pb.Preview(mode=mode, turn=config().turn))
    asked.MergeFrom(settings)
    chunks = await service.stream(method, upload(kind, asked, (0, recording), size=500))
    check_replies(chunks)
    assert [chunk.sequence for chunk in chunks if chunk.HasField("handle")] == [0]
    assert chunks[0].sample_count == 0 and chunks[-1].summary.total_samples > 0
    stored = await service.GetVoice(pb.GetVoiceRequest(id=chunks[0].handle.id))
    assert stored.handle.id == chunks[0].handle.id
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=stored.handle.id, cascade=True))


@pytest.mark.parametrize("method", ADDING)
async def test_auditions_are_answered_in_their_order_with_the_new_voice(
    target, service: Service, recording: bytes, method: str
) -> None:
    kind, settings = UPLOADS[method]
    turn = config().turn
    preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="A preview.", turn=turn, auditions=True)
    asked = type(settings)(options=target.options_of_voice(), preview=preview)
    asked.MergeFrom(settings)
    texts = ["One is here. Two is here.", "Three."]
    said = [kind(audition=pb.Audition(text=text, turn=turn, tag=text)) for text in texts]
    chunks = await service.stream(method, [*upload(kind, asked, (0, recording), size=500), *said])
    check_replies(chunks)
    assert [chunk.sequence for chunk in chunks if chunk.HasField("handle")] == [0]
    assert chunks[0].sample_count == 0 and chunks[0].header.voice == chunks[0].handle.id
    started = [event for chunk in chunks for event in chunk.segment_events if event.kind == 1]
    assert [(event.turn_index, event.segment_index) for event in started] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert [chunk.flush_done.tag for chunk in chunks if chunk.HasField("flush_done")] == texts
    assert {chunk.turn_index for chunk in chunks if chunk.audio} == {0, 1, 2}
    spoken = await service.speak(config(conditioning=pb.Conditioning(voice=chunks[0].handle.id)), texts[1])
    length = sum(chunk.sample_count for chunk in chunks if chunk.turn_index == 2)
    assert length == spoken[-1].summary.total_samples
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=chunks[0].handle.id, cascade=True))


@pytest.mark.prompts
async def test_an_audition_that_fails_leaves_the_voice(target, service: Service, recording: bytes) -> None:
    options = target.options_of_voice()
    settings = pb.AddPromptConfig(transcript="A tone. ", options=options, preview=pb.Preview(auditions=True))
    kind = pb.AddPromptRequest
    messages = [*upload(kind, settings, (0, recording)), kind(audition=pb.Audition(text="?!"))]
    call = service.AddPrompt(iter(messages))
    handle = (await call.read()).handle
    code, _, details = await refusal(rest(call))
    assert (code, details.field) == (INVALID, "audition.text")
    assert (await service.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id))


@pytest.mark.references
async def test_two_recordings_of_a_hifi_voice_may_be_mixed_and_need_their_roles(
    target, service: Service, recording: bytes
) -> None:
    settings = pb.AddHifiConfig(
        options=target.options_of_voice(),
        uploaded_prompt=pb.UploadedPrompt(transcript="A tone."),
        uploaded_reference=pb.UploadedReference(),
    )
    kind, half = pb.AddHifiRequest, len(recording) // 2
    first = kind(config=settings)
    code, _, details = await refusal(service.stream("AddHifi", [first, part(kind, recording)]))
    assert (code, details.field) == (INVALID, "audio.role")
    mixed = [
        first,
        part(kind, recording[:half], 0, REFERENCE),
        part(kind, recording, 0, PROMPT),
        part(kind, recording[half:], half, REFERENCE),
        *list(upload(kind, settings, (PROMPT, recording), (REFERENCE, recording)))[-1:],
    ]
    [handle] = [chunk.handle for chunk in await service.stream("AddHifi", mixed) if chunk.HasField("handle")]
    assert handle.prompt_id and handle.reference_id
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id, cascade=True))


@pytest.mark.latents
async def test_latents_are_the_only_reply_of_their_call(service: Service, recording: bytes, info) -> None:
    kind, settings = UPLOADS["EncodeLatents"]
    reply = await service.EncodeLatents(upload(kind, settings, (0, recording)))
    assert reply.latents.feat_dim == info.feat_dim
    assert len(reply.latents.data) % (4 * info.feat_dim * info.patch_size) == 0
    assert reply.latents.model_fingerprint == info.model_fingerprint
