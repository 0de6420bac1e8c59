"""Addresses that a server, its services and a gateway listen on: each that cannot be has its cause and its remedy."""

from __future__ import annotations

import os
import socket
import stat

import grpc
import pytest

from voxcpm_gateway import serving
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.network.addresses import cannot_listen, listen_address
from voxcpm_grpc.settings.http import HttpSettings
from voxcpm_grpc.settings.sources import load
from voxcpm_server.fronts import reserved
from voxcpm_server.services.server import RpcServer, bind

FLAGS = ("--listen", "--http.listen", "--metrics.listen", "--admin.listen")
WRONG = (
    ("127.0.0.1:99999", "its port must be a whole number from 0, which takes a free port, to 65535"),
    ("127.0.0.1:-1", "its port must be a whole number"),
    ("127.0.0.1:http", "its port must be a whole number"),
    ("127.0.0.1:" + "9" * 5000, "its port must be a whole number"),
    ("127.0.0.1:٥٠", "its port must be a whole number"),
    (":50051", "it has no host: write one, such as 127.0.0.1:50051, or 0.0.0.0:50051 for all interfaces"),
    ("[]:50051", "it has no host"),
    (":", "it has no host"),
    ("127.0.0.1", "it has no port: write 127.0.0.1:50051"),
    ("127.0.0.1:", "it has no port: write 127.0.0.1:50051"),
    ("[::1]", "it has no port: write [::1]:50051"),
    ("::1:50931", "an address of IPv6 needs brackets: write [::1]:50931"),
    ("fe80::1", "an address of IPv6 needs brackets: write [fe80::1]:50051"),
    ("::", "an address of IPv6 needs brackets: write [::]:50051"),
    ("http://127.0.0.1:8000", "it must be a host and a port alone"),
    ("//127.0.0.1:8000", "it must be a host and a port alone"),
    ("127.0.0.1: 8000", "it must be a host and a port alone"),
)


@pytest.mark.parametrize(("address", "cause"), WRONG, ids=[address[:20] for address, _ in WRONG])
def test_an_address_of_another_form_is_one_line_with_the_remedy(address, cause):
    for flag in FLAGS:
        with pytest.raises(StartupError) as caught:
            load((f"{flag}={address}",), {})
        line = str(caught.value)
        assert f"in the flag {flag}; {cause}" in line and "\n" not in line
    for attempt in (lambda: serving.listening(address), lambda: reserved(address, 2, shared=True).__enter__()):
        with pytest.raises(StartupError) as caught:
            attempt()
        assert str(caught.value).startswith(f"cannot listen on {address}: {cause}")


def test_an_empty_address_is_refused_where_it_does_not_restore_a_default():
    with pytest.raises(StartupError, match="cannot listen on '': it has no host"):
        serving.listening("")
    assert load(("--listen", ""), {}).listen == "127.0.0.1:50051"
    assert load(("--http.listen", ""), {}).http.listen is None


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("nobody.invalid:0", "the name of the host does not resolve; use an address"),
        ("a..b:0", "the name of the host does not resolve"),
        ("203.0.113.1:0", "the address is not this host's; use one that it has"),
    ],
)
async def test_every_door_says_why_it_cannot_be_opened(address, cause):
    message = rf"^cannot listen on {address}: {cause}"
    with pytest.raises(StartupError, match=message):
        serving.listening(address)
    with pytest.raises(StartupError, match=message):
        bind(grpc.aio.server(), address, None)
    with pytest.raises(StartupError, match=message), reserved(address, 2, shared=True):
        pass


async def test_a_taken_port_is_named_with_its_remedy_and_grpc_prints_nothing(capfd):
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        taken = f"127.0.0.1:{owner.getsockname()[1]}"
        for attempt in (lambda: serving.listening(taken), lambda: bind(grpc.aio.server(), taken, None)):
            with pytest.raises(StartupError, match=f"cannot listen on {taken}: the port is taken by another program"):
                attempt()
    assert capfd.readouterr() == ("", "")


def test_a_privileged_port_names_the_first_free_one_and_the_capability():
    error = str(cannot_listen("0.0.0.0:80", PermissionError(13, "Permission denied")))
    assert error.startswith("cannot listen on 0.0.0.0:80: this user may not have the port 80; use one from 1024 on, or")
    assert error.endswith("CAP_NET_BIND_SERVICE")


def test_an_address_of_ipv6_keeps_its_brackets():
    assert str(listen_address("[::1]:0")) == "[::1]:0"
    assert HttpSettings(listen="[::1]:5").of_front(2).listen == "[::1]:7"


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("none/grpc.sock", "there is no folder .*none; create it"),
        ("file", "that file is no socket; remove it"),
        ("x" * 120, "the path of a socket has at most 107 bytes"),
    ],
)
async def test_a_unix_socket_that_cannot_be_opened_says_why(tmp_path, path, cause):
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=f"cannot listen on unix:{tmp_path}/{path}: {cause}"):
        bind(grpc.aio.server(), f"unix:{tmp_path}/{path}", None)


@pytest.mark.parametrize("mode", ["0999", "660x", "rw-rw----", "06600", "66"])
def test_a_mode_of_another_form_is_one_line(mode):
    with pytest.raises(StartupError) as caught:
        load(("--listen", "unix:/run/x", "--listen-mode", mode), {})
    assert str(caught.value).startswith(f"listen_mode is '{mode}' in the flag --listen-mode; it must be ")
    assert "0660" in str(caught.value) and "\n" not in str(caught.value)


def test_a_mode_needs_a_unix_socket():
    for listen in ("127.0.0.1:1", "unix-abstract:x"):
        with pytest.raises(StartupError, match=r"^listen_mode needs a Unix socket: listen = unix:PATH$"):
            load(("--listen", listen, "--listen-mode", "0660"), {})
    for empty in ("unix:", "unix-abstract:"):
        with pytest.raises(StartupError, match="it has no path: write one"):
            load(("--listen", empty), {})


async def test_a_unix_socket_has_the_mode_of_its_setting(tmp_path):
    for listen in (f"unix:{tmp_path}/a", f"unix://{tmp_path}/b"):
        settings = load(("--listen", listen, "--listen-mode", "0666"), {})
        server = RpcServer(settings)
        try:
            assert await server.open() == listen
            assert stat.S_IMODE((tmp_path / listen[-1]).stat().st_mode) == 0o666
        finally:
            await server.stop()


async def test_a_unix_socket_without_a_mode_has_that_of_the_umask(tmp_path):
    umask = os.umask(0o077)
    try:
        server = RpcServer(load(("--listen", f"unix:{tmp_path}/grpc"), {}))
        await server.open()
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "grpc").stat().st_mode) == 0o700
    await server.stop()
