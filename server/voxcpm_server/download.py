"""The search for a model, which may download it, in a process of its own that can be ended at any time."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

from voxcpm_grpc import checkpoint, progress
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.helper_process import SPAWN
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.progress import Progress, paced
from voxcpm_grpc.settings.schema import Settings


def find_model(settings: Settings) -> Path:
    """The directory of the checkpoint, downloaded if it is not here. Blocks. Raises StartupError."""
    return checkpoint.resolve(settings.model, settings.revision, settings.cache_dir, progress=False)


async def download(settings: Settings) -> Path:
    """Call `find_model` in another process, which ends if this is cancelled. Reports its progress. Raises StartupError.

    A thread could not be ended: the libraries for downloads start threads that the end of a process waits for.
    """
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_find, args=(sender, settings), name="download", daemon=True)
    arrived, on_progress = asyncio.Event(), progress.listener()
    on_progress(Progress(checkpoint.DOWNLOADING))
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(process.start)  # the start blocks while it spawns
    sender.close()
    # The reader is called at each message, and at the end of the process.
    loop.add_reader(receiver.fileno(), arrived.set)
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            found = receiver.recv()
            if not isinstance(found, Progress):
                break
            on_progress(found)
    except EOFError:
        raise StartupError(
            f"the process that downloads {settings.model} ended without a result; its log may say why"
        ) from None
    finally:
        loop.remove_reader(receiver.fileno())
        process.kill()
        process.join()
        receiver.close()
    if isinstance(found, StartupError):
        raise found
    return found


def _find(results: Connection, settings: Settings) -> None:
    set_up(settings.log)
    try:
        with progress.reported_to(paced(results.send)):
            results.send(find_model(settings))
    except StartupError as error:
        results.send(error)
