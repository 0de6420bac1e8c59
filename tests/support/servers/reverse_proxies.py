"""The reverse proxies of docs/http.md before a gateway, run with those very lines and with addresses of this host."""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from support.clients.websocket_options import DIRECT
from support.servers.ports import free_port
from support.servers.proxies import replace
from support.servers.waiting import HANG_SECONDS, wait_until
from websockets.sync.client import ClientConnection, connect

PAGE = Path(__file__).parents[3] / "docs/http.md"
NAME = "tts.example"
GATEWAY = "http://127.0.0.1:8000"
LOOPBACK = "127.0.0.1"


def documented(language: str) -> list[str]:
    """The blocks of docs/http.md in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class ReverseProxy:
    """A proxy that listens with TLS under the name tts.example, as its callers see it."""

    port: int
    context: ssl.SSLContext

    @property
    def origin(self) -> str:
        """The origin of its page."""
        return f"https://{NAME}:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection to it, whose requests have its name as their host."""
        connection = http.client.HTTPSConnection(NAME, self.port, context=self.context, timeout=HANG_SECONDS)
        address = (LOOPBACK, self.port)
        plain = socket.create_connection(address, HANG_SECONDS)
        connection.sock = self.context.wrap_socket(plain, server_hostname=NAME)
        return connection

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of the response to a request on a connection of its own."""
        connection = self.connect()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, fields, encode_chunked="transfer-encoding" in fields)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def websocket(self, path: str) -> ClientConnection:
        """A WebSocket of its page."""
        address = (LOOPBACK, self.port)
        return connect(
            f"wss://{NAME}:{self.port}{path}",
            sock=socket.create_connection(address, HANG_SECONDS),
            ssl=self.context,
            server_hostname=NAME,
            origin=self.origin,  # type: ignore[arg-type]
            **DIRECT,
        )


Command = Callable[[Path, int, str], list[str | Path]]


@contextmanager
def reverse_proxy(command: Command, folder: Path, gateway: str) -> Iterator[ReverseProxy]:
    """Run a proxy before a gateway.

    command: from a folder, which has cert.pem and key.pem, the port to listen on and the gateway's address
    gateway: HOST:PORT
    """
    authority = trustme.CA()
    made = authority.issue_cert(NAME)
    made.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    proxy = ReverseProxy(free_port(), context)
    path = folder / "log"
    with path.open("w+") as log:
        process = subprocess.Popen(
            command(folder, proxy.port, gateway),
            env=os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: process.poll() is not None or _answers(proxy))
            assert process.poll() is None, path.read_text("utf-8")
            yield proxy
        finally:
            process.terminate()
            process.wait(HANG_SECONDS)


def _answers(proxy: ReverseProxy) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return proxy.request("GET", "/health")[0] == 200
    return False


def nginx(folder: Path, port: int, gateway: str) -> list[str | Path]:
    [lines] = documented("nginx")
    lines = replace(lines, "listen 443 ssl;", f"listen {LOOPBACK}:{port} ssl;")
    lines = replace(lines, "/etc/nginx/tts.pem", str(folder / "cert.pem"))
    lines = replace(lines, "/etc/nginx/tts.key", str(folder / "key.pem"))
    lines = replace(lines, GATEWAY, f"http://{gateway}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(f"pid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{folders}{lines}}}\n", "utf-8")
    return ["nginx", "-p", folder, "-e", "stderr", "-c", config, "-g", "daemon off; master_process off;"]


def caddy(folder: Path, port: int, gateway: str) -> list[str | Path]:
    [lines] = documented("caddyfile")
    files = f"bind {LOOPBACK}\n    tls {folder}/cert.pem {folder}/key.pem"  # instead of those that it asks for itself
    lines = replace(lines, f"{NAME} {{\n", f"{NAME}:{port} {{\n    {files}\n")
    lines = replace(lines, GATEWAY.removeprefix("http://"), gateway)
    config = folder / "Caddyfile"
    config.write_text(f"{{\n    admin off\n    auto_https disable_redirects\n}}\n{lines}", "utf-8")
    return ["caddy", "run", "--config", config, "--adapter", "caddyfile"]
