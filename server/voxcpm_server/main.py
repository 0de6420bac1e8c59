"""Several server processes on one host: they share its engines, its voices and, where the system can, its port."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.host.attached import Addresses, AttachedPool, begin, joined
from voxcpm_grpc.pool.host.engine_host import EngineHost
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import Settings, engines
from voxcpm_server.app import loop_factory, running_server
from voxcpm_server.signals import Signals

MAX_PORT = 65535


async def serve_fronts(
    settings: Settings,
    directory: Path | None,
    name: str,
    signals: Signals,
    announce: Callable[[Settings, ModelInfo, str], None],
) -> None:
    """Serve with `settings.fronts` processes until a signal comes; then they drain. Raises StartupError."""
    if directory is None:
        raise StartupError("fronts share the engines of their host; on Ray, run several servers on one cluster instead")
    if (settings.voices.url or "").startswith("memory:"):
        raise StartupError("voices.url is in memory, where fronts do not see each other's voices; name a folder")
    with reserved(settings.listen, settings.fronts, shared=settings.fronts_share_port) as addresses:
        host = EngineHost.of_processes(
            directory, name, engines(settings), settings.supervision, log_level=settings.log_level
        )
        fronts = {
            f"front {number}": partial(
                main,
                settings=settings.model_copy(update={"listen": address}),
                directory=directory,
                places=tuple(host.places),
            )
            for number, address in enumerate(addresses)
        }
        try:
            await host.start(fronts, drain_seconds=settings.drain_seconds)
            announce(settings, host.info, ",".join(dict.fromkeys(addresses)))
            await signals.wait(host.given_up())
        finally:
            await host.close()


def main(addresses: Addresses, settings: Settings, directory: Path, places: tuple[str, ...]) -> None:
    """Serve with the engines of the host that listens at `addresses` until it says so. Runs in a process of its own."""
    begin(settings.log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(addresses, settings, directory, places))


async def _serve(addresses: Addresses, settings: Settings, directory: Path, places: tuple[str, ...]) -> None:
    async with joined(addresses) as line:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, line.stopped.set)
        try:
            pool = AttachedPool(line, places)
            async with running_server(settings, directory=directory, pool=pool) as running:
                line.say_ready(running.pool.info)
                await line.stopped.wait()
        except StartupError as error:
            line.say_failed(str(error))
            sys.exit(1)


@contextmanager
def reserved(listen: str, count: int, *, shared: bool) -> Iterator[list[str]]:
    """An address to listen on for each front, the same for all of them if `shared`. Raises StartupError.

    A shared port is held for the length of the block, so that no one else takes it while a front is started again.
    """
    host, _, port = listen.rpartition(":")
    if listen.startswith("unix:") or not port.isdecimal():
        raise StartupError(f"fronts cannot listen on {listen}; name a host and a port, such as 127.0.0.1:50051")
    first = int(port)
    if not shared:
        if first + count - 1 > MAX_PORT:
            raise StartupError(f"{count} fronts need the ports from {first} on, and {MAX_PORT} is the last one")
        yield [f"{host}:{port}" for port in _free(host, *(first and first + number for number in range(count)))]
        return
    if not hasattr(socket, "SO_REUSEPORT"):
        raise StartupError("this system does not let processes share a port; set front_ports to consecutive")
    with _socket(host) as holder:
        [found] = _free(host, first)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(holder, host, found)
        yield [f"{host}:{found}"] * count


def _free(host: str, *ports: int) -> list[int]:
    """These ports, or for each 0 any, on which nobody listens now, not even one who would share them."""
    with ExitStack() as probes:
        return [_bind(probes.enter_context(_socket(host)), host, port) for port in ports]


def _socket(host: str) -> socket.socket:
    made = socket.socket(_resolved(host, 0)[0])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended may linger
    return made


def _bind(made: socket.socket, host: str, port: int) -> int:
    try:
        made.bind(_resolved(host, port)[1])
    except OSError:
        raise StartupError(
            f"cannot listen on {host}:{port}: the port is taken, or the address is not this host's"
        ) from None
    return made.getsockname()[1]


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    family, _, _, _, address = found[0]
    return family, address
