"""TLS, client certificates and API keys, and one line for each way to get them wrong."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, InvalidArgument, Unavailable, tls_credentials
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

PROGRAM = [sys.executable, "-m", "voxcpm_client", "info"]


class Keys:
    """A certificate that signs itself, for localhost, and another authority's."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = self._make(folder, "server", "DNS:localhost")
        self.other, self.other_key = self._make(folder, "other", "DNS:elsewhere.example")

    def _make(self, folder: Path, name: str, names: str) -> tuple[Path, Path]:
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        more = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command, *more], check=True, capture_output=True)
        return cert, key


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    return Keys(tmp_path_factory.mktemp("keys"))


class Service(tts_pb2_grpc.VoxCPMServiceServicer):
    def __init__(self) -> None:
        self.metadata = {}
        self.peer = ""

    def GetModelInfo(self, request, context):
        self.metadata, self.peer = dict(context.invocation_metadata()), context.peer()
        return pb.GetModelInfoResponse(model="encrypted")


class Ports:
    """One server with three ports: without TLS, with TLS, and with TLS for clients that have a certificate."""

    def __init__(self, keys: Keys) -> None:
        pair = (keys.key.read_bytes(), keys.cert.read_bytes())
        self.service = Service()
        self.server = grpc.server(ThreadPoolExecutor(4))
        tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(self.service, self.server)
        self.plain = f"localhost:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.tls = f"localhost:{self.server.add_secure_port('127.0.0.1:0', grpc.ssl_server_credentials([pair]))}"
        mutual = grpc.ssl_server_credentials([pair], pair[1], require_client_auth=True)
        self.mutual = f"localhost:{self.server.add_secure_port('127.0.0.1:0', mutual)}"
        self.server.start()


@pytest.fixture(scope="module")
def ports(keys):
    ports = Ports(keys)
    yield ports
    ports.server.stop(0).wait(HANG_SECONDS)


async def model(target: str, **options) -> str:
    async with AsyncClient(target, timeout=HANG_SECONDS, **options) as client:
        return (await client.model_info()).model


async def test_a_connection_is_encrypted_with_tls(ports, keys):
    assert await model(ports.tls, ca=keys.cert) == "encrypted"
    assert await model(ports.tls, tls=True, ca=str(keys.cert)) == "encrypted"
    assert await model(ports.tls, credentials=tls_credentials(keys.cert)) == "encrypted"
    assert await model(ports.mutual, ca=keys.cert, cert=keys.cert, key=keys.key) == "encrypted"
    with Client(ports.mutual, ca=keys.cert, cert=keys.cert, key=keys.key) as client:
        assert client.model_info().model == "encrypted"


def cases(ports: Ports, keys: Keys) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    ca = keys.cert
    port = ports.tls.partition(":")[2]
    yield "plain to TLS", ports.tls, {}, "uses TLS, and this client does not; set tls"
    yield "plain to mutual TLS", ports.mutual, {}, "uses TLS, and this client does not; set tls"
    yield "TLS to plain", ports.plain, {"ca": ca}, "does not use TLS, and this client does; leave out tls"
    yield "TLS to plain, system", ports.plain, {"tls": True}, "does not use TLS, and this client does; leave out tls"
    yield "own credentials to plain", ports.plain, {"credentials": tls_credentials(ca)}, "does not use TLS"
    yield "wrong authority", ports.tls, {"ca": keys.other}, "is not trusted: .*; set ca to the file of its authority"
    yield "no authority", ports.tls, {"tls": True}, "is not trusted: self-signed certificate; set ca"
    yield "wrong name", f"127.0.0.1:{port}", {"ca": ca}, "is not trusted: .*mismatch.*; connect to a name that it has"
    yield "no certificate", ports.mutual, {"ca": ca}, "it may ask for a client certificate: set cert and key"
    wrong = {"ca": ca, "cert": keys.other, "key": keys.other_key}
    yield "wrong certificate", ports.mutual, wrong, "client certificate: it may not accept the one of cert"


async def test_every_mistake_is_an_error_at_once_that_names_it(ports, keys):
    for name, target, options, message in cases(ports, keys):
        with pytest.raises(Unavailable, match=f"{target}.*{message}" if "TLS" in name else message) as raised:
            await model(target, retry_seconds=10_000.0, **options)
        assert "\n" not in str(raised.value), name
        with pytest.raises(Unavailable, match=message):
            async with AsyncClient(target, timeout=HANG_SECONDS, **options) as client:
                await client.say("Hello.")


async def test_a_web_server_is_no_speech_server():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(Unavailable, match=r"is a web server of HTTP/1\.1, not a gRPC server; check the port"):
            await model(f"127.0.0.1:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)


# ------------------------------------------------------------ keys and metadata


async def test_an_api_key_is_sent_with_every_call(ports, keys):
    await model(ports.tls, ca=keys.cert, api_key="secret-1")
    assert ports.service.metadata["authorization"] == "Bearer secret-1"
    await model(ports.plain, api_key="secret-2", metadata={"X-Team": "a"})  # to this host itself
    assert ports.service.metadata["authorization"] == "Bearer secret-2"
    assert ports.service.metadata["x-team"] == "a"


async def test_clients_with_other_metadata_share_the_connection(ports):
    async with AsyncClient(ports.plain, api_key="own", metadata={"x-team": "a"}) as client:
        other = client.with_metadata({"Authorization": "Bearer other", "X-Call": "1"})
        await other.model_info()
        assert ports.service.metadata.items() >= {"authorization": "Bearer other", "x-team": "a", "x-call": "1"}.items()
        first = ports.service.peer
        await client.model_info()
        assert ports.service.metadata["authorization"] == "Bearer own"
        assert "x-call" not in ports.service.metadata
        assert ports.service.peer == first
    with Client(ports.plain) as blocking:
        blocking.with_metadata({"x-call": "2"}).model_info()
        assert ports.service.metadata["x-call"] == "2"
        assert blocking.model_info().model == "encrypted"


@pytest.mark.parametrize("target", ["10.0.0.1:50051", "tts.example:50051", "dns:///tts:1", "ipv4:10.0.0.1:1"])
def test_an_api_key_never_leaves_this_host_unencrypted(target):
    with pytest.raises(InvalidArgument, match=f"the api_key would travel to {target} unencrypted; set tls") as raised:
        AsyncClient(target, api_key="secret")
    assert "secret" not in str(raised.value)
    AsyncClient(target, api_key="secret", tls=True)
    AsyncClient(target, api_key="secret", credentials=tls_credentials())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "a\nb"}, "characters that HTTP does not allow"),
        ({"api_key": "a", "metadata": {"Authorization": "b"}}, "both give authorization"),
        ({"cert": "a.pem"}, "cert and key need each other"),
        ({"key": "a.key"}, "cert and key need each other"),
        ({"tls": True, "credentials": grpc.ssl_channel_credentials()}, "credentials cannot be combined with tls"),
    ],
)
def test_options_that_contradict_are_an_error(options, message):
    with pytest.raises(InvalidArgument, match=message):
        AsyncClient("127.0.0.1:1", **options)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        AsyncClient("127.0.0.1:1", ca=tmp_path / "none.pem")


# ------------------------------------------------------------ the program


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GRPC_", "VOXCPM_"))}
    return subprocess.run(
        [*PROGRAM, *arguments], env=environment | variables, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def test_the_program_takes_options_and_variables(ports, keys):
    files = {"VOXCPM_CLIENT_CA": str(keys.cert), "VOXCPM_CLIENT_CERT": str(keys.cert)}
    variables = {"VOXCPM_CLIENT_TARGET": ports.mutual, "VOXCPM_CLIENT_KEY": str(keys.key), **files}
    more = {"VOXCPM_CLIENT_API_KEY": "secret", "VOXCPM_CLIENT_METADATA": "x-team=a x-other=b"}
    done = run(**variables, **more)
    assert "encrypted" in done.stdout and done.stderr == ""
    assert ports.service.metadata.items() >= {"authorization": "Bearer secret", "x-team": "a", "x-other": "b"}.items()
    options = ["--ca", str(keys.cert), "--api-key", "other", "--metadata", "x-team=c"]
    assert "encrypted" in run("--target", ports.tls, *options).stdout
    assert ports.service.metadata.items() >= {"authorization": "Bearer other", "x-team": "c"}.items()


def test_the_program_prints_one_line_and_nothing_of_the_c_core(ports, keys):
    for target, *options in [
        (ports.tls,),
        (ports.tls, "--ca", str(keys.other)),
        (ports.plain, "--tls"),
        (ports.mutual, "--ca", str(keys.cert)),
        ("http://localhost:50051",),
        ("localhost",),
        ("10.0.0.1:50051", "--api-key", "secret"),
        ("127.0.0.1:1", "--retry-seconds", "0"),
    ]:
        done = run("--target", target, *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert done.stderr.startswith("Error: ")
        assert "secret" not in done.stderr


def test_the_log_of_the_c_core_is_the_choice_of_the_user(ports):
    done = run("--target", ports.plain, "--tls", GRPC_VERBOSITY="INFO")
    assert "Handshake failed" in done.stderr


def test_child_processes_do_not_inherit_a_level():
    code = "import os, voxcpm_client; assert 'GRPC_VERBOSITY' not in os.environ"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS, env=environment)
