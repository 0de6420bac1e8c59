"""Voice stores of every kind, with faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
from support.engines.voice_parts import latents_of, voice_part
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import Unavailable
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.store.named_voices import entries
from voxcpm_server.voices.store.names import Name, ObjectKind, new_generation
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.records import StoredVoice, encode, voice_id
from voxcpm_server.voices.store.store import VoiceStore

DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class FaultyObjects(Objects):
    """Records its calls. Calls can be blocked, the store can be lost, and writes can fail after some."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.blocked: tuple[str, str] | None = None  # the method that waits, or "" for all, and the ending of a name
        self.unblocked = threading.Event()
        self.lost = False
        self.writes_left: int | None = None
        self.threads: set[str] = set()

    def names(self, folder: str = "") -> list[str]:
        self._record("names", folder)
        return super().names(folder)

    def read(self, *names: str) -> dict[str, bytes]:
        self._record("read", *names)
        return super().read(*names)

    def write(self, name: str, data: bytes) -> None:
        self._record("write", name)
        if self.writes_left is not None:
            if not self.writes_left:
                raise Unavailable("the store failed")
            self.writes_left -= 1
        super().write(name, data)

    def remove(self, *names: str) -> None:
        self._record("remove", *names)
        super().remove(*names)

    def _record(self, verb: str, *names: str) -> None:
        self.calls.append((verb, names))
        self.threads.add(threading.current_thread().name)
        if self._blocks(verb, names):
            assert self.unblocked.wait(HANG_SECONDS), "the test did not unblock the call"
        if self.lost:
            raise Unavailable("the store cannot be reached", retry_after=5)

    def block(self, verb: str = "", ending: str = "") -> None:
        """Block calls of one method, or of all, until `unblock`; only those with a name of this ending.

        Calls that were blocked before continue.
        """
        self.unblocked.set()
        self.unblocked = threading.Event()
        self.blocked = verb, ending

    def unblock(self) -> None:
        self.blocked = None
        self.unblocked.set()

    def _blocks(self, verb: str, names: tuple[str, ...]) -> bool:
        if self.blocked is None:
            return False
        method, ending = self.blocked
        return method in ("", verb) and any(name.endswith(ending) for name in names)

    def count(self, verb: str, ending: str) -> int:
        """The number of calls of a method with a name of this ending."""
        return sum(any(name.endswith(ending) for name in names) for called, names in self.calls if called == verb)


@dataclass
class Servers:
    """The stores of several servers on one URL. `objects` has those of each store."""

    url: str
    clock: Clock = field(default_factory=Clock)
    objects: list[FaultyObjects] = field(default_factory=list)

    def open(self, fingerprint: str = "model", **settings) -> VoiceStore:
        self.objects.append(FaultyObjects(self.url))
        settings = {"ttl_seconds": 10 * DAY, "max_voices": 50, "timeout_seconds": HANG_SECONDS, **settings}
        return VoiceStore(self.objects[-1], VoiceSettings(**settings), fingerprint, self.clock)

    @property
    def names(self) -> list[str]:
        """The names of all objects without their numbers: `ID.kind`."""
        parts = [name.partition("/") for name in Objects(self.url).names()]
        return sorted(f"{id}.{name.rpartition('.')[2]}" for id, _, name in parts)


def voice(name: str = "a", ttl: float = 0.0, **fields) -> StoredVoice:
    """A prompt of two patches; its id depends on the name."""
    kind = fields.pop("kind", VoiceKind.PROMPT)
    described = Voice(
        **{"id": voice_id(kind, name), "kind": kind, "fingerprint": "model", "transcript": name, "ttl": ttl, **fields}
    )
    prompt = voice_part(np.arange(64, dtype=np.float32).reshape(2, 4, 8), described.transcript)
    return StoredVoice(voice=described, prompt=prompt)


def write_as_before(objects: Objects, stored: StoredVoice, created: float) -> None:
    """Write a voice as servers did that knew one name for each voice, and no rule for names.

    created: seconds since the epoch
    """
    generation = new_generation(round(created * 1e6))
    record, latents = encode(stored)
    fields = msgspec.json.decode(record)
    del fields["voice"]["other_names"]
    id, ttl = stored.voice.id, round((stored.voice.ttl or 10 * DAY) * 1e6)
    if stored.voice.display_name:
        (entry,) = entries(stored.voice, generation)
        objects.write(str(entry), b"name\n")
    objects.write(str(Name(id, generation, len(latents), ObjectKind.LATENTS)), latents)
    objects.write(str(Name(id, generation, ttl, ObjectKind.RECORD)), msgspec.json.encode(fields))


def prompt_of(stored: StoredVoice) -> np.ndarray:
    """The prompt of a voice that has one."""
    return latents_of(stored.prompt)


async def listed(store: VoiceStore) -> list[str]:
    """The ids of all voices."""
    return [voice.id for voice in (await store.page())[0]]


@contextmanager
def s3_bucket() -> Iterator[str]:
    """The URL of a bucket on an S3 server inside the block."""
    import fsspec.config
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "test", "secret": "test"}
        before = dict(fsspec.config.conf)
        fsspec.config.conf["s3"] = options  # as in a file in ~/.config/fsspec
        try:
            fsspec.filesystem("s3").mkdir("voices")
            yield "s3://voices"
        finally:
            fsspec.config.conf.clear()
            fsspec.config.conf.update(before)
    finally:
        server.stop()
