"""A small HTTP proxy that tunnels connections (CONNECT), or refuses them."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.servers.waiting import HANG_SECONDS

USER = "user:secret"


@dataclass
class ConnectProxy:
    """A proxy that listens. It tunnels every target to one server, or refuses all if it has none.

    asked: the targets that clients asked for, in order
    """

    port: int
    server: str | None
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The value of a variable such as https_proxy, with a password."""
        return f"http://{USER}@127.0.0.1:{self.port}"

    def serve(self, client: socket.socket) -> None:
        """Answer one connection."""
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := client.recv(4096)):
                    return
                head += data
            found = re.match(rb"CONNECT (\S+) ", head)
            self.asked.append(found[1].decode() if found else head.decode("latin-1"))
            if self.server is None:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            host, _, port = self.server.rpartition(":")
            with socket.create_connection((host, int(port)), HANG_SECONDS) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                _copy(client, server)


def _copy(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes both ways until one side ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                if not (data := source.recv(65536)):
                    return
                sink.sendall(data)


@contextlib.contextmanager
def connect_proxy(server: str | None = None) -> Iterator[ConnectProxy]:
    """Run a proxy for the duration of the block. It tunnels to `server`, HOST:PORT, or refuses without one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ConnectProxy(listener.getsockname()[1], server)

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener is closed
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=proxy.serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
