"""A fake server with the real contract. Its audio for each character is a run of equal samples."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import BadRequest, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.audio.wav import header as wav_header
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

SERVING = 1  # grpc.health.v1
RATE = 16000
RUN = 160  # samples of one character


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The failure of one call, after `after_chunks` chunks of audio."""

    code: grpc.StatusCode
    message: str = "a fault"
    after_chunks: int = 0
    field: str = ""
    retry_after: float | None = None
    pushback: str | None = None
    request_id: str = ""
    garbage: bool = False
    method: str = ""  # empty: any but GetModelInfo, which a long text calls beside its stream

    def abort(self, context: grpc.ServicerContext) -> None:
        details = []
        if self.request_id:
            details.append(RequestInfo(request_id=self.request_id))
        if self.field:
            details.append(BadRequest(field_violations=[BadRequest.FieldViolation(field=self.field)]))
        if self.retry_after is not None:
            info = RetryInfo()
            info.retry_delay.FromMilliseconds(round(1000 * self.retry_after))
            details.append(info)
        packed = [Any() for _ in details]
        for box, detail in zip(packed, details, strict=True):
            box.Pack(detail)
        status = Status(code=self.code.value[0], message=self.message, details=packed)
        trailers: list[tuple[str, str | bytes]] = []
        if details or self.garbage:
            trailers.append(("grpc-status-details-bin", b"\xff" if self.garbage else status.SerializeToString()))
        if self.pushback is not None:
            trailers.append(("grpc-retry-pushback-ms", self.pushback))
        context.set_trailing_metadata(tuple(trailers))
        context.abort(self.code, self.message)


@dataclass
class Call:
    """One RPC as the server received it."""

    method: str
    received: list = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.received if message.HasField("text"))

    @property
    def config(self) -> pb.GenerateConfig:
        return self.received[0].config


def timed_words(text: str, at: int, turn: int = 0, segment: int = 0, start: int = 0) -> list[pb.WordTime]:
    """The words of a text whose audio begins at a position, in which each character takes as long as the others."""
    return [
        pb.WordTime(
            turn_index=turn,
            segment_index=segment,
            text=word[0],
            input_start=start + word.start(),
            input_end=start + word.end(),
            start_samples=at + word.start() * RUN,
            end_samples=at + word.end() * RUN,
        )
        for word in re.finditer(r"\S+", text)
    ]


class Servicer(tts_pb2_grpc.VoxCPMServiceServicer):
    """`faults` are the failures of the next calls. `calls` has all calls. While `hold` is cleared, Generate waits.

    Every text message is a segment. `max_text_chars` is the limit in the information about the model.
    """

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.calls: list[Call] = []
        self.handles: dict[str, pb.VoiceHandle] = {}
        self.recordings: dict[str, bytes] = {}
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Condition()
        self.max_text_chars = 20_000
        self.older_model = False  # that takes prompts alone
        self.times_words = True  # False: an older server
        self.statuses = {"": SERVING, "liveness": SERVING}  # by the name of the health service
        self.warnings: list[pb.Warning] = []  # of the next streams and uploads

    def fail(self, code: str, times: int = 1, **details) -> None:
        self.faults.extend([Fault(code=grpc.StatusCode[code], **details)] * times)

    @property
    def streams(self) -> list[Call]:
        """The calls of Generate. A long text also asks for the limits of the server."""
        return [call for call in self.calls if call.method == "Generate"]

    def samples(self, text: str) -> np.ndarray:
        """int16 [160 * len(text)]"""
        return np.repeat(np.array([100 + 7 * (ord(char) % 4000) for char in text], np.int16), RUN)

    def compressed(self, text: str) -> bytes:
        """Stands for compressed audio, which the client does not decode."""
        return text.encode()

    def wait_for_text(self, text: str, seconds: float = HANG_SECONDS) -> bool:
        """True once the newest stream has received exactly `text`; False after `seconds`."""
        with self.arrived:
            return self.arrived.wait_for(lambda: bool(self.streams) and self.streams[-1].text == text, seconds)

    def wait_for_stream(self, request_id: str, seconds: float = HANG_SECONDS) -> bool:
        """True once the stream of this request has begun, and so those that were begun before it on its connection."""

        def has_begun() -> bool:
            return any(call.received and call.config.request_id == request_id for call in self.streams)

        with self.arrived:
            return self.arrived.wait_for(has_begun, seconds)

    def wait_for_calls(self, number: int, seconds: float = HANG_SECONDS) -> bool:
        """True once that many calls were made; False after `seconds`."""
        with self.arrived:
            return self.arrived.wait_for(lambda: len(self.calls) >= number, seconds)

    def Generate(self, request_iterator, context):
        call, fault = self._begin("Generate", context)
        chunks, at, sequence, turn, turn_start = 0, 0, 1, 0, 0
        encoding = pb.AUDIO_ENCODING_PCM_S16LE
        words: list[pb.WordTime] = []
        timed = 0  # words that were sent
        for request in request_iterator:
            with self.arrived:
                call.received.append(request)
                self.arrived.notify_all()
            match request.WhichOneof("request"):
                case "config":
                    encoding = request.config.output.encoding or encoding
                    rate = request.config.output.sample_rate_hz or RATE
                    yield pb.AudioChunk(
                        header=pb.StreamHeader(
                            request_id=request.config.request_id,
                            format=pb.AudioFormat(encoding=encoding, sample_rate_hz=rate),
                            model=request.config.model or "fake",
                            seed=request.config.turn.sampling.seed or 99,
                        ),
                        warnings=self.warnings,
                    )
                    while not self.hold.wait(0.02) and context.is_active():
                        pass
                case "text":
                    if fault and chunks == fault.after_chunks:
                        fault.abort(context)
                    audio = self._encode(request.text, encoding, first=at == 0)
                    count = RUN * len(request.text)
                    started = pb.SegmentEvent(
                        kind=pb.SEGMENT_EVENT_KIND_STARTED,
                        text=request.text,
                        turn_index=turn,
                        segment_index=chunks,
                        at_samples=at,
                        input_start=(at - turn_start) // RUN,
                        input_end=(at - turn_start + count) // RUN,
                    )
                    yield pb.AudioChunk(
                        audio=audio,
                        sequence=sequence,
                        offset_samples=at,
                        sample_count=count,
                        turn_index=turn,
                        segment_index=chunks,
                        segment_events=[started],
                        words=words[timed:],
                    )
                    timed = len(words)
                    if call.config.word_timestamps and self.times_words:
                        words += timed_words(request.text, at, turn, chunks, (at - turn_start) // RUN)
                    chunks, at, sequence = chunks + 1, at + count, sequence + 1
                case "flush":
                    if request.flush.end_turn and at > turn_start:
                        turn, turn_start = turn + 1, at
                    yield pb.AudioChunk(
                        sequence=sequence, flush_done=pb.FlushDone(tag=request.flush.tag, at_samples=at)
                    )
                    sequence += 1
                case "interrupt":
                    interrupted = pb.Interrupted(tag=request.interrupt.tag, sent_samples=at)
                    if request.interrupt.HasField("played_samples"):
                        interrupted.heard_turn_index, interrupted.heard_estimated = turn, True
                        interrupted.heard_input_end = (request.interrupt.played_samples - turn_start) // RUN
                        interrupted.dropped_flush_tags.extend(["a", ""])
                    yield pb.AudioChunk(sequence=sequence, interrupted=interrupted)
                    sequence += 1
                case "finish":
                    break
        if context.is_active():
            summary = pb.StreamSummary(finish_reason=pb.FINISH_REASON_COMPLETE, total_samples=at, segments=chunks)
            summary.time_to_first_audio.FromMilliseconds(250)
            late = [warning for warning in self.warnings if warning.kind == pb.WARNING_KIND_LANGUAGE]
            summary.words.extend(words)
            yield pb.AudioChunk(
                sequence=sequence, offset_samples=at, summary=summary, warnings=late, words=words[timed:]
            )

    def _encode(self, text: str, encoding: int, *, first: bool) -> bytes:
        samples = self.samples(text)
        if encoding == pb.AUDIO_ENCODING_PCM_F32LE:
            return (samples / np.float32(32768)).astype("<f4").tobytes()
        if encoding not in (pb.AUDIO_ENCODING_PCM_S16LE, pb.AUDIO_ENCODING_WAV):
            return self.compressed(text)
        header = wav_header(RATE) if first and encoding == pb.AUDIO_ENCODING_WAV else b""
        return header + samples.astype("<i2").tobytes()

    def AddPrompt(self, request_iterator, context):
        config, recordings = self._upload("AddPrompt", request_iterator, context)
        yield from self._stored("prm_", pb.VOICE_KIND_PROMPT, config, recordings, config.transcript)
        yield from self._auditions(config, request_iterator, context)

    def AddReference(self, request_iterator, context):
        config, recordings = self._upload("AddReference", request_iterator, context)
        yield from self._stored("ref_", pb.VOICE_KIND_REFERENCE, config, recordings)
        yield from self._auditions(config, request_iterator, context)

    def AddHifi(self, request_iterator, context):
        config, recordings = self._upload("AddHifi", request_iterator, context)
        yield from self._stored("hifi_", pb.VOICE_KIND_HIFI, config, recordings, config.uploaded_prompt.transcript)
        yield from self._auditions(config, request_iterator, context)

    def EncodeLatents(self, request_iterator, context):
        _, recordings = self._upload("EncodeLatents", request_iterator, context)
        frames = np.frombuffer(recordings[0][:64], np.uint8).astype("<f4").reshape(-1, 16)
        return pb.EncodeLatentsResponse(
            latents=pb.Latents(data=frames.tobytes(), feat_dim=16, model_fingerprint="fake-1")
        )

    def _upload(self, method, requests, context):
        call, fault = self._begin(method, context)
        parts: dict[int, bytearray] = {}
        for request in requests:
            call.received.append(request)
            match request.WhichOneof("request"):
                case "audio":
                    part = parts.setdefault(request.audio.role, bytearray())
                    if request.audio.offset_bytes != len(part):
                        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "gap")
                    part += request.audio.data
                case "commit":
                    for digest in request.commit.digests:
                        part = parts[digest.role]
                        if digest.total_bytes != len(part) or digest.sha256 != sha256(part).digest():
                            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "digest mismatch")
                    if fault:
                        fault.abort(context)
                    return call.received[0].config, {role: bytes(part) for role, part in parts.items()}
        return context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no commit")

    def _stored(self, prefix, kind, config, recordings, transcript=""):
        id = prefix + sha256(b"".join(recordings.values()) + transcript.encode()).hexdigest()[:16]
        options = config.options
        handle = pb.VoiceHandle(
            id=id,
            kind=kind,
            display_name=options.display_name,
            labels=options.labels,
            lora=options.lora,
            transcript=transcript,
            reused=id in self.handles,
        )
        handle.create_time.FromSeconds(1_700_000_000)
        if options.HasField("ttl"):
            handle.expire_time.FromSeconds(1_700_000_000 + options.ttl.seconds)
        self.handles[id] = handle
        self.recordings[id] = b"".join(recordings.values())
        format = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=RATE)
        seed = config.preview.turn.sampling.seed
        yield pb.AudioChunk(header=pb.StreamHeader(request_id=options.request_id, format=format, seed=seed))
        yield pb.AudioChunk(handle=handle, sequence=1, warnings=self.warnings)
        if config.preview.mode == pb.PREVIEW_MODE_RECONSTRUCTION:
            yield pb.AudioChunk(audio=self.samples("preview").tobytes(), sample_count=7 * RUN, sequence=2)
        if config.preview.mode == pb.PREVIEW_MODE_SYNTHESIS:
            text = config.preview.text or "the default"
            words = timed_words(text, 0) if config.preview.word_timestamps else ()
            yield pb.AudioChunk(
                audio=self.samples(text).tobytes(), sample_count=len(text) * RUN, sequence=2, words=words
            )

    def _auditions(self, config, requests, context):
        """Speaks auditions, each in two chunks; a text with a question mark fails."""
        at = len(config.preview.text) * RUN
        for turn, request in enumerate(requests if config.preview.auditions else (), 1):
            self.calls[-1].received.append(request)
            text = request.audition.text
            if "?" in text:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no questions")
            for half in (text[:1], text[1:]):
                audio = self.samples(half).tobytes()
                count = len(half) * RUN
                yield pb.AudioChunk(audio=audio, offset_samples=at, sample_count=count, turn_index=turn)
                at += count
            words = timed_words(text, at - len(text) * RUN, turn) if config.preview.word_timestamps else ()
            yield pb.AudioChunk(flush_done=pb.FlushDone(tag=request.audition.tag), turn_index=turn, words=words)

    def GetVoice(self, request, context):
        self._begin("GetVoice", context)
        return pb.GetVoiceResponse(handle=self._named(request.id, context))

    def UpdateVoice(self, request, context):
        self._begin("UpdateVoice", context)[0].received.append(request)
        handle = self._named(request.id, context)
        if request.HasField("display_name"):
            handle.display_name = request.display_name
        if request.HasField("lora"):
            handle.lora = request.lora
        if request.HasField("labels"):
            handle.labels.clear()
            handle.labels.update(request.labels.labels)
        return pb.UpdateVoiceResponse(handle=handle)

    def _named(self, name, context):
        for handle in self.handles.values():
            if name in (handle.id, handle.display_name):
                return handle
        Fault(code=grpc.StatusCode.NOT_FOUND, message="no such voice", field="id", request_id="r-7").abort(context)
        raise AssertionError("abort has raised")

    def ListVoices(self, request, context):
        self._begin("ListVoices", context)
        found = [handle for handle in self.handles.values() if request.kind in (0, handle.kind)]
        found = [handle for handle in found if dict(request.labels).items() <= dict(handle.labels).items()]
        start = int(request.page_token or 0)  # pages of two, so that there are several
        token = str(start + 2) if len(found) > start + 2 else ""
        return pb.ListVoicesResponse(handles=found[start : start + 2], next_page_token=token)

    def DeleteVoice(self, request, context):
        self._begin("DeleteVoice", context)
        if not request.allow_missing or request.id in self.handles:
            del self.handles[self._named(request.id, context).id]
        return pb.DeleteVoiceResponse()

    def GetModelInfo(self, request, context):
        _, fault = self._begin("GetModelInfo", context)
        if fault:
            fault.abort(context)
        info = pb.GetModelInfoResponse(
            model=request.model or "fake",
            output_sample_rate_hz=RATE,
            output_encodings=[pb.AUDIO_ENCODING_PCM_S16LE],
            inference_timesteps=[4, 10],
            presets=["anna", "otto"],
        )
        info.limits.max_buffered_text_chars = self.max_text_chars
        if self.older_model:
            info.voice_kinds.append(pb.VOICE_KIND_PROMPT)
            info.no_styles = True
        info.limits.max_prompt_duration.FromMilliseconds(60_500)
        return info

    def ListModels(self, request, context):
        self._begin("ListModels", context)
        small = pb.Model(name="small", is_default=True, serving=True, presets=["anna"], engines=2, engines_ready=1)
        return pb.ListModelsResponse(models=[small, pb.Model(name="large", model_fingerprint="e" * 40)])

    def _begin(self, method: str, context) -> tuple[Call, Fault | None]:
        call = Call(method)

        def ended() -> None:
            if context._state.client == "cancelled":  # no public attribute distinguishes it from a half-close
                call.cancelled.set()

        with self.arrived:
            self.calls.append(call)
            self.arrived.notify_all()
        if not context.add_callback(ended):  # the call has ended already
            ended()
        return call, self._fault(method)

    def _fault(self, method: str) -> Fault | None:
        if not self.faults or (self.faults[0].method or "any") != (
            "GetModelInfo" if method == "GetModelInfo" else "any"
        ):
            return None
        return self.faults.popleft()


class FakeServer(Servicer):
    target: str

    def health(self, request: bytes, context) -> bytes:
        name = StringValue.FromString(request).value
        if name not in self.statuses:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return bytes((8, self.statuses[name]))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    grpc_server = grpc.server(ThreadPoolExecutor(8))
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(fake, grpc_server)
    check = grpc.unary_unary_rpc_method_handler(fake.health)
    grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),)
    )
    fake.target = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield fake
    fake.hold.set()
    grpc_server.stop(0).wait(5)
