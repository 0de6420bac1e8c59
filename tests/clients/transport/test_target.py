"""The address of a server is checked before it is used, and the error has the address as it should be."""

import pytest

from voxcpm_client import AsyncClient, Client, InvalidArgument
from voxcpm_client.transport.target import parse

WRONG = [
    ("http://localhost:50051", r"leave out http://, write localhost:50051$"),
    ("https://tts.example.com/", r"leave out https://, write tts\.example\.com:50051 and set tls$"),
    ("grpc://10.0.0.1:50051/path", r"leave out grpc://, write 10\.0\.0\.1:50051$"),
    ("grpcs://10.0.0.1", r"leave out grpcs://, write 10\.0\.0\.1:50051 and set tls$"),
    ("localhost", r"the port is missing, write localhost:50051$"),
    ("dns:///localhost", r"the port is missing, write localhost:50051$"),
    ("[::1]", r"the port is missing, write \[::1\]:50051$"),
    ("", r"the port is missing, write localhost:50051$"),
    ("50051", r"the port is missing, write localhost:50051$"),
    (":50051", r"the host is missing, write localhost:50051$"),
    ("localhost:", r"the port is '' and must be 1 to 65535, as in localhost:50051$"),
    ("localhost:http", r"the port is 'http' and must be"),
    ("localhost:0", r"the port is '0' and must be"),
    ("localhost:65536", r"the port is '65536' and must be"),
    ("localhost:50051/", r"the port is '50051/' and must be"),
    ("::1:50051", r"write an IPv6 address in brackets, such as \[::1\]:50051$"),
]
RIGHT = [
    ("127.0.0.1:50051", "127.0.0.1", 50051, True),
    ("127.8.0.1:1", "127.8.0.1", 1, True),
    ("localhost:50051", "localhost", 50051, True),
    ("[::1]:50051", "::1", 50051, True),
    ("[2001:db8::1]:443", "2001:db8::1", 443, False),
    ("10.0.0.1:50051", "10.0.0.1", 50051, False),
    ("tts_server.example:443", "tts_server.example", 443, False),
    ("localhost.example.com:443", "localhost.example.com", 443, False),
    ("dns:///tts:50051", "tts", 50051, False),
    ("dns:tts:50051", "tts", 50051, False),
    ("dns://8.8.8.8/localhost:50051", "localhost", 50051, True),
    ("unix:/run/tts.sock", "", 0, True),
    ("unix-abstract:tts", "", 0, True),
    ("ipv4:127.0.0.1:50051", "127.0.0.1", 50051, True),
    ("xds:///tts", "", 0, False),
]


@pytest.mark.parametrize(("target", "message"), WRONG)
def test_a_wrong_address_is_an_error_with_the_right_one(target, message):
    with pytest.raises(InvalidArgument, match=message) as raised:
        AsyncClient(target)
    assert raised.value.field == "target"
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidArgument, match=message):
        Client(target)


@pytest.mark.parametrize(("target", "host", "port", "loopback"), RIGHT)
def test_an_address_is_taken_apart(target, host, port, loopback):
    parsed = parse(target)
    assert (parsed.host, parsed.port, parsed.is_loopback) == (host, port, loopback)
    AsyncClient(target)


def test_an_address_must_be_a_string():
    with pytest.raises(TypeError, match="target is NoneType; it must be str"):
        AsyncClient(None)  # pyright: ignore[reportArgumentType]


async def test_an_address_for_grpc_to_resolve_works(server):
    async with AsyncClient(f"dns:///{server.target}", timeout=60.0) as client:
        assert await client.health()
