"""Hosts whose environment names a proxy: everything on the host itself still works, and a failure names the proxy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from support.clients.connect_proxy import ConnectProxy, connect_proxy
from support.servers.waiting import HANG_SECONDS

PROGRAM = [sys.executable, "-m", "voxcpm_client"]
ELSEWHERE = "tts.example.com:50051"


@pytest.fixture(params=["http_proxy", "https_proxy", "grpc_proxy"])
def variable(request) -> str:
    return request.param


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    """A proxy that refuses everything."""
    with connect_proxy() as proxy:
        yield proxy


def run(folder, proxies, *arguments) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **proxies}
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def test_commands_reach_a_server_of_this_host(site, tmp_path, proxy, variable):
    address = site.server.address
    for arguments in (("health",), ("say", "Hello.", "--out", "hello.wav"), ("voices", "list"), ("info",)):
        done = run(tmp_path, {variable: proxy.url}, *arguments, "--target", address)
        assert done.returncode == 0, done.stderr
    assert not proxy.asked


def test_demo_works(tmp_path, proxy):
    done = run(tmp_path, dict.fromkeys(("http_proxy", "https_proxy"), proxy.url), "demo")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo.wav").stat().st_size > 1000
    assert not proxy.asked


def test_a_gateway_reaches_its_server(site, tmp_path, proxy, variable):
    command = [*PROGRAM, "gateway", "--listen", "127.0.0.1:0", "--target", site.server.address]
    gateway = subprocess.Popen(command, env={**os.environ, variable: proxy.url}, stdout=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout is not None
        found = re.match(r"listening on (\S+) ", gateway.stdout.readline())
        assert found
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{found[1]}/v1/models", timeout=HANG_SECONDS) as answer:
            assert answer.status == 200
    finally:
        gateway.terminate()
        gateway.communicate(timeout=HANG_SECONDS)
    assert not proxy.asked


def test_an_exempt_host_is_reached_directly_and_another_through_the_proxy(site, tmp_path, variable):
    with connect_proxy(site.server.address) as proxy:
        proxies = {variable: proxy.url, "NO_PROXY": ".example.org:50051"}
        done = run(tmp_path, proxies, "say", "Hello.", "--out", "hello.wav", "--target", ELSEWHERE)
        assert done.returncode == 0, done.stderr
        assert proxy.asked == [ELSEWHERE]
        done = run(tmp_path, proxies, "health", "--target", "tts.example.org:50051")  # a name that does not resolve
        assert done.returncode == 1
        assert proxy.asked == [ELSEWHERE]
        assert variable not in done.stderr


def test_a_failure_behind_the_proxy_names_it_without_its_password(tmp_path, proxy, variable):
    done = run(tmp_path, {variable: proxy.url}, "health", "--target", ELSEWHERE)
    assert done.returncode == 1
    assert proxy.asked
    assert f"the proxy http://127.0.0.1:{proxy.port} of {variable}" in done.stderr
    assert "secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
