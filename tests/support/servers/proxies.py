"""The load balancers of server/deploy/proxies, run with the files that ship and with addresses of this host."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client, SpeechError

EXAMPLES = Path(__file__).parents[3] / "server/deploy/proxies"
SERVERS = ("10.0.0.1", "10.0.0.2")  # of the examples
PORT = "50051"


@dataclass(frozen=True)
class Proxy:
    """A load balancer, and how its behaviour differs from that of the others.

    command: from the folder of its files and the address to listen on, with the addresses of two servers
    asks_health: a server that ends gets no calls, so that none needs a second attempt
    ends: status codes of streams that have begun when their server dies
    """

    name: str
    command: Callable[[Path, str, Sequence[str]], list[str | Path]]
    asks_health: bool
    ends: frozenset[str]
    deselected: str = ""  # -k of pytest: tests of a server that no setting of the proxy lets pass

    @contextmanager
    def running(self, folder: Path, servers: Sequence[str]) -> Iterator[str]:
        """The address of the proxy in front of two servers that are ready."""
        address = free_address()
        path = folder / f"{self.name}.log"
        with path.open("w+") as log:
            process = subprocess.Popen(
                self.command(folder, address, servers),
                env=os.environ | _haproxy_variables(address, servers),
                stdout=log,
                stderr=log,
            )
            try:
                wait_until(lambda: process.poll() is not None or _serves(address))
                assert process.poll() is None, path.read_text("utf-8")
                yield address
            finally:
                process.terminate()
                process.wait(HANG_SECONDS)


def _serves(address: str) -> bool:
    with Client(address, timeout=HANG_SECONDS, retries=0) as client:
        try:
            return client.health()
        except SpeechError:
            return False


def _haproxy_variables(address: str, servers: Sequence[str]) -> dict[str, str]:
    names = {f"VOXCPM_SERVER_{number}": server for number, server in enumerate(servers, 1)}
    return {"VOXCPM_LISTEN": address, **names}


def _haproxy(folder: Path, address: str, servers: Sequence[str]) -> list[str | Path]:
    return ["haproxy", "-db", "-f", EXAMPLES / "haproxy.cfg"]


def replace(text: str, old: str, new: str) -> str:
    """`text` with its only `old` as `new`."""
    assert text.count(old) == 1, f"{old} is there {text.count(old)} times"
    return text.replace(old, new)


def nginx_config(folder: Path, address: str, servers: Sequence[str]) -> str:
    """The example with these addresses, and with its files in a folder."""
    text = (EXAMPLES / "nginx.conf").read_text("utf-8")
    for old, new in zip(SERVERS, servers, strict=True):
        text = replace(text, f"server {old}:{PORT} ", f"server {new} ")
    text = replace(text, f"listen {PORT} http2;", f"listen {address} http2;")
    text = replace(text, "pid /run/nginx.pid;", f"pid {folder}/nginx.pid;")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    return replace(text, "http {\n", f"http {{\n{paths}")


def _nginx(folder: Path, address: str, servers: Sequence[str]) -> list[str | Path]:
    path = folder / "nginx.conf"
    path.write_text(nginx_config(folder, address, servers), "utf-8")
    return ["nginx", "-p", folder, "-e", "stderr", "-c", path, "-g", "daemon off;"]


def envoy_config(address: str, servers: Sequence[str]) -> str:
    """The example with these addresses."""
    text = (EXAMPLES / "envoy.yaml").read_text("utf-8")
    for old, new in zip(("0.0.0.0", *SERVERS), (address, *servers), strict=True):
        host, _, port = new.rpartition(":")
        text = replace(text, f"address: {old}, port_value: {PORT}", f"address: {host}, port_value: {port}")
    return replace(text, "port_value: 9901", "port_value: 0")


def _envoy(folder: Path, address: str, servers: Sequence[str]) -> list[str | Path]:
    path = folder / "envoy.yaml"
    path.write_text(envoy_config(address, servers), "utf-8")
    return ["envoy", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c", path]


def addresses(text: str) -> set[str]:
    """The addresses of servers in an example."""
    return set(re.findall(r"10\.0\.0\.\d+", text))


PROXIES = (
    # HAProxy resets a stream that the server ends while the side of the client is open, often before the status.
    Proxy(
        "haproxy",
        _haproxy,
        asks_health=True,
        ends=frozenset({"CANCELLED", "UNAVAILABLE"}),
        deselected="not though_the_client_does_not_half_close",
    ),
    Proxy("nginx", _nginx, asks_health=False, ends=frozenset({"CANCELLED", "UNAVAILABLE", "INTERNAL", "UNKNOWN"})),
    Proxy("envoy", _envoy, asks_health=True, ends=frozenset({"CANCELLED", "UNAVAILABLE", "INTERNAL", "UNKNOWN"})),
)
