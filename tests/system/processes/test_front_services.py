"""Several fronts of a server act as one: metrics, statistics, keys, certificates, and limits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import trustme
from click.testing import CliRunner
from support.servers.running import ADMIN, Server, serving
from support.servers.scraping import scraped, total
from support.servers.streams import PausedStream, texts
from support.servers.tls_files import OPTIONS, Files
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client.cli import main
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.keys import create

ALONE = ("grpc.use_local_subchannel_pool", 1)  # a connection of its own, which the system assigns to a front
FRONTS = {"front 0", "front 1"}
ENGINES = ("--devices", "cpu:2", "--supervision.restart-seconds", "0.5")


@contextlib.contextmanager
def connection(address: str) -> Iterator[Any]:
    with grpc.insecure_channel(address, [ALONE]) as channel:
        yield tts_pb2_grpc.VoxCPMServiceStub(channel)


def stats(server: Server) -> admin_pb2.ServerStats:
    """The statistics, as a front that the system chooses answers."""
    found = re.search(ADMIN, server.log)
    assert found
    with grpc.insecure_channel(found[1], [ALONE]) as channel:
        stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        return stub.GetStats(admin_pb2.GetStatsRequest(), timeout=HANG_SECONDS).stats


def stats_of_both(server: Server) -> admin_pb2.ServerStats:
    """The first statistics that both fronts are part of: one that is busy for too long is left out."""
    found: list[admin_pb2.ServerStats] = []

    def complete() -> bool:
        found.append(stats(server))
        return {one.name for one in found[-1].fronts} == FRONTS

    wait_until(complete)
    return found[-1]


def fronts_of(server: Server, method: str, code: str) -> set[str]:
    """The fronts that have answered a method with a code, by the log."""
    return set(re.findall(rf" (front \d) \S+ rpc id=\S+ method={method} code={code}", server.log))


def by_both(server: Server, call: Callable[[], object], method: str, code: str) -> None:
    """Call over new connections until both fronts have answered with a code."""

    def answered() -> bool:
        call()
        return fronts_of(server, method, code) == FRONTS

    wait_until(answered)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = (*ENGINES, "--fronts", "2", "--admin.listen", "127.0.0.1:0", "--metrics.listen", "127.0.0.1:0")
    with serving(tmp_path_factory.mktemp("voices"), *flags) as server:
        yield server


def metrics(server: Server) -> dict[str, float]:
    found = re.search(r"metrics are at (http://\S+)", server.log)
    assert found
    return scraped(found[1])


def info(server: Server) -> None:
    with connection(server.address) as stub:
        stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=HANG_SECONDS)


def test_one_address_has_the_metrics_of_both_fronts(server):
    by_both(server, lambda: info(server), "GetModelInfo", "OK")
    called = server.calls("GetModelInfo")
    wait_until(lambda: total(metrics(server), "voxcpm_rpcs_total", method="GetModelInfo") == called)
    found = metrics(server)
    assert {name for name in found if name.startswith("voxcpm_front_full")} == {
        f'voxcpm_front_full{{front="{number}"}}' for number in (0, 1)
    }
    wait_until(lambda: total(metrics(server), "voxcpm_model_engines_ready") == 2)  # a front serves with the first
    assert total(metrics(server), "voxcpm_engine_up") == 2, "each engine counts once"
    assert found['process_resident_memory_bytes{front="1"}'] > 1e6
    assert len(re.findall("metrics are at", server.log)) == 1
    assert len(re.findall(r" is ready\n  address", server.log)) == 1
    assert "fronts: 2, as fronts says" in server.log


def test_every_front_answers_for_all(server):
    before = stats_of_both(server).front.calls_ended
    stream = PausedStream()
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(connection(server.address)).Generate(stream.messages()) for _ in range(6)]
        for call in calls:
            next(call)
        answering: set[int] = set()

        def asked() -> bool:
            found = stats_of_both(server)
            answering.add(found.front.process_id)
            assert [one.name for one in found.fronts] == ["front 0", "front 1"]
            assert found.front.streams == sum(one.streams for one in found.fronts) == 6
            assert (found.front.name, found.front.max_streams) == ("", sum(one.max_streams for one in found.fronts))
            assert {one.name for one in found.engines} == {"engine cpu:0", "engine cpu:1"}
            return len(answering) == 2

        wait_until(asked)
        assert answering == {one.process_id for one in stats_of_both(server).fronts}
        wait_until(lambda: total(metrics(server), "voxcpm_open_streams") == 6)
        stream.resume()
        for call in calls:
            list(call)
    wait_until(lambda: stats(server).front.calls_ended == before + 6)
    assert stats_of_both(server).recent.calls >= 6


def test_top_shows_both_fronts(server):
    found = re.search(ADMIN, server.log)
    assert found
    command = ["top", "--once", "--interval", "0.1", "--target", found[1]]
    fronts = stats_of_both(server).fronts

    def shown() -> bool:
        result = CliRunner().invoke(main, command)
        page = " ".join(result.output.split())
        assert result.exit_code == 0, result.output
        return all(f"{one.name} process {one.process_id}" in page for one in fronts)

    wait_until(shown)


def serves_again(server: Server, lost: int) -> bool:
    """True if another process has replaced a lost front."""
    try:
        fronts = {one.process_id for one in stats(server).fronts}
    except grpc.RpcError:  # the system gave the connection to the process that ended
        return False
    return len(fronts) == 2 and lost not in fronts


def test_the_counters_of_a_lost_front_and_a_lost_engine_are_true(server):
    by_both(server, lambda: info(server), "GetModelInfo", "OK")
    called = server.calls("GetModelInfo")
    wait_until(lambda: total(metrics(server), "voxcpm_rpcs_total", method="GetModelInfo") == called)
    found = stats_of_both(server)
    lost = next(one.process_id for one in found.fronts if one.name == "front 0")
    for pid in (lost, next(one.process_id for one in found.engines if one.name == "engine cpu:1")):
        psutil.Process(pid).kill()

    def restarted() -> bool:
        found = metrics(server)
        assert total(found, "voxcpm_rpcs_total", method="GetModelInfo") >= called, "a counter has fallen"
        up = [found.get(f'voxcpm_engine_up{{engine="engine cpu:{number}"}}') for number in (0, 1)]
        return up == [1, 1] and 'voxcpm_front_full{front="0"}' in found

    wait_until(restarted, 4 * HANG_SECONDS)
    found = metrics(server)
    assert found['voxcpm_engine_restarts_total{engine="engine cpu:1"}'] == 1
    assert found['voxcpm_engine_restarts_total{engine="engine cpu:0"}'] == 0
    wait_until(lambda: serves_again(server, lost))
    for one in stats(server).engines:
        assert one.restarts == (one.name == "engine cpu:1")


def test_statistics_and_metrics_are_those_of_all_fronts_during_the_drain(server):
    """The last test of this server."""
    stream, calls = PausedStream(), []
    with contextlib.ExitStack() as stack:

        def both_have_streams() -> bool:
            calls.append(stack.enter_context(connection(server.address)).Generate(stream.messages()))
            next(calls[-1])
            return [bool(one.streams) for one in stats(server).fronts] == [True, True]

        wait_until(both_have_streams)
        server.terminate()
        wait_until(lambda: stats(server).state == admin_pb2.SERVER_STATE_DRAINING)
        found = stats_of_both(server)
        assert [one.name for one in found.fronts] == ["front 0", "front 1"]
        assert found.front.streams == len(calls)
        wait_until(lambda: total(metrics(server), "voxcpm_open_streams") == len(calls))
        stream.resume()
        for call in calls:
            assert list(call)[-1].summary.segments == 2
    assert server.process.wait(4 * HANG_SECONDS) == 0
    assert "Traceback" not in server.log


@dataclass
class Guarded:
    """A server of two fronts with TLS, keys, and a quota of text for each caller.

    trusted: the authority of its certificate
    """

    server: Server
    files: Files
    keys: Path
    key: str
    trusted: grpc.ChannelCredentials

    @contextlib.contextmanager
    def connection(self, trusted: grpc.ChannelCredentials) -> Iterator[Any]:
        with grpc.secure_channel(self.server.address, trusted, (*OPTIONS, ALONE)) as channel:
            yield tts_pb2_grpc.VoxCPMServiceStub(channel)

    def info(self, key: str = "", trusted: grpc.ChannelCredentials | None = None) -> None:
        """Raises RpcError."""
        with self.connection(trusted or self.trusted) as stub:
            metadata = (("authorization", f"Bearer {key or self.key}"),)
            stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=HANG_SECONDS, metadata=metadata)

    def both_answer(self, code: str, call: Callable[[], None], start: int) -> bool:
        """Call; True if both fronts have answered with a code, by the log from `start` on."""
        with contextlib.suppress(grpc.RpcError):
            call()
        log = self.server.log[start:]
        return set(re.findall(rf" (front \d) \S+ rpc id=\S+ method=GetModelInfo code={code}", log)) == FRONTS


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    files, keys = Files.new(folder), folder / "keys.toml"
    flags = ("--tls.cert", str(files.settings["cert"]), "--tls.key", str(files.settings["key"]), "--devices", "cpu")
    quota = ("--auth.keys", str(keys), "--limits.max-chars-per-minute-per-caller", "10")
    key = create("first", keys)
    with serving(folder / "voices", "--fronts", "2", *flags, *quota) as server:
        yield Guarded(server, files, keys, key, files.credentials())


def test_keys_that_are_made_and_revoked_count_in_both_fronts(guarded):
    key, start = create("second", guarded.keys), len(guarded.server.log)
    wait_until(lambda: guarded.both_answer("OK", lambda: guarded.info(key), start))
    assert CliRunner().invoke(main, ["keys", "revoke", "second", "--file", str(guarded.keys)]).exit_code == 0
    start = len(guarded.server.log)
    wait_until(lambda: guarded.both_answer("UNAUTHENTICATED", lambda: guarded.info(key), start))


def test_a_replaced_certificate_is_that_of_both_fronts(guarded):
    old, new = guarded.trusted, trustme.CA()
    start = len(guarded.server.log)
    wait_until(lambda: guarded.both_answer("OK", lambda: guarded.info(trusted=old), start))
    guarded.files.write(new)
    guarded.trusted = grpc.ssl_channel_credentials(new.cert_pem.bytes())

    def both_renewed() -> bool:
        refused = 0
        for _ in range(8):
            try:
                guarded.info(trusted=old)
            except grpc.RpcError:
                refused += 1
        return refused == 8

    wait_until(both_renewed)
    start = len(guarded.server.log)
    wait_until(lambda: guarded.both_answer("OK", guarded.info, start))


def test_the_quota_of_a_caller_holds_for_both_fronts_together(guarded):
    """A caller who has spent its characters through one front waits in the other one, too."""
    words = "This sentence uses up the quota of its caller for minutes."

    def code() -> str:
        with guarded.connection(guarded.trusted) as stub:
            metadata = (("authorization", f"Bearer {guarded.key}"),)
            call = stub.Generate(texts(words), timeout=HANG_SECONDS, metadata=metadata)
            with contextlib.suppress(grpc.RpcError):
                list(call)
            return call.code().name

    assert code() == "OK"
    by_both(guarded.server, code, "Generate", "RESOURCE_EXHAUSTED")
    assert len(re.findall(r"method=Generate code=OK", guarded.server.log)) == 1
    assert "max_streams 256, 512 in all" in guarded.server.log
