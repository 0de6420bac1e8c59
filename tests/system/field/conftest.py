"""A server with the bundled voice and its HTTP gateway, for the clients of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.servers.running import FEW_TIMESTEPS, Server, serving


@dataclass(frozen=True)
class Site:
    """A server and the address of its gateway.

    url: address of the gateway, such as http://127.0.0.1:8000
    """

    server: Server
    url: str

    @property
    def host(self) -> str:
        """Host and port of the gateway."""
        return self.url.removeprefix("http://")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    voices = tmp_path_factory.mktemp("voices")
    with serving(voices, "--http", "127.0.0.1:0", model="demo", family=FEW_TIMESTEPS) as server:
        found = re.search(r"HTTP is at (http://\S+)", server.log)
        assert found
        yield Site(server, found[1])
        assert not server.fault()
