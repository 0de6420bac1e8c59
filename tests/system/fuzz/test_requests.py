"""Random calls to a real server: each ends soon, with a status that names the caller's mistake, and leaves nothing."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile.random_messages import random_messages, texts
from support.servers.qwen3_servers import QWEN3, qwen3_serving
from support.servers.running import Server, serving
from support.servers.uploads import recording
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

METHODS = "/voxcpm_grpc.v1.VoxCPMService/"
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
UPLOADS = {
    "AddPrompt": (pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi there.")),
    "AddReference": (pb.AddReferenceRequest, pb.AddReferenceConfig()),
    "AddHifi": (
        pb.AddHifiRequest,
        pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript="Hi."), same_as_prompt=pb.SameAsPrompt()),
    ),
    "EncodeLatents": (pb.EncodeLatentsRequest, pb.EncodeLatentsConfig()),
}


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model, folder = str(request.config.getoption("--model")), tmp_path_factory.mktemp("server")
    with qwen3_serving(folder, model) if model.startswith(QWEN3) else serving(folder / "voices") as running:
        yield running
        with Client(running.address) as client:
            assert client.health()
            assert client.say("Still here.", max_steps=4).samples.any()
        running.terminate()
        running.process.wait(HANG_SECONDS)
        check_log(running)  # with what the event loop reports at its end


def check_log(server: Server) -> None:
    """Whatever a caller does, the log has neither an error nor a traceback."""
    assert not server.fault(), server.fault()


@pytest.fixture(autouse=True)
def clean_log(server: Server) -> Iterator[None]:
    yield
    check_log(server)


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> tts_pb2_grpc.VoxCPMServiceStub:
    return tts_pb2_grpc.VoxCPMServiceStub(channel)


def answers(responses: Any) -> list[Any] | None:
    """All responses of a call, or None if it was refused with one of the statuses that a caller can expect."""
    try:
        return list(responses)
    except grpc.RpcError as error:
        assert error.code() in REFUSALS, error
        assert error.details()
        return None


def check_stream(chunks: list[pb.AudioChunk]) -> None:
    position = 0
    for chunk in chunks:
        assert chunk.offset_samples == position
        position += chunk.sample_count
    assert chunks[-1].summary.total_samples == position


short = st.builds(lambda seed: pb.GenerateConfig(turn=turn(seed)), st.integers(0, 2**32))


def turn(seed: int) -> pb.TurnConfig:
    return pb.TurnConfig(sampling=pb.Sampling(seed=seed, max_steps=4))


inputs = st.one_of(
    texts().map(lambda text: pb.GenerateRequest(text=text)),
    texts().map(lambda text: pb.GenerateRequest(text=text)),
    st.booleans().map(lambda end: pb.GenerateRequest(flush=pb.Flush(end_turn=end, tag="f"))),
    st.just(pb.GenerateRequest(interrupt=pb.Interrupt(tag="i"))),
    random_messages(pb.GenerateRequest),
)


@given(config=short | random_messages(pb.GenerateConfig), messages=st.lists(inputs, max_size=8), finish=st.booleans())
def test_any_sequence_of_messages(stub, config, messages, finish):
    requests = [pb.GenerateRequest(config=config), *messages]
    if finish:
        requests.append(pb.GenerateRequest(finish=pb.Finish()))
    chunks = answers(stub.Generate(iter(requests), timeout=HANG_SECONDS))
    if chunks is not None:
        check_stream(chunks)


@given(messages=st.lists(inputs, min_size=1, max_size=6), seed=st.integers(0, 2**32), read=st.integers(0, 4))
def test_streams_that_are_cancelled(stub, messages, seed, read):
    config = pb.GenerateRequest(config=pb.GenerateConfig(turn=turn(seed)))
    call = stub.Generate(iter([config, *messages]), timeout=HANG_SECONDS)
    try:
        for _, _ in zip(range(read), call, strict=False):
            pass
    except grpc.RpcError as error:
        assert error.code() in REFUSALS, error
    call.cancel()


@given(
    messages=st.lists(inputs | st.floats(0, 0.05), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    end=st.floats(0.001, 0.3),
    cancelled=st.booleans(),
)
def test_streams_that_end_at_any_moment(stub, messages, seed, end, cancelled):
    """By the deadline of the caller, or by a cancel, while messages are sent with pauses."""

    def paced() -> Iterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(config=pb.GenerateConfig(turn=turn(seed)))
        for message in messages:
            if isinstance(message, float):
                time.sleep(message)
            else:
                yield message

    call = stub.Generate(paced(), timeout=HANG_SECONDS if cancelled else end)
    if cancelled:
        timer = threading.Timer(end, call.cancel)
        timer.start()
    try:
        list(call)
    except grpc.RpcError as error:
        assert error.code() in REFUSALS | {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}, error


@given(method=st.sampled_from(["Generate", *UPLOADS]), messages=st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes(channel, method, messages):
    call = channel.stream_stream(METHODS + method)
    answers(call(iter(messages), timeout=HANG_SECONDS))


@st.composite
def uploads(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """A method, and the messages of an upload with some mistakes or none."""
    method = draw(st.sampled_from(list(UPLOADS)))
    kind, config = UPLOADS[method]
    auditions = 0
    if method != "EncodeLatents":
        config = type(config).FromString(config.SerializeToString())
        if draw(st.booleans()):
            config.preview.CopyFrom(draw(random_messages(pb.Preview)))
        auditions = draw(st.integers(0, 2)) if config.preview.auditions or draw(st.integers(0, 9)) == 0 else 0
    data = bytearray(recording(draw(st.integers(0, 50))))
    for _ in range(draw(st.integers(0, 3))):  # bytes that differ, in the header or behind it
        data[draw(st.integers(0, 60) | st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    data = data[: draw(st.just(len(data)) | st.integers(0, len(data)))]
    size = draw(st.integers(500, 5000))
    messages = [kind(config=config)]
    for at in range(0, len(data), size):
        offset = at + draw(st.sampled_from([0] * 40 + [1, -1]))
        messages.append(kind(audio=pb.AudioPart(data=bytes(data[at : at + size]), offset_bytes=offset)))
    total = len(data) + draw(st.sampled_from([0] * 10 + [1]))
    sha = draw(st.sampled_from([b"", hashlib.sha256(data).digest(), bytes(32)]))
    messages.append(kind(commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=total, sha256=sha)])))
    messages += [kind(audition=draw(random_messages(pb.Audition))) for _ in range(auditions)]
    match draw(st.sampled_from(["whole"] * 4 + ["cut", "swapped", "doubled", "random"])):
        case "cut":
            messages = messages[: draw(st.integers(0, len(messages)))]
        case "swapped":
            messages = draw(st.permutations(messages))
        case "doubled":
            messages.insert(draw(st.integers(0, len(messages))), draw(st.sampled_from(messages)))
        case "random":
            messages.insert(draw(st.integers(0, len(messages))), draw(random_messages(kind)))
    return method, messages


@given(upload=uploads())
def test_any_upload(stub, upload):
    method, messages = upload
    if method == "EncodeLatents":
        try:
            assert stub.EncodeLatents(iter(messages), timeout=HANG_SECONDS).latents.data
        except grpc.RpcError as error:
            assert error.code() in REFUSALS, error
        return
    chunks = answers(getattr(stub, method)(iter(messages), timeout=HANG_SECONDS))
    if chunks is not None:
        [handle] = [chunk.handle for chunk in chunks if chunk.HasField("handle")]
        assert stub.GetVoice(pb.GetVoiceRequest(id=handle.id), timeout=HANG_SECONDS).handle.id == handle.id
        stub.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id, cascade=True), timeout=HANG_SECONDS)


@given(
    request=random_messages(pb.GetVoiceRequest)
    | random_messages(pb.ListVoicesRequest)
    | random_messages(pb.UpdateVoiceRequest)
    | random_messages(pb.DeleteVoiceRequest)
)
def test_any_question_about_voices(stub, request):
    method = type(request).__name__.removesuffix("Request")
    try:
        getattr(stub, method)(request, timeout=HANG_SECONDS)
    except grpc.RpcError as error:
        assert error.code() in REFUSALS, error
