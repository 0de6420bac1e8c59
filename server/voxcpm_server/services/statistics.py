"""The statistics of a server and of its engines, as the admin service returns them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import Stats
from voxcpm_grpc.v1 import admin_pb2 as pb
from voxcpm_server.operation.host import Fronts
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.services.server import RpcServer
from voxcpm_server.voices.uploads import UploadBudget
from voxcpm_server.wire import statistics as wire
from voxcpm_server.wire.statistics import EnginePhase, FrontReport

TOPIC = "statistics"  # questions between fronts have this topic
ANSWER_SECONDS = 1.0  # seconds for the answer of an engine, which follows its current step
UPLOADS = ("AddPrompt", "AddReference", "AddHifi", "EncodeLatents")
PROCESS = Path("/proc/self")  # Linux has it


class ServerStatistics:
    """Reads the statistics of a server. Engines and streams are part of them after `watch`.

    fronts: the other fronts, and the name of this one; None if there is one process
    """

    def __init__(self, rpc: RpcServer, fronts: Fronts | None = None) -> None:
        self._rpc = rpc
        self._fronts = fronts
        self._started = time.time()
        self._pools: Sequence[EnginePool] = ()
        self._gate: AdmissionGate | None = None
        self._uploads: UploadBudget | None = None
        self._voices: Callable[[], int | None] = lambda: None
        if fronts is not None:
            fronts.answer(TOPIC, self._answer)

    def watch(
        self,
        pools: Sequence[EnginePool],
        gate: AdmissionGate,
        uploads: UploadBudget,
        voices: Callable[[], int | None],
    ) -> None:
        """Include these from now on. `voices` returns the number of stored voices, if it is known."""
        self._pools, self._gate, self._uploads, self._voices = pools, gate, uploads, voices

    async def read(self) -> pb.ServerStats:
        """The statistics of this moment, of all fronts. Engines that are busy too long are not asked for theirs."""
        replicas = [(pool.info.name, replica) for pool in self._pools for replica in pool.replicas]
        asked = asyncio.gather(*(replica.refresh_stats(ANSWER_SECONDS) for _, replica in replicas))
        others, _ = await asyncio.gather(self._others(), asked)
        return wire.server(
            now=time.time(),
            phase=self._rpc.phase,
            step=self._rpc.step,
            models=[pool.info.name for pool in self._pools],
            fronts=(self._report(), *others),
            engines=[_engine(replica, model) for model, replica in replicas],
        )

    async def _others(self) -> list[FrontReport]:
        if self._fronts is None:
            return []
        answers = await self._fronts.ask_others(TOPIC)
        return [msgspec.msgpack.decode(answer, type=FrontReport) for answer in answers.values()]

    async def _answer(self) -> bytes:
        return msgspec.msgpack.encode(self._report())

    def _report(self) -> FrontReport:
        return FrontReport(self._started, self._front().SerializeToString(), self._rpc.recent.figures())

    def _front(self) -> pb.FrontStats:
        open_calls = {method: count for method, count in self._rpc.calls.methods.items() if count}
        return wire.front(
            name="" if self._fronts is None else self._fronts.name,
            open_calls=open_calls,
            uploads=sum(open_calls.get(method, 0) for method in UPLOADS),
            cpu_seconds=time.process_time(),
            audio_seconds=self._rpc.recent.audio_seconds,
            loop_busy=self._rpc.load.busy,
            loop_lag=self._rpc.load.lag,
            full_remedy=self._rpc.load.remedy if self._rpc.load.full else "",
            process_id=os.getpid(),
            streams=0 if self._gate is None else self._gate.streams,
            max_streams=self._rpc.max_streams,
            upload_bytes=0 if self._uploads is None else self._uploads.held,
            stored_voices=self._voices(),
            tasks=len(asyncio.all_tasks()),
            open_files=_open_files(),
            resident_bytes=_resident_bytes(),
            calls_ended=self._rpc.recent.ended_calls,
            calls_failed=self._rpc.recent.failed_calls,
        )


def _engine(replica: Replica, model: str) -> pb.EngineStats:
    found, info = replica.stats, replica.info
    return wire.engine(
        replica.name,
        _phase(replica),
        model=model,
        device="" if info is None else info.device,
        restarts=replica.restarts.count,
        process_id=0 if found is None else found.process_id,
        age=None if found is None else replica.stats_age,
        stats=Stats() if found is None else found.stats,
        step_seconds=0.0 if found is None else found.step_seconds,
        chunk_seconds=0.0 if info is None else info.step_seconds,
    )


def _phase(replica: Replica) -> EnginePhase:
    if replica.given_up:
        return EnginePhase.GIVEN_UP
    if replica.drained:
        return EnginePhase.DRAINED
    if replica.draining or replica.out_of_service:
        return EnginePhase.DRAINING
    return EnginePhase.READY if replica.ready else EnginePhase.STARTING


def _open_files() -> int | None:
    try:
        return sum(1 for _ in (PROCESS / "fd").iterdir()) - 1  # the folder itself is open, too
    except OSError:
        return None


def _resident_bytes() -> int | None:
    try:
        return int((PROCESS / "statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
