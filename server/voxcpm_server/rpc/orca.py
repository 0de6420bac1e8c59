"""Load reports of ORCA on the port of the service, with which load balancers weigh servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_server.rpc.orca_messages import METHOD, SERVICE, OrcaLoadReport, OrcaLoadReportRequest
from voxcpm_server.rpc.recent import RecentCalls

DEFAULT_SECONDS = 10.0  # between two reports, for a client that asks for no interval
MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0
FRESH_SECONDS = 0.1  # one report serves all clients for this time
CPU_SECONDS = 1.0  # over which the use of the processor is measured


class LoadReports:
    """Implements xds.service.orca.v3.OpenRcaService, for as many clients as there are. It needs no authentication."""

    def __init__(self, recent: RecentCalls) -> None:
        self._recent = recent
        self._pools: Sequence[EnginePool] = ()
        self._ended = asyncio.Event()
        self._report = b""
        self._made = float("-inf")
        self._cpu = 0.0
        self._cpu_read = time.monotonic(), time.process_time()

    def register(self, server: grpc.aio.Server) -> None:
        method = grpc.unary_stream_rpc_method_handler(self.watch_load, OrcaLoadReportRequest.FromString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))

    def watch(self, pools: Sequence[EnginePool]) -> None:
        """Report the load of these engines from now on."""
        self._pools = pools

    def end(self) -> None:
        """End each call, open or new, after it has sent a report."""
        self._ended.set()

    async def watch_load(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        """Send a report at once and after each interval."""
        asked = request.report_interval.seconds + request.report_interval.nanos / 1e9
        seconds = min(max(asked, MIN_SECONDS), MAX_SECONDS) if asked > 0 else DEFAULT_SECONDS
        while True:
            await context.write(self.report())
            if self._ended.is_set():
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
            except TimeoutError:
                continue

    def report(self) -> bytes:
        """The encoded report of this moment, at most FRESH_SECONDS old."""
        now = time.monotonic()
        if now - self._made >= FRESH_SECONDS:
            self._made, self._report = now, self._make(now)
        return self._report

    def _make(self, now: float) -> bytes:
        rate, error_rate = self._recent.rates()
        report = OrcaLoadReport(cpu_utilization=self._cpu_use(now), rps_fractional=rate, eps=error_rate)
        if self._pools:
            ready = [replica for pool in self._pools for replica in pool.replicas if replica.ready]
            slots = sum(replica.info.max_slots for replica in ready if replica.info)
            running = sum(replica.running for replica in ready)
            queued = sum(replica.queued(is_batch=True) for replica in ready) + sum(
                pool.waiting_for_engine for pool in self._pools
            )
            if slots:
                report.application_utilization = (running + queued) / slots
                report.utilization["slots"] = min(1.0, running / slots)
            report.named_metrics.update(slots=slots, slots_used=running, queued=queued, engines=len(ready))
            found = [replica.stats.stats for replica in ready if replica.stats]
            if pages := sum(stats.pages_total for stats in found):
                report.utilization["kv_pages"] = sum(stats.pages_used for stats in found) / pages
        return report.SerializeToString()

    def _cpu_use(self, now: float) -> float:
        """The share of one processor that this process has used lately; its event loop cannot use more."""
        read, used = self._cpu_read
        if now - read >= CPU_SECONDS:
            self._cpu_read = now, time.process_time()
            self._cpu = (self._cpu_read[1] - used) / (now - read)
        return self._cpu
