"""Stores to keep voices in, of every kind, and what can happen to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.waiting import HANG_SECONDS

from voxcpm_grpc.errors import Unavailable
from voxcpm_grpc.settings.schema import VoiceSettings
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.voices.store.stored_voice import StoredVoice, voice_id
from voxcpm_server.wire.voice import Voice, VoiceKind

DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Watched(Objects):
    """Objects that count what is asked of them, and can be held up, lost, or stop working after some writes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.held_up: str | None = None  # the verb that waits for `go_on`; empty for all of them
        self.going_on = threading.Event()
        self.lost = False
        self.writes_left: int | None = None
        self.threads: set[str] = set()

    def names(self, folder: str = "") -> list[str]:
        self._ask("names", folder)
        return super().names(folder)

    def read(self, *names: str) -> dict[str, bytes]:
        self._ask("read", *names)
        return super().read(*names)

    def write(self, name: str, data: bytes) -> None:
        self._ask("write", name)
        if self.writes_left is not None:
            if not self.writes_left:
                raise Unavailable("it broke down")
            self.writes_left -= 1
        super().write(name, data)

    def remove(self, *names: str) -> None:
        self._ask("remove", *names)
        super().remove(*names)

    def _ask(self, verb: str, *names: str) -> None:
        self.asked.append((verb, names))
        self.threads.add(threading.current_thread().name)
        if self.held_up is not None and self.held_up in ("", verb):
            assert self.going_on.wait(HANG_SECONDS), "held up by who was to say that it goes on"
        if self.lost:
            raise Unavailable("it cannot be reached", retry_after=5)

    def hold_up(self, verb: str = "") -> None:
        """Let requests of a kind, or all, wait until `go_on`."""
        self.going_on.clear()
        self.held_up = verb

    def go_on(self) -> None:
        self.held_up = None
        self.going_on.set()

    def count(self, verb: str, ending: str) -> int:
        """Requests of a kind that name an object of a kind."""
        return sum(any(name.endswith(ending) for name in names) for asked, names in self.asked if asked == verb)


@dataclass
class Servers:
    """Stores as servers open them, on one URL; all that was opened is in `objects`."""

    url: str
    clock: Clock = field(default_factory=Clock)
    objects: list[Watched] = field(default_factory=list)

    def open(self, fingerprint: str = "model", **settings) -> VoiceStore:
        self.objects.append(Watched(self.url))
        settings = {"ttl_seconds": 10 * DAY, "max_voices": 50, "timeout_seconds": HANG_SECONDS, **settings}
        return VoiceStore(self.objects[-1], VoiceSettings(**settings), fingerprint, self.clock)

    @property
    def names(self) -> list[str]:
        """Of all objects, without their numbers: `ID.part`."""
        parts = [name.partition("/") for name in Objects(self.url).names()]
        return sorted(f"{id}.{name.rpartition('.')[2]}" for id, _, name in parts)


def voice(name: str = "a", ttl: float = 0.0, **fields) -> StoredVoice:
    """A prompt of two patches; the name makes its id."""
    kind = fields.pop("kind", VoiceKind.PROMPT)
    described = Voice(id=voice_id(kind, name), kind=kind, fingerprint="model", transcript=name, ttl=ttl, **fields)
    return StoredVoice(voice=described, prompt=np.arange(64, dtype=np.float32).reshape(2, 4, 8))


async def listed(store: VoiceStore) -> list[str]:
    """The ids of all voices."""
    return [voice.id for voice in (await store.page())[0]]


@contextmanager
def s3_bucket() -> Iterator[str]:
    """The URL of a bucket of an S3 server that lives as long as the block. Skips without the packages for it."""
    why = "needs s3fs and moto: pip install s3fs 'moto[server]'"
    pytest.importorskip("s3fs", reason=why)
    moto = pytest.importorskip("moto.server", reason=why)
    import fsspec

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "test", "secret": "test"}
        before = dict(fsspec.config.conf)
        fsspec.config.conf["s3"] = options  # what a file in ~/.config/fsspec would say
        try:
            fsspec.filesystem("s3").mkdir("voices")
            yield "s3://voices"
        finally:
            fsspec.config.conf.clear()
            fsspec.config.conf.update(before)
    finally:
        server.stop()
