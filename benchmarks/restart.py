"""Measure restarts: the time from the loss of an engine until another one is ready, and until a waiting call has audio.

    python -m benchmarks.restart --model demo --device cpu --kills 3 --name here

A server runs for each of `--standby`: with a standby process, which becomes the next engine, and without one. Its first
engine is killed with SIGKILL `--kills` times, each time when the standby process, if there is one, is prepared, and a
call is made at once. With one engine the call waits for the next one; with more, another engine takes it. An engine
that is lost within a minute of its start is restarted after a pause that grows with each loss, from 0.25 s to 4 s at
the third one, so each engine runs for `--pause` seconds before the next kill. The command writes restart-NAME.json and
.md into `--out`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import ROOT, command, versions
from benchmarks.measuring.flags import add_output_flags, command_parser, words
from benchmarks.pages.files import write_json
from benchmarks.pages.markdown import grid, listed
from benchmarks.serving.servers import Server
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.messages.server_stats import EngineStats

TINY = ROOT / "tests" / "checkpoints" / "tiny"
STABLE_SECONDS = 61.0  # more than the minute after which a loss counts as a first one
WAIT_SECONDS = 300.0  # for an engine, or a standby process
POLL_SECONDS = 0.02
RETRY_SECONDS = 0.05  # after a call that was refused
TEXT, STEPS = "Hello there.", 4
PREPARED, TAKEN = "a standby process is prepared", "starts in the standby process"
HEADINGS = "standby  kill     ready  first audio  usual audio  refused  started in"
NOTE = (
    "Seconds from the SIGKILL of an engine until another one is ready in its place, and until a call that was made at "
    "once has its first audio. Ready is what the admin service says, asked again and again, which an engine answers "
    "between two steps. The usual audio is that of a call before the kill. Refused are attempts of the call."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kill.

    standby: the setting `supervision.standby`
    kill: its number
    ready_s: seconds until the next engine was ready
    first_audio_s: seconds until the first audio of a call that was made right after the kill
    usual_audio_s: seconds from a call before the kill to its first audio
    refused: attempts of the call that failed before
    took_standby: the standby process became the engine
    """

    standby: str
    kill: int
    ready_s: float
    first_audio_s: float
    usual_audio_s: float
    refused: int
    took_standby: bool


class Log:
    """The log of a server in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self, words: str) -> int:
        """The number of lines with these words so far."""
        return sum(words in line for line in self.path.read_text(errors="replace").splitlines())

    async def wait_for_standby(self) -> None:
        """Wait until a standby process is prepared. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.count(PREPARED) <= self.count(TAKEN):  # noqa: ASYNC110, the server is another process
                await asyncio.sleep(POLL_SECONDS)


async def first_audio(client: AsyncClient) -> tuple[float, int]:
    """The time at which a call that is made now has its first audio, and the number of attempts that failed before."""
    refused = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                async with client.speak(TEXT, max_steps=STEPS) as stream:
                    await anext(stream)
                    return time.monotonic(), refused
            except SpeechError:
                refused += 1
                await asyncio.sleep(RETRY_SECONDS)


async def ready_engine(admin: AsyncClient, restarts: int) -> EngineStats:
    """The first engine, once it is ready and has been restarted so often. Raises TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            engine = (await admin.server_stats()).engines[0]
            if engine.state == "ready" and engine.restarts >= restarts and engine.process_id:
                return engine
            await asyncio.sleep(POLL_SECONDS)


async def timed_ready(admin: AsyncClient, restarts: int) -> float:
    await ready_engine(admin, restarts)
    return time.monotonic()


async def measure_kill(client: AsyncClient, admin: AsyncClient, log: Log, standby: str, kill: int) -> Row:
    """Kill the first engine, and wait until another one is ready and a call has audio."""
    if standby == "on":
        await log.wait_for_standby()
    engine, taken = await ready_engine(admin, 0), log.count(TAKEN)
    called = time.monotonic()
    usual, _ = await first_audio(client)
    killed = time.monotonic()
    os.kill(engine.process_id, signal.SIGKILL)
    (audio, refused), ready = await asyncio.gather(first_audio(client), timed_ready(admin, engine.restarts + 1))
    return Row(
        standby=standby,
        kill=kill,
        ready_s=ready - killed,
        first_audio_s=audio - killed,
        usual_audio_s=usual - called,
        refused=refused,
        took_standby=log.count(TAKEN) > taken,
    )


async def measure(server: Server, admin: str, log: Log, standby: str, kills: int, pause: float) -> list[Row]:
    [target] = await asyncio.to_thread(server.targets)
    rows: list[Row] = []
    async with AsyncClient(target, timeout=WAIT_SECONDS) as client, AsyncClient(admin) as operator:
        for kill in range(1, kills + 1):
            if rows:
                await asyncio.sleep(pause)
            rows.append(await measure_kill(client, operator, log, standby, kill))
            print(line(rows[-1]), flush=True)
    return rows


def measured(options: argparse.Namespace, standby: str) -> list[Row]:
    """The rows of a server with or without a standby process."""
    model = str(TINY) if options.model == "tiny" else options.model
    admin = f"127.0.0.1:{free_port()}"
    devices = {"auto": "auto", "cpu": f"cpu:{options.engines}"}.get(options.device, options.device)
    flags = ["--devices", devices, "--fronts", "1", "--admin.listen", admin, "--supervision.standby", standby]
    flags += ["--limits.max-queue-seconds", f"{WAIT_SECONDS:g}", "--log-level", "info", *options.serve]
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "server.log")
        with log.path.open("wb") as written, Server(model, options.timesteps, flags, log=written) as server:
            return asyncio.run(measure(server, admin, log, standby, options.kills, options.pause))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def line(row: Row) -> str:
    """A row for the terminal, below HEADINGS."""
    started = "the standby process" if row.took_standby else "a new process"
    return (
        f"{row.standby:7}  {row.kill:4}  {row.ready_s:6.2f} s  {row.first_audio_s:9.2f} s  {row.usual_audio_s:9.3f} s"
        f"  {row.refused:7}  {started}"
    )


def render(table: Mapping[str, Any], name: str) -> str:
    """The page of one run."""
    found = dict(table["versions"])
    device = found.pop("device")
    rows: Sequence[Mapping[str, Any]] = table["rows"]
    kinds = list(dict.fromkeys(row["standby"] for row in rows))
    medians = [
        [kind, *(f"{_median(rows, kind, key):.2f}" for key in ("ready_s", "first_audio_s", "usual_audio_s"))]
        for kind in kinds
    ]
    each = [
        [
            f"{row['standby']}, kill {row['kill']}",
            *(f"{row[key]:.2f}" for key in ("ready_s", "first_audio_s", "usual_audio_s")),
            str(row["refused"]),
            "the standby process" if row["took_standby"] else "a new process",
        ]
        for row in rows
    ]
    sections = [
        f"# Restarts of an engine: {device}",
        f"The model is {table['model']}, the device {table['device']}, the number of engines {table['engines']}. An "
        f"engine runs for {table['pause_s']:g} s before the next kill. The numbers are in [{name}.json]({name}.json). "
        f"{NOTE}",
        grid("standby process, median|ready|first audio|usual audio", medians),
        grid("standby process|ready|first audio|usual audio|refused|started in", each),
        f"```\n{table['command']}\n```",
        listed(found),
    ]
    return "\n\n".join(sections) + "\n"


def _median(rows: Sequence[Mapping[str, Any]], standby: str, key: str) -> float:
    return statistics.median(row[key] for row in rows if row["standby"] == standby)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, tiny (the model of the tests), a directory, or a hub id")
    parser.add_argument("--device", default="auto", help="auto, cpu, or the numbers of GPUs, with commas between them")
    parser.add_argument("--engines", type=int, default=1, help="engines on a CPU; a GPU has one")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--kills", type=int, default=3, help="kills of each server")
    parser.add_argument("--pause", type=float, default=STABLE_SECONDS, help="seconds from a restart to the next kill")
    parser.add_argument("--standby", type=words, default=["on", "off"], help="on, off, or both with a comma")
    parser.add_argument("--serve", nargs="*", default=[], metavar="FLAG", help="more flags of the server")
    add_output_flags(parser)
    options = parser.parse_args()
    if options.engines != 1 and options.device != "cpu":
        parser.error("--engines needs --device cpu; name one GPU for each engine in --device")

    print(HEADINGS)
    rows = [row for standby in options.standby for row in measured(options, standby)]
    table = {
        "command": command(),
        "versions": versions("torch", "grpcio"),
        "model": options.model,
        "engines": options.engines,
        "device": options.device,
        "pause_s": options.pause,
        "rows": [asdict(row) for row in rows],
    }
    name = f"restart-{options.name}"
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / f"{name}.json", table)
    (options.out / f"{name}.md").write_text(render(table, name))


if __name__ == "__main__":
    main()
