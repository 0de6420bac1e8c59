"""A program that uses every public name of the client. Type checkers judge it; nothing runs it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import voxcpm_client
from voxcpm_client import (
    DEFAULT_RETRY_SECONDS,
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT,
    Aborted,
    AlreadyExists,
    AsyncClient,
    AsyncSession,
    AsyncStream,
    AudioFormat,
    Audition,
    Cancelled,
    Chunk,
    Client,
    DeadlineExceeded,
    Encoding,
    Exhausted,
    FailedPrecondition,
    Flushed,
    Header,
    InternalError,
    Interrupted,
    InvalidArgument,
    Latents,
    ModelInfo,
    NotFound,
    Pause,
    PermissionDenied,
    Prompt,
    Recording,
    RegisteredLora,
    SegmentEvent,
    ServedModel,
    ServerStats,
    Session,
    Speech,
    SpeechError,
    SpeechOptions,
    SpeechWarning,
    Stream,
    Summary,
    TurnOptions,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    UnusableClient,
    Voice,
    VoiceName,
    VoiceOptions,
    WordTime,
    tls_credentials,
)

version: str = voxcpm_client.__version__
options: SpeechOptions = {"voice": "miles", "seed": 7, "segmentation": "manual", "timeout": None}
CALM: TurnOptions = {"style": "calm", "seed": 8, "speed": 0.9, "volume_gain_db": -3}
stored: VoiceOptions = {"name": "Ada", "labels": {"team": "a"}, "ttl": 60.0, "lora": "anna"}
noise: npt.NDArray[np.float32] = np.zeros(16000, np.float32)
recordings: list[Recording] = ["a.wav", Path("a.wav"), b"RIFF", io.BytesIO(b"RIFF"), (noise, 16000)]
permanent: tuple[type[SpeechError], ...] = (
    InvalidArgument,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    Unauthenticated,
    PermissionDenied,
    InternalError,
    Unimplemented,
)
unusable: type[RuntimeError] = UnusableClient
passing: tuple[type[SpeechError], ...] = (Aborted, Cancelled, DeadlineExceeded, Exhausted, Unavailable)


def words() -> Iterator[str]:
    yield from ("Hello, ", "world.")


async def tokens() -> AsyncIterator[str]:
    yield "Hello."


def describe(chunk: Chunk) -> str:
    samples: npt.NDArray[np.float32] = chunk.samples.astype(np.float32)
    flushed: Flushed | None = chunk.flushed
    interrupted: Interrupted | None = chunk.interrupted
    events: tuple[SegmentEvent, ...] = chunk.events
    tags = [answer.tag for answer in (flushed, interrupted) if answer is not None]
    return f"{chunk.offset} {chunk.seconds} {samples.mean()} {[event.input_end for event in events]} {tags}"


def keep(speech: Speech) -> float:
    header: Header = speech.header
    summary: Summary | None = speech.summary
    speech.save(Path("a.wav"))
    speech.save("a.raw")
    with Path("b.wav").open("wb") as file:
        speech.save(file)
    speech.save(io.BytesIO())
    return speech.seconds + speech.sample_rate + header.queue_seconds + (summary.wall_seconds if summary else 0.0)


def blocking() -> None:
    secure = Client(
        "tts.example:443",
        timeout=DEFAULT_TIMEOUT,
        tls=True,
        ca="ca.pem",
        cert=Path("cert.pem"),
        key="key.pem",
        api_key="secret",
        metadata={"x-team": "a"},
        retries=None,
        retry_seconds=DEFAULT_RETRY_SECONDS,
    )
    secure.close()
    Client("tts.example:443", credentials=tls_credentials("ca.pem", "cert.pem", "key.pem")).close()
    with Client(DEFAULT_TARGET) as client:
        keep(client.say("Hello.", **options))
        stream: Stream
        with client.speak(words(), voice=["prm_1", "ref_1"], format="pcm_f32le", max_lead=5.0) as stream:
            for chunk in stream:
                print(describe(chunk), stream.request_id, stream.header, stream.summary)
        client.speak("Hello.").speech()
        client.speak("Hello.").close()
        session: Session
        with client.session(**options) as session:
            session.send_text("One. ")
            session.flush(end_turn=True, tag="a")
            session.pause(0.25)
            session.interrupt(tag="b")
            session.finish()
        voice: Voice = client.add_prompt("a.wav", "The words. ", **stored)
        names: tuple[VoiceName, ...] = voice.names
        print([name.name for name in names if name.labels])
        client.add_reference((noise, 16000), name="Ada", preview=True)
        auditioned = client.add_reference(
            b"", preview=Audition(seed=7), auditions=["One.", Audition("Two.", style="sad")]
        )
        tried: Speech
        for tried in auditioned.auditions:
            print(tried.seconds)
        client.add_reference(b"", source=AudioFormat(Encoding.PCM_S16LE, 16000))
        client.add_hifi(voice.id, reference=keep_latents(client), **stored)
        latents: Latents = client.encode_latents(recordings[0], role="prompt")
        client.say("Hello.", prompt=Prompt(latents, "The words. "), reference=recordings[1])
        renamed: Voice = client.update_voice("Ada", name="Bea", labels={"team": "a"}, ttl=60.0, lora="")
        warning: SpeechWarning
        for warning in (*renamed.warnings, *client.say("Hello.").warnings, *stream.warnings, *latents.warnings):
            print(warning.kind, warning.message)
        for found in client.voices(kind="reference", labels={"team": "a"}):
            client.delete_voice(client.get_voice(found.id).id, missing_ok=True, cascade=True)
        info: ModelInfo = client.model_info(model="small")
        served: list[ServedModel] = client.list_models()
        print(client.say("Hello.", model=served[-1].name).seconds, client.voices(model=voice.model))
        print(info.limits.max_buffered_text_chars, info.voice_kinds, info.styles, client.health(), version)
        compressed = client.say("Hello.", format="mp3", bitrate=64_000, compression_level=5, priority="batch")
        client.say("A GIF.", lexicon={"GIF": "jif"})
        word: WordTime
        for word in client.say("Hello.", word_timestamps=True).words:
            print(word.text, word.start_samples, word.end_samples, word.input_start, word.input_end, word.estimated)
        print(compressed.audio, compressed.sample_count)
        other: Client = client.with_metadata({"authorization": "Bearer secret"})
        print(other.say("Hello.").seconds)
        stats: ServerStats = client.server_stats()
        print(stats.front.streams, [engine.slots_used for engine in stats.engines])
        registered: RegisteredLora = client.register_lora("anna", "hf://company/anna", sha256="00" * 32, model="tiny")
        print(registered.fingerprint, [one.streams for one in client.list_loras("tiny")])
        client.unregister_lora("anna", "tiny")
        client.drain_engine("engine cuda:0", restart=False)
        client.start_engine("engine cuda:0")


def keep_latents(client: Client) -> Recording:
    latents = client.encode_latents("b.wav", role="reference", source=None)
    print(latents.data.shape, latents.seconds)
    return "b.wav"


async def asynchronous() -> None:
    await AsyncClient("unix:/run/tts.sock").aclose()
    async with AsyncClient(DEFAULT_TARGET, timeout=None) as client:
        keep(await client.say(tokens(), **options))
        stream: AsyncStream
        async with client.speak(["Hello. ", Pause(0.3), "World."], style="calm", timesteps=4) as stream:
            await stream.start()
            async for chunk in stream:
                print(describe(chunk), stream.request_id, stream.header, stream.summary)
        await client.speak("Hello.").speech()
        await client.speak("Hello.").aclose()
        await stream.release()
        other: AsyncClient = client.with_metadata({"authorization": "Bearer secret"})
        print((await other.say("Hello.")).seconds)
        session: AsyncSession
        async with client.session(timeout=None, language="en") as session:
            await session.send_text("One. ")
            await session.flush(end_turn=True, tag="a")
            await session.pause(0.25)
            await session.interrupt(tag="b", played_samples=0)
            await session.set_turn(**CALM)
            await session.finish()
        try:
            voice = await client.add_prompt("a.wav", "The words. ", **stored)
            await client.add_reference(io.BytesIO(b"RIFF"), **stored)
            await client.add_hifi("a.wav", "The words. ", reference=voice.reference_id)
            await client.encode_latents("a.wav", role="reference")
            print((await client.update_voice("Ada", name="")).name, stream.warnings)
        except permanent as error:
            print(error.code, error.message, error.field, error.request_id)
        except passing as error:
            print(error.retry_after or 0.0)
        for found in await client.voices():
            await client.delete_voice((await client.get_voice(found.id)).id)
        print((await client.model_info()).max_slots, await client.health(), (await client.server_stats()).engines)
        print((await client.register_lora("anna", "/srv/anna")).engines, await client.list_loras())
        await client.unregister_lora("anna")
        await client.drain_engine("engine cuda:0", restart=True)
        await client.start_engine("engine cuda:0")
