"""A front in a process of its own, and the engines that its host attaches to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path

import zmq
import zmq.asyncio

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc import child_process, messages
from voxcpm_grpc.ipc.child_process import Addresses, mailbox, received
from voxcpm_grpc.ipc.messages import Beat, Command, EngineCame, EngineWent, Ready, Report, StartFailed, Stop
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import Launch
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import MAX_SECONDS, SupervisionSettings

PAUSE_SECONDS = 0.05  # a handle waits for its engine by itself
LINGER_MS = 1000
FOREVER = 1 << 62

SUPERVISION = SupervisionSettings(  # the host supervises, and says what has become of an engine
    silence_seconds=MAX_SECONDS, step_seconds=MAX_SECONDS, restart_seconds=PAUSE_SECONDS, restart_limit=FOREVER
)


class HostLine:
    """What a front hears of its host and says to it. `stopped` is set when it shall drain and end."""

    def __init__(self, context: zmq.asyncio.Context, letters: zmq.asyncio.Socket) -> None:
        self.context = context
        self.stopped = asyncio.Event()
        self._letters = letters
        self._meetings: dict[str, _Meeting] = {}  # by place

    def launches(self, places: Iterable[str]) -> list[Launch]:
        """How to reach the engine of each place, whenever there is one."""
        self._meetings = {place: _Meeting() for place in places}
        return [partial(AttachedHandle, place, self.context, meeting) for place, meeting in self._meetings.items()]

    def say_ready(self, info: ModelInfo) -> None:
        """That the front serves."""
        self._say(Ready(info))

    def say_failed(self, why: str) -> None:
        """That it cannot, in words for the operator."""
        self._say(StartFailed(why))

    async def listen(self) -> None:
        """Hear the host, for as long as the front lives."""
        while True:
            match messages.decode_command(await self._letters.recv()):
                case EngineCame(place, address):
                    self._meetings[place].begin(address)
                case EngineWent(place):
                    self._meetings[place].end()
                case Stop():
                    self.stopped.set()

    def _say(self, report: Report) -> None:
        self._letters.send(messages.encode_reports([report]))


class _Meeting:
    """Where the engine of a place can be met, if it is there, and whether it still is."""

    def __init__(self) -> None:
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()

    def begin(self, address: str) -> None:
        self._address.set_result(address)

    def end(self) -> None:
        self._gone.set()
        self._gone = asyncio.Event()
        self._address = asyncio.get_running_loop().create_future()

    async def engine(self) -> tuple[str, asyncio.Event]:
        """The address to listen at for the engine, once it is there, and what tells that it is gone."""
        gone = self._gone
        return await asyncio.shield(self._address), gone


class AttachedHandle:
    """The engine of a place of the host. It listens for it, and never starts or stops it."""

    def __init__(self, place: str, context: zmq.asyncio.Context, meeting: _Meeting) -> None:
        self.name = f"engine {place}"
        self._meeting = meeting
        self._gone = asyncio.Event()
        self._letters = mailbox(context)

    async def start(self) -> ModelInfo:
        address, self._gone = await self._meeting.engine()
        with _bound(self._letters, address):
            async with contextlib.aclosing(self.reports()) as batches:
                async for reports in batches:
                    match reports:
                        case [Ready(info), *_]:
                            return info
        raise StartupError(f"{self.name} was lost before it was attached")

    def post(self, command: Command) -> None:
        if not self._gone.is_set() and not self._letters.closed:
            self._letters.send(messages.encode_command(command), copy=False)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        async with contextlib.aclosing(received(self._gone, self._letters)) as batches:
            async for reports in batches:
                yield reports

    async def close(self, *, force: bool = False) -> None:
        self._letters.close()


@contextlib.contextmanager
def _bound(socket: zmq.asyncio.Socket, address: str) -> Iterator[None]:
    """Listens there for one peer. Its file goes then: ZeroMQ would leave one for each engine that ever was."""
    socket.bind(address)
    try:
        yield
    finally:
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


class AttachedPool(EnginePool):
    """The engines of a host, as one of its fronts uses them. It serves as soon as one of them is attached."""

    def __init__(self, line: HostLine, places: Iterable[str]) -> None:
        super().__init__(line.launches(places), SUPERVISION)

    async def start(self) -> None:
        for place in self.places:
            place.supervisor.begin()
        async for healthy in self.health():
            if healthy:
                return


def begin(log_level: str) -> None:
    """The first thing that a front's process does."""
    child_process.begin(log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the host decides what it means


@contextlib.asynccontextmanager
async def joined(addresses: Addresses) -> AsyncIterator[HostLine]:
    """The line to the host, and beats that prove that our event loop turns."""
    context = zmq.asyncio.Context()
    letters, beats = mailbox(context), context.socket(zmq.PUSH)
    letters.linger = LINGER_MS
    letters.connect(addresses.letters)
    beats.linger = 0
    beats.connect(addresses.beats)
    line = HostLine(context, letters)

    async def beat() -> None:
        while True:
            with contextlib.suppress(zmq.Again):
                await beats.send(messages.encode_reports([Beat(0.0, 0.0)]), zmq.DONTWAIT)
            await asyncio.sleep(messages.BEAT_SECONDS)

    tasks = keep_running(beat, "the front's sign of life"), keep_running(line.listen, "listening to the host")
    try:
        yield line
    finally:
        await cancel_and_wait(*tasks)
        context.destroy()  # with every socket in it: one that somebody forgot must not hold up the end
