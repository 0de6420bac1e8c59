"""A front in this process over a fake pool, whose audio is deterministic."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from support.clients import status_details
from support.clients.grpc_types import CLIENT_TOO_LATE
from support.clients.status_details import Details
from support.doubles import fake_engine
from support.engines.voice_parts import latents_of, voice_part
from support.servers import voice_stores
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.audio.uploads import DecodePool
from voxcpm_grpc.errors import TooLong
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished, FinishReason
from voxcpm_grpc.ipc.messages import Registration
from voxcpm_grpc.models.voxcpm.config.abilities import sampling_options
from voxcpm_grpc.pool.adapter_catalog import AdapterCatalog, AdapterNames, registered
from voxcpm_grpc.request import Adapter, ModelInfo, Request, Role, VoicePart, content_of
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.contracts.known import contracts
from voxcpm_server.models import Model, Models, model_names
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.server import RpcServer
from voxcpm_server.services.speech import VoxCPMService
from voxcpm_server.text.lexicon import Lexicon, WordList
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.presets import Preset
from voxcpm_server.voices.presets import load as load_presets
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.voices.uploads import UploadBudget
from voxcpm_server.wire.generate import RequestReader
from voxcpm_server.wire.uploads import UploadReader

np.random.default_rng(0)  # the first call loads modules; do that before any test

STALLED_CHECKS = 30  # a busy host may suspend this process during one of them
INFO = replace(
    fake_engine.INFO, fingerprint="f" * 40, max_model_len=4096, max_slots=4, options=sampling_options((4, 6, 10))
)
STEP = INFO.samples_per_step


@dataclass
class FakePool:
    """Has the interface of EnginePool. The speech of a request has `char_steps` steps of noise for each character."""

    info: ModelInfo = INFO
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    step_seconds: float = 0.0
    char_steps: int = 1
    hold_after: int | None = None  # after this many steps in all, none is made until `release`
    released: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[Request] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    failures: dict[str, tuple[int, BaseException]] = field(
        default_factory=dict
    )  # by text: an error, and the number of steps before it
    seeds_that_run_on: set[int] = field(default_factory=set)  # of requests whose speech is too long for its text
    steps: int = 0
    encoded: int = 0
    decoding: int = 0
    healthy: bool = True
    replicas: tuple[()] = ()  # it has no engines
    continuations: int = 0
    names: AdapterNames = field(default_factory=AdapterNames)  # of LoRA adapters
    registrations: list[Registration] = field(default_factory=list)
    opening: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # of the speech of every request
    max_positions: int = 10**9  # of a request: its patches, all of its text, and the characters to speak

    def generate(
        self,
        request: Request,
        *,
        window: int = 128,
        first_limit: int | None = None,
        seconds_left: float | None = None,
        max_wait: float = 30.0,
    ) -> AsyncGenerator[Event]:
        assert first_limit is not None, "the front raises the limit when it has sent audio"
        self.requests.append(request)
        self.waiting.add(request.id)
        return _Stream(self, request, first_limit)  # type: ignore[return-value]

    @cached_property
    def adapters(self) -> AdapterCatalog:
        return AdapterCatalog(tuple, self.names, "front")

    def set_adapters(self, *names: str, content: str = "1") -> None:
        """Have adapters of these names and no others, whose fingerprints are their names with `content` behind."""
        for one in self.registrations:
            self.names.change("", msgspec.structs.replace(one, is_over=True))
        self.registrations = [
            registered(Adapter(fingerprint=f"{name}{content}", directory="", name=name, source="")) for name in names
        ]
        for one in self.registrations:
            self.names.change("", one)

    @property
    def spoken_with(self) -> list[str]:
        """The fingerprint of the adapter of each request; empty for none."""
        return [content_of(request.conditioning.adapter) for request in self.requests]

    def waits_for_engine(self, call: Any) -> bool:
        return False

    def waits_for_slot(self, call: Any) -> bool:
        return call.request.id in self.waiting

    def release(self) -> None:
        """Make all further steps without a stop."""
        self.hold_after = None
        self.released.set()

    async def stalled(self) -> None:
        """Wait until no step is made for a while, because no audio is taken."""
        made, unchanged = -1, 0
        async with asyncio.timeout(HANG_SECONDS):
            while unchanged < STALLED_CHECKS:
                unchanged = unchanged + 1 if made == self.steps else 0
                made = self.steps
                await asyncio.sleep(0.01)

    async def check(self, request: Request) -> None:
        if (positions := _positions(request)) > self.max_positions:
            raise TooLong(positions, self.max_positions)

    async def encode(self, waveform: np.ndarray, role: Role) -> VoicePart:
        self.encoded += 1
        if self.hold_after is not None:
            await self.released.wait()
        return voice_part(await asyncio.to_thread(_encoded, waveform, role is Role.PROMPT))

    def made(self, request: Request, count: int) -> VoicePart:
        """The speech of a request, of so many steps."""
        return voice_part(np.full((count, 4, 8), len(request.text), np.float32))

    async def decode(self, part: VoicePart) -> AsyncGenerator[np.ndarray]:
        self.decoding += 1
        try:
            for patch in latents_of(part):
                await asyncio.sleep(0)
                yield np.full(self.info.samples_per_step, patch.mean(), np.float32)
        finally:
            self.decoding -= 1


def _positions(request: Request) -> int:
    prompt, reference = request.conditioning.prompt, request.conditioning.reference
    patches = sum(part.steps for part in (prompt, reference) if part is not None)
    return patches + (0 if prompt is None else len(prompt.text)) + 2 * len(request.text)


def _encoded(waveform: np.ndarray, pad_left: bool) -> np.ndarray:
    missing = -len(waveform) % INFO.input_samples_per_step
    padded = np.pad(waveform, (missing, 0) if pad_left else (0, missing))
    shape = INFO.latents
    assert shape is not None
    frames = padded.reshape(-1, shape.frames, INFO.input_samples_per_step // shape.frames)
    return np.repeat(frames.mean(axis=2, keepdims=True), shape.dim, axis=2).astype(np.float32)


def speech(request: Request, step: int) -> np.ndarray:
    """The audio of a step of the fake engine, float32 [960]; it depends on all of the request."""
    text = f"({request.style}){request.text}" if request.style else request.text
    inputs = [text, request.turn, request.segment, request.sampling.seed, step]
    for part in (request.conditioning.prompt, request.conditioning.reference):
        inputs.append(0.0 if part is None else sum(float(array.sum()) for array in part.content.values()))
    key = int.from_bytes(hashlib.blake2b(repr(inputs).encode(), digest_size=8).digest(), "little")
    return (np.random.default_rng(key).random(INFO.samples_per_step, np.float32) - 0.5) * 0.5


class _Stream:
    """Like an EngineCall: the request is submitted before the first iteration, and `aclose` cancels it."""

    def __init__(self, pool: FakePool, request: Request, limit: int) -> None:
        self.pool = pool
        self.request = request
        self.engine = "fake"
        self.continuations = 0
        self.needs_text = False
        self.limit = limit
        self.allowed = asyncio.Event()
        self._created = asyncio.get_running_loop().time()
        self.events = self._run()
        self.closed = False

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Event:
        return await anext(self.events)

    def cancel(self) -> None:
        """Its events end when its reader is cancelled."""

    @property
    def waited_seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._created

    async def forward(self, receive: Callable[[Event], bool]) -> bool:
        async for event in self:
            if receive(event):
                return True
        return False

    def allow(self, limit: int) -> None:
        self.limit = max(self.limit, limit)
        self.allowed.set()

    async def aclose(self) -> None:
        await self.events.aclose()
        self.pool.waiting.discard(self.request.id)

    async def _run(self) -> AsyncGenerator[Event]:
        pool, request = self.pool, self.request
        after, failure = pool.failures.get(request.text, (-1, None))
        try:
            if (positions := _positions(request)) > pool.max_positions:
                raise TooLong(positions, pool.max_positions)
            await pool.slots.acquire()
            pool.waiting.discard(request.id)
            pool.running.add(request.id)
            if failure and after < 0:
                raise failure
            yield Admitted(queue_seconds=0.01, prompt_tokens=len(request.text), cached_tokens=2)
            whole = len(request.text) * pool.char_steps
            count = min(whole, request.sampling.max_steps or 10**6)
            for step in range(count):
                await asyncio.sleep(pool.step_seconds)
                if pool.hold_after is not None and pool.steps >= pool.hold_after:
                    await pool.released.wait()
                if failure and step == after:
                    raise failure
                while step >= self.limit:
                    self.allowed.clear()
                    await self.allowed.wait()
                pool.steps += 1
                samples, opening = speech(request, step), pool.opening[step * STEP : (step + 1) * STEP]
                samples[: len(opening)] = opening
                yield AudioChunk(index=step, samples=samples)
            reason = FinishReason.MAX_STEPS if count < whole else FinishReason.STOP
            kept = pool.made(request, count) if request.keep_speech else None
            ran_on = request.sampling.seed in pool.seeds_that_run_on
            yield Finished(reason=reason, steps=count, engine_seconds=0.02, speech=kept, ran_on=ran_on)
        finally:
            pool.waiting.discard(request.id)
            if request.id in pool.running:
                pool.running.discard(request.id)
                pool.slots.release()


@dataclass
class Served:
    """A running front and a client."""

    pool: FakePool
    store: VoiceStore
    rpc: RpcServer
    gate: AdmissionGate
    uploads: UploadBudget
    address: str
    channel: grpc.aio.Channel
    stub: Any
    directory: Path
    pools: Sequence[FakePool]  # of each model
    models: Models

    async def generate(self, *messages: Any, **options: Any) -> list[pb.AudioChunk]:
        """All chunks of a Generate stream of these messages: texts, or values of the fields of GenerateRequest."""
        return [chunk async for chunk in self.stub.Generate(iter([request(m) for m in messages]), **options)]

    async def code_at_the_deadline(self, *messages: Any, seconds: float) -> grpc.StatusCode:
        """The status of a stream of these messages, which does not end by itself, at a deadline in so many seconds.

        The deadline is later if it passes before the client's first write.
        """
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.generate(*messages, timeout=seconds)
        if caught.value.details() != CLIENT_TOO_LATE:
            return caught.value.code()
        assert 4 * seconds < HANG_SECONDS
        return await self.code_at_the_deadline(*messages, seconds=4 * seconds)

    async def idle(self) -> None:
        """Wait until no request is in the pool and no RPC is open."""
        await until(lambda: not (self.pool.running or self.pool.waiting or self.gate.streams))


WRAPPED = {
    pb.GenerateConfig: "config",
    pb.TurnConfig: "turn",
    pb.Flush: "flush",
    pb.Interrupt: "interrupt",
    pb.Finish: "finish",
}


def request(message: Any) -> pb.GenerateRequest:
    if isinstance(message, pb.GenerateRequest):
        return message
    if isinstance(message, str):
        return pb.GenerateRequest(text=message)
    return pb.GenerateRequest(**{WRAPPED[type(message)]: message})


ServeFront = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve_front(tmp_path: Path, decode_pool: DecodePool) -> ServeFront:
    """`async with serve_front(**limits) as served`; `server` has other settings."""

    @asynccontextmanager
    async def serve(
        pool: FakePool | None = None,
        others: Sequence[FakePool] = (),
        max_voices: int = 100,
        max_voices_per_caller: int | None = None,
        url: str = "",
        presets: Sequence[tuple[Preset, bytes]] = (),
        default_voice: str = "auto",
        server: Mapping[str, Any] = MappingProxyType({}),
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        lexicon: Mapping[str, str] = MappingProxyType({}),
        normalizer: Any = None,
        aligners: Any = None,
        **limits: Any,
    ) -> AsyncIterator[Served]:
        pool = pool or FakePool()
        settings = Settings(listen="127.0.0.1:0", limits=LimitSettings(**limits), **server)
        threads = IoThreads()
        directory = tmp_path / "voices"
        voices = VoiceSettings(
            max_voices=max_voices, max_voices_per_caller=max_voices_per_caller, timeout_seconds=HANG_SECONDS
        )
        pools: Any = [pool, *others]
        names = model_names(pools)
        store = VoiceStore(Objects(url or str(directory)), voices, names)
        models: list[Model] = []
        for each in pools:
            catalog = VoiceCatalog(store, each.info.fingerprint, names)
            builder = VoiceBuilder(each, decode_pool, catalog, threads, settings.limits)
            await load_presets(catalog, each.info, presets, builder, default_voice)
            reader = RequestReader(
                each.info, settings.limits, each.adapters.find, style_in_text=settings.text.style_in_text
            )
            models.append(Model(each.info, each, builder, catalog, reader, UploadReader(reader)))
        offered = contracts(settings.contracts)
        rpc = RpcServer(settings, metrics=metrics, tracing=tracing, contracts=offered)
        gate = AdmissionGate(settings.limits)
        made = Models(models)
        service = VoxCPMService(
            models=made,
            threads=threads,
            authenticator=Authenticator(settings),
            calls=rpc.calls,
            gate=gate,
            limits=settings.limits,
            lexicon=Lexicon(WordList(lexicon)),
            normalizer=normalizer,
            aligners=aligners,
            metrics=rpc.recent,
            tracing=tracing,
        )
        rpc.serve(service, {one.name: one.implement(service, made) for one in offered})
        rpc.set_ready(True)
        address = await rpc.open()
        try:
            async with grpc.aio.insecure_channel(address) as channel, store:
                stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
                yield Served(pool, store, rpc, gate, service.uploads, address, channel, stub, directory, pools, made)
        finally:
            await rpc.stop()
            threads.close()

    return serve


@pytest.fixture(scope="session")
def decode_pool() -> DecodePool:
    return DecodePool(1, timeout=HANG_SECONDS)


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    with voice_stores.s3_bucket() as url:
        yield url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_url" in metafunc.fixturenames:
        metafunc.parametrize("store_url", str(metafunc.config.getoption("--stores")).split(","), indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty voice store."""
    if request.param == "folder":
        return str(tmp_path / "voices")
    root = "memory:/" if request.param == "memory" else request.getfixturevalue("bucket")
    return f"{root}/{uuid.uuid4().hex}"


@pytest.fixture
def servers(store_url: str) -> voice_stores.Servers:
    """Voice stores of several servers, on each kind of filesystem."""
    return voice_stores.Servers(store_url)


@pytest.fixture
def folder(tmp_path: Path) -> voice_stores.Servers:
    """Voice stores of several servers, in a folder."""
    return voice_stores.Servers(str(tmp_path / "voices"))


@pytest.fixture
async def served(serve_front: ServeFront) -> AsyncIterator[Served]:
    async with serve_front() as front:
        yield front


@pytest.fixture
def fake() -> type[FakePool]:
    return FakePool


@pytest.fixture
def spoken_by() -> Callable[[Request, int], np.ndarray]:
    """(request, step) -> the audio of the fake engine."""
    return speech


@pytest.fixture
def details_of() -> Callable[[grpc.aio.AioRpcError], Details]:
    return status_details.details_of
