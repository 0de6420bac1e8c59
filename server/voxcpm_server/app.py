"""From settings to a server that answers, and back down without cutting anyone off."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from voxcpm_grpc import checkpoint
from voxcpm_grpc.audio import DecodePool
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.pool.background import keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.ray_pool import FindAndLoad, RayPool
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import Settings, engines
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.handler import Parsing
from voxcpm_server.rpc.health import Health, enable_reflection
from voxcpm_server.rpc.service import VoxCPMService
from voxcpm_server.signals import Signals
from voxcpm_server.voices import presets
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore

log = logging.getLogger(__name__)

DATA = ".local/share/voxcpm-grpc/voices"  # under the user's home
GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile
STOP_SECONDS = 1.0  # what is left after draining are health watches, which never end by themselves


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `address` has the real port."""

    address: str
    pool: EnginePool
    gate: AdmissionGate


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; a second one does not wait for open streams.

    Prints one line to stdout when ready. Raises StartupError with one line for the operator.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    directory = _resolve(settings) if settings.pool == "processes" else None
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, directory))


@asynccontextmanager
async def running_server(
    settings: Settings, *, directory: Path | None = None, pool: EnginePool | None = None
) -> AsyncIterator[Running]:
    """A server for the length of the block, drained at its end. Raises StartupError.

    `directory` is the resolved checkpoint, where presets are looked for; `pool`, not yet started, replaces the engine
    that settings describe.
    """
    async with AsyncExitStack() as stack:
        threads = IoThreads()
        stack.callback(threads.close)
        if pool is None and settings.pool == "ray":
            pool = _ray_pool(settings)
            directory = _here(settings)
            stack.push_async_callback(pool.close)
            await pool.join()
        server = grpc.aio.server(interceptors=(Parsing(),), options=_options(settings))
        address = _bind(server, settings.listen)  # before the model loads: a taken port should not cost minutes
        stack.push_async_callback(server.stop, 0)
        if pool is None:
            directory = directory or await threads.run(_resolve, settings)
            pool = EnginePool.of_processes(
                directory, _name(settings), engines(settings), settings.supervision, log_level=settings.log_level
            )
        stack.push_async_callback(pool.close)
        decoder = DecodePool(settings.decode_workers)
        stack.push_async_callback(decoder.close)
        await pool.start()
        try:
            await decoder.start()
        except VoxCPMError:
            raise StartupError("the processes that decode uploads did not start; the log may say why") from None
        url = settings.voices.url or str(Path.home() / DATA)
        objects = await threads.run(Objects, url, settings.voices.timeout_seconds)
        store = await stack.enter_async_context(VoiceStore(objects, settings.voices, pool.info.fingerprint))
        library = VoiceCatalog(store)
        studio = VoiceBuilder(pool, decoder, library, threads, settings.limits)
        listed = () if directory is None else await threads.run(presets.read, directory)
        library.keep(await presets.make(listed, studio), presets.default(listed, settings.voices.default))
        gate, health = AdmissionGate(settings.limits.max_streams), Health()
        tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(
            VoxCPMService(
                pool=pool,
                studio=studio,
                library=library,
                threads=threads,
                gate=gate,
                limits=settings.limits,
            ),
            server,
        )
        await health.register(server)
        enable_reflection(server)
        await server.start()
        gc.collect()
        gc.freeze()  # nothing loaded so far ever goes away; walking it again would hold up the event loop
        gc.set_threshold(GC_THRESHOLD)
        await health.say(serving=pool.healthy)
        watch = keep_running(lambda: _watch(pool, health), "the watch over the engines")
        stack.callback(watch.cancel)
        try:
            yield Running(address, pool, gate)
        finally:
            watch.cancel()
            await _drain(server, gate, health, settings.drain_seconds)


async def _drain(server: grpc.aio.Server, gate: AdmissionGate, health: Health, seconds: float) -> None:
    await health.shut_down()  # first, so that balancers look elsewhere: stopping closes the listener at once
    gate.close()
    if gate.streams:
        log.info("draining streams=%d seconds=%g", gate.streams, seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await gate.idle()
    await server.stop(STOP_SECONDS if not gate.streams else 0)


async def _watch(pool: EnginePool, health: Health) -> None:
    """What balancers hear follows the engines."""
    async for serving in pool.health():
        log.log(logging.INFO if serving else logging.ERROR, "health serving=%s", serving)
        await health.say(serving=serving)


async def _serve(settings: Settings, directory: Path | None) -> None:
    signals = Signals()
    if settings.fronts > 1:
        from voxcpm_server.main import serve_fronts  # which are made of what is here

        await serve_fronts(settings, directory, _name(settings), signals, announce)
        return
    async with running_server(settings, directory=directory) as running:
        announce(settings, running.pool.info, running.address)
        await signals.wait(running.pool.closed_or_given_up())


def announce(settings: Settings, info: ModelInfo, address: str) -> None:
    """The line that says that a server is ready."""
    devices = list(engines(settings))
    where = info.device if len(devices) == 1 else ",".join(devices)
    print(f"listening on {address} model={info.name} device={where} dtype={info.dtype}", flush=True)


def _resolve(settings: Settings) -> Path:
    return checkpoint.resolve(settings.model, settings.revision, settings.cache_dir)


def _ray_pool(settings: Settings) -> RayPool:
    """Engines on nodes that look for the model themselves: one that is a directory must be there on all of them."""
    path = Path(settings.model)
    model = str(path.absolute()) if settings.model != "demo" and path.is_dir() else settings.model
    find = partial(checkpoint.resolve, model, settings.revision, settings.cache_dir, progress=False)
    return RayPool(FindAndLoad(find, _name(settings), settings.engine), settings)


def _here(settings: Settings) -> Path | None:
    """The model's directory, if it is on this host without a download."""
    if settings.model == "demo":
        return _resolve(settings)
    return path if (path := Path(settings.model)).is_dir() else None


def _name(settings: Settings) -> str:
    """What callers see of where the model came from: never a path."""
    path = Path(settings.model)
    return path.resolve().name if path.is_dir() or path.is_absolute() else settings.model


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(settings.fronts_share_port)),  # else two servers would each get some of the calls
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _bind(server: grpc.aio.Server, listen: str) -> str:
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if not port:
        raise StartupError(f"cannot listen on {listen}: the port is taken, or the address is not this host's")
    return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
