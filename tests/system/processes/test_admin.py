"""The admin service, and an engine of a model. Several fronts are in test_front_services.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from support.servers.ports import free_port
from support.servers.running import serving
from support.servers.waiting import wait_until

from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb


def stats(port: int) -> admin_pb2.ServerStats:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        return stub.GetStats(admin_pb2.GetStatsRequest()).stats


def test_a_cancelled_stream_leaves_no_slot_and_no_page(tmp_path: Path):
    port = free_port()
    flags = ("--admin.listen", f"127.0.0.1:{port}", "--engine.prefix-caching", "false")
    with serving(tmp_path, *flags) as server, grpc.insecure_channel(server.address) as channel:
        before = stats(port).engines[0]
        assert before.slots_used == before.pages_used == 0 and before.pages_free == before.pages_total
        stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        call = stub.Generate(iter([pb.GenerateRequest(text="Hello there, this is a long sentence.")]))
        while not next(call).audio:
            pass
        during = stats(port).engines[0]
        assert during.slots_used == 1 and during.pages_used > 0
        call.cancel()
        wait_until(lambda: not stats(port).front.streams)
        after = stats(port).engines[0]
        assert after.slots_used == after.pages_used == 0
        assert after.requests_cancelled == 1
