"""Proxies of the environment: this host and exempt hosts are reached directly, others through the proxy."""

from __future__ import annotations

import socket

import pytest
from support.clients.connect_proxy import connect_proxy

from voxcpm_client import AsyncClient, Client, Unavailable
from voxcpm_grpc.network.proxies import proxy_of

VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy")
ELSEWHERE = "tts.example.com:50051"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in (*VARIABLES, "no_proxy", "no_grpc_proxy", "NO_PROXY", "NO_GRPC_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
async def test_this_host_is_reached_without_the_proxy(server, monkeypatch, variable):
    port = server.target.rpartition(":")[2]
    with connect_proxy() as proxy:
        monkeypatch.setenv(variable, proxy.url)
        for target in (server.target, f"localhost:{port}", f"ipv4:127.0.0.1:{port}", f"dns:///localhost:{port}"):
            async with AsyncClient(target, retries=0) as client:
                assert await client.health()
            with Client(target, retries=0) as client:
                assert client.say("Hello.").sample_count
        assert not proxy.asked


async def test_a_host_elsewhere_is_reached_through_the_proxy(server, monkeypatch):
    with connect_proxy(server.target) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "other.example.com")
        async with AsyncClient(ELSEWHERE) as client:
            assert (await client.say("Hello.")).sample_count
        assert proxy.asked == [ELSEWHERE]


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_failure_names_the_variable_and_the_proxy_but_not_its_password(monkeypatch, variable):
    with connect_proxy() as proxy:
        monkeypatch.setenv(variable, proxy.url)
        with Client(ELSEWHERE, retries=0) as client, pytest.raises(Unavailable) as raised:
            client.health()
        assert proxy.asked
    message = str(raised.value)
    assert f"through the proxy http://127.0.0.1:{proxy.port} of {variable}" in message
    assert "add tts.example.com to no_proxy" in message
    assert "secret" not in message


def test_a_timeout_behind_a_proxy_that_does_not_answer_names_it_too(monkeypatch, unanswered):
    monkeypatch.setenv("http_proxy", f"http://{unanswered}")
    with Client(ELSEWHERE, timeout=0.5) as client, pytest.raises(Exception, match=f"proxy http://{unanswered} of http"):
        client.health()


@pytest.fixture
def unanswered():
    """The address of a listener that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


PROXY = {"https_proxy": "http://proxy:3128"}
EXEMPT = [
    ("*", "tts.example.com"),
    ("tts.example.com", "tts.example.com"),
    ("TTS.Example.com", "tts.example.COM."),
    ("example.com", "tts.example.com"),
    (".example.com", "tts.example.com"),
    (".example.com", "example.com"),
    ("*.example.com", "tts.example.com"),
    ("a.test, example.com ,b.test", "tts.example.com"),
    ("a.test example.com", "tts.example.com"),
    ("tts.example.com:50051", "tts.example.com"),
    ("10.1.2.3", "10.1.2.3"),
    ("10.0.0.0/8", "10.1.2.3"),
    ("10.1.2.3:50051", "10.1.2.3"),
    ("fd00::/8", "fd00::1"),
    ("fd00::1", "fd00:0::1"),
    ("[fd00::1]:50051", "fd00::1"),
]
NOT_EXEMPT = [
    ("", "tts.example.com"),
    ("tts.example.org", "tts.example.com"),
    ("tts.example.com:443", "tts.example.com"),
    (".", "tts.example.com"),
    ("10.0.0.0/16", "10.1.2.3"),
    ("10.1.2.30", "10.1.2.3"),
    ("fd00::/8", "10.1.2.3"),
    ("nonsense/8", "10.1.2.3"),
]


@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY", "no_grpc_proxy", "NO_GRPC_PROXY"])
@pytest.mark.parametrize(("listed", "host"), EXEMPT)
def test_a_listed_host_has_no_proxy(variable, listed, host):
    assert proxy_of(host, 50051, PROXY) is not None
    assert proxy_of(host, 50051, {**PROXY, variable: listed}) is None


@pytest.mark.parametrize(("listed", "host"), NOT_EXEMPT)
def test_a_host_that_is_not_listed_has_the_proxy(listed, host):
    assert proxy_of(host, 50051, {**PROXY, "no_proxy": listed}) is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.200.0.1", "::1", "::ffff:127.0.0.1", "localhost", "a.LOCALHOST."])
def test_this_host_has_no_proxy(host):
    assert proxy_of(host, 50051, PROXY) is None


@pytest.mark.parametrize(
    ("environment", "variable", "address"),
    [
        ({"http_proxy": "http://a:1", "https_proxy": "http://b:2"}, "https_proxy", "http://b:2"),
        ({"grpc_proxy": "http://c:3/", "https_proxy": "http://b:2"}, "grpc_proxy", "http://c:3"),
        ({"http_proxy": "http://u:p@ss/w?o#rd@[::1]:1/"}, "http_proxy", "http://[::1]:1"),
        ({"http_proxy": "https://u:secret@a:1"}, "http_proxy", "https://a:1"),
        ({"http_proxy": "u:secret@a:1"}, "http_proxy", "a:1"),
    ],
)
def test_the_first_variable_that_is_set_counts_and_its_password_is_not_told(environment, variable, address):
    found = proxy_of("tts.example.com", 50051, environment)
    assert found is not None
    assert (found.variable, found.address) == (variable, address)
    assert variable in found.advice("tts.example.com") and address in found.advice("tts.example.com")


@pytest.mark.parametrize(
    "environment", [{}, {"grpc_proxy": "", "http_proxy": "http://a:1"}, {"HTTP_PROXY": "http://a"}]
)
def test_without_a_variable_that_grpc_reads_there_is_no_proxy(environment):
    assert proxy_of("tts.example.com", 50051, environment) is None
