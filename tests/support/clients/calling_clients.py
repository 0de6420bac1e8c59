"""Clients of the standard library that call time and again, and the duration of each call."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

BACKOFF_SECONDS = 20.0  # of the retry policy: a call that has to wait for it is seen at once
FIRST_CALLS = 20
PAUSE_SECONDS = 0.03  # of a thread between its calls: the servers are called all the time, and keep the cores free


@dataclass
class Calls:
    """The calls of a client so far."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def made(self, more: int, before: int = 0) -> None:
        """Wait for that many more calls."""
        before = before or len(self.seconds)
        wait_until(lambda: self.failures or len(self.seconds) >= before + more, 2 * HANG_SECONDS)


def service_config(*codes: str, watch_health: bool) -> str:
    """Round robin with a retry policy for these status codes, and with a watch of the servers' health if asked."""
    backoff = f"{BACKOFF_SECONDS:g}s"
    policy = {"maxAttempts": 5, "initialBackoff": backoff, "maxBackoff": backoff, "backoffMultiplier": 1}
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{}], "retryPolicy": {**policy, "retryableStatusCodes": codes}}],
    }
    if watch_health:
        config["healthCheckConfig"] = {"serviceName": ""}
    return json.dumps(config)


@contextmanager
def calling(addresses: Sequence[str], config: str, threads: int = 4) -> Iterator[Calls]:
    """Call the servers at these addresses from several threads, over one channel, until the end of the block."""
    calls, over = Calls(), threading.Event()
    options = [("grpc.service_config", config), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"ipv4:{','.join(addresses)}", options) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)

        def call() -> None:
            while not over.wait(PAUSE_SECONDS):
                began = time.monotonic()
                try:
                    stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=HANG_SECONDS, wait_for_ready=True)
                except grpc.RpcError as error:
                    calls.failures.append(f"{error.code().name}: {error.details()}")
                calls.seconds.append(time.monotonic() - began)

        callers = [threading.Thread(target=call) for _ in range(threads)]
        for caller in callers:
            caller.start()
        try:
            calls.made(FIRST_CALLS)
            yield calls
        finally:
            over.set()
            channel.close()  # ends calls that still wait for a retry
            for caller in callers:
                caller.join(2 * HANG_SECONDS)
