"""The gateway as a process: beside a server, and as a command of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import psutil
import pytest
from support.servers.ports import free_port
from support.servers.running import STOP_SECONDS, Server, serving
from support.servers.scraping import scraped
from support.servers.waiting import HANG_SECONDS, wait_until


def children(pid: int) -> list[psutil.Process]:
    """The processes of the gateway; the folder of an interpreter may have the word in its name, too."""
    return [child for child in psutil.Process(pid).children() if is_gateway(child)]


def is_gateway(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["voxcpm-grpc gateway"]
    except psutil.ZombieProcess:  # it was killed a moment ago
        return False


def gateway_of(server) -> str:
    found = re.search(r"HTTP is at (http://\S+)", server.log)
    assert found
    return found[1]


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready", timeout=HANG_SECONDS, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--http", "127.0.0.1:0", "--listen", f"127.0.0.1:{free_port()}")
    with serving(tmp_path_factory.mktemp("voices"), *flags) as server:
        wait_until(lambda: is_ready(gateway_of(server)))
        yield server


def test_the_gateway_of_a_server_names_the_port_of_grpc_for_other_programs(server):
    model = httpx2.get(f"{gateway_of(server)}/page/model.json", timeout=HANG_SECONDS, trust_env=False).json()
    assert model["grpc"] == {"port": int(server.address.rpartition(":")[2]), "tls": False}


def test_a_gateway_that_is_killed_is_started_again(server):
    [first] = children(server.process.pid)
    first.send_signal(signal.SIGKILL)
    wait_until(lambda: [child.pid for child in children(server.process.pid)] not in ([], [first.pid]))
    wait_until(lambda: is_ready(gateway_of(server)))


def test_the_command_serves_until_a_signal(server):
    command = [sys.executable, "-m", "voxcpm_client", "gateway", "--listen", "127.0.0.1:0", "--voice-alias", "nova=x"]
    process = subprocess.Popen(
        [*command, "--target", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        found = re.match(r"listening on (http://\S+) target=", process.stdout.readline())
        assert found
        url = found[1]
        wait_until(lambda: is_ready(url))
        body = {"input": "Hello.", "extra_params": {"max_steps": 2}}
        reply = httpx2.post(f"{url}/v1/audio/speech", json=body, timeout=HANG_SECONDS, trust_env=False)
        assert reply.status_code == 200, reply.text
        missing = httpx2.post(
            f"{url}/v1/audio/speech", json=body | {"voice": "nova"}, timeout=HANG_SECONDS, trust_env=False
        )
        assert missing.status_code == 404
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "http id=" in errors
    assert "Hello" not in errors


def test_a_second_signal_does_not_wait_for_a_gateway_that_does_not_end(server):
    """The last test of this server."""
    [gateway] = children(server.process.pid)
    gateway.suspend()

    def ended() -> bool:
        server.process.send_signal(signal.SIGTERM)  # does nothing to a process that has ended
        return server.process.poll() is not None

    wait_until(ended)
    assert server.process.returncode in (0, -signal.SIGTERM)  # the latter if one came after its end
    assert not gateway.is_running() or gateway.status() == psutil.STATUS_ZOMBIE


def test_fronts_share_the_port_of_http(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with serving(tmp_path / "voices", "--http", address, "--fronts", "2") as server:
        wait_until(lambda: is_ready(f"http://{address}"))
        body = {"input": "Hello.", "extra_params": {"max_steps": 2}}
        for _ in range(6):
            reply = httpx2.post(f"http://{address}/v1/audio/speech", json=body, timeout=HANG_SECONDS, trust_env=False)
            assert reply.status_code == 200, reply.text
        assert server.calls("Generate") == 6
        counted = 'voxcpm_gateway_requests_total{route="/v1/audio/speech",status="200"}'
        wait_until(lambda: scraped(f"http://{address}/metrics")[counted] == 6)  # a call counts after its reply
        for _ in range(6):
            assert scraped(f"http://{address}/metrics")[counted] == 6, "each gateway counts for all"
        fronts = psutil.Process(server.process.pid).children()
        [lost, _] = [gateway for front in fronts for gateway in children(front.pid)]
        lost.kill()
        wait_until(lambda: sum(len(children(front.pid)) for front in fronts) == 2)
        wait_until(lambda: is_ready(f"http://{address}"))
        assert scraped(f"http://{address}/metrics")[counted] == 6
        gateways = [gateway for front in fronts for gateway in children(front.pid)]
        server.terminate()
        assert server.process.wait(STOP_SECONDS) == 0
        assert not psutil.wait_procs(gateways, STOP_SECONDS)[1]
