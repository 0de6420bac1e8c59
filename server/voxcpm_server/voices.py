"""Stored voices: one file each, written so that a crash leaves the old state or the new one, and shared by restarts.

The directory is the truth; what is kept in memory only saves reading files that did not change. A voice lives for its
time to live after its last use, which the file's modification time records.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxcpm_grpc.config import VoiceSettings
from voxcpm_grpc.errors import Exhausted, FailedPrecondition, InvalidRequest, NotFound

log = logging.getLogger(__name__)

SUFFIX = ".voice.safetensors"
TOUCH_SECONDS = 3600.0  # a use is recorded at most this often
ID = re.compile(r"(prm|ref|hifi)_[a-z2-7]{32}")
PAGE, MAX_PAGE = 100, 1000
FULL_RETRY_SECONDS = 60.0


class Kind(Enum):
    PROMPT = "prm"
    REFERENCE = "ref"
    HIFI = "hifi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A stored voice without its latents. Times in seconds, moments since the epoch; `ttl` counts from the last use."""

    id: str
    kind: Kind
    fingerprint: str
    transcript: str = ""
    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    ttl: float = 0.0
    created: float = 0.0
    used: float = 0.0
    prompt_seconds: float = 0.0
    reference_seconds: float = 0.0
    prompt_id: str = ""
    reference_id: str = ""

    @property
    def expires(self) -> float:
        return self.used + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredVoice:
    """A voice and its latents, float32 [patches, P, D]; a hifi voice holds its own copy of both."""

    voice: Voice
    prompt: np.ndarray | None = None
    reference: np.ndarray | None = None


def voice_id(kind: Kind, *content: str | memoryview) -> str:
    """The id of what makes a voice what it is; the same content gives the same id."""
    digest = hashlib.blake2b(digest_size=20, person=kind.value.encode())
    for part in content:
        data = memoryview(part.encode()) if isinstance(part, str) else part
        digest.update(data.nbytes.to_bytes(8, "little"))
        digest.update(data)
    return f"{kind.value}_{base64.b32encode(digest.digest()).decode().lower()}"


class VoiceStore:
    """Blocking, and safe to call from several threads; keep it away from an event loop."""

    def __init__(
        self, directory: Path, settings: VoiceSettings, fingerprint: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._fingerprint = fingerprint
        self._clock = clock
        self._lock = threading.RLock()
        self._known: dict[str, tuple[int, Voice | None]] = {}  # by file name: its mtime in ns, None if unreadable
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # voices are personal data
        for leftover in directory.glob(f"*{SUFFIX}.tmp*"):
            if self._clock() - leftover.stat().st_mtime > TOUCH_SECONDS:  # nobody writes for that long
                leftover.unlink(missing_ok=True)
        self._scan()

    def add(self, *wanted: StoredVoice) -> list[tuple[Voice, bool]]:
        """Store those voices that are not there already; returns what is stored and whether it was there.

        Returns when all are durable. Raises Exhausted, and stores none, when there is no room for all.
        """
        with self._lock:
            there: dict[str, Voice] = {}
            for stored in wanted:
                with suppress(NotFound):
                    there[stored.voice.id] = self.find(stored.voice.id)
            new = [stored for stored in wanted if stored.voice.id not in there]
            limit = self._settings.max_voices
            if new and len(self._scan()) + len(new) > limit:
                raise Exhausted(f"the store has room for {limit} voices; delete some", retry_after=FULL_RETRY_SECONDS)
            made = {stored.voice.id: self._write(stored) for stored in new}
            ids = [stored.voice.id for stored in wanted]
            return [(there[id], True) if id in there else (made[id], False) for id in ids]

    def find(self, id: str) -> Voice:
        """The voice, whose life starts again. Raises NotFound."""
        with self._lock:
            path = self._path(id)
            voice = self._read(path)
            if voice is None:
                raise NotFound(f"there is no voice {id}; it was deleted, has expired or never existed", field="id")
            return self._touch(path, voice)

    def load(self, id: str) -> StoredVoice:
        """The voice with its latents. Raises NotFound, and FailedPrecondition for a voice of another model."""
        with self._lock:
            voice = self.find(id)
            if voice.fingerprint != self._fingerprint:
                raise FailedPrecondition(
                    f"voice {id} was made with model {voice.fingerprint[:16]} and this server runs "
                    f"{self._fingerprint[:16]}; upload the recording again"
                )
            with safe_open(self._path(id), "np") as file:
                latents = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return StoredVoice(voice=voice, prompt=latents.get("prompt"), reference=latents.get("reference"))

    def delete(self, id: str, *, cascade: bool = False) -> None:
        """Delete a voice; with `cascade` also the members of a hifi voice that no other one uses. Raises NotFound."""
        with self._lock:
            path = self._path(id)
            voice = self._read(path)
            if voice is None:
                raise NotFound(f"there is no voice {id}", field="id")
            self._remove(path)
            if cascade and voice.kind is Kind.HIFI:
                used = {member for other in self._scan() for member in (other.prompt_id, other.reference_id)}
                for member in {voice.prompt_id, voice.reference_id} - used - {""}:
                    self._remove(self._path(member))
            self._sync()

    def page(
        self, *, kind: Kind | None = None, labels: dict[str, str] | None = None, size: int = 0, token: str = ""
    ) -> tuple[list[Voice], str]:
        """Voices newest first, and the token of the next page, "" on the last. Raises InvalidRequest."""
        if size < 0:
            raise InvalidRequest(f"page_size is {size}; it must be 0 or more", field="page_size")
        size = min(size or PAGE, MAX_PAGE)
        wanted = (labels or {}).items()
        with self._lock:
            voices = [v for v in self._scan() if kind in (None, v.kind) and wanted <= v.labels.items()]
        voices.sort(key=_order)
        if token:
            after = _parse_token(token)
            voices = [voice for voice in voices if _order(voice) > after]
        page = voices[:size]
        return page, _token(page[-1]) if len(voices) > size else ""

    def _path(self, id: str) -> Path:
        if not ID.fullmatch(id):  # ids become file names
            raise NotFound("there is no voice of that id; ids look like prm_..., ref_... or hifi_...", field="id")
        return self._directory / f"{id}{SUFFIX}"

    def _scan(self) -> list[Voice]:
        """All living voices; removes the expired."""
        with os.scandir(self._directory) as entries:
            paths = {entry.name: Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)}
        for name in self._known.keys() - paths.keys():
            del self._known[name]
        return [voice for path in paths.values() if (voice := self._read(path)) is not None]

    def _read(self, path: Path) -> Voice | None:
        try:
            modified = path.stat().st_mtime_ns
        except OSError:
            self._known.pop(path.name, None)
            return None
        known = self._known.get(path.name)
        if known is None or known[0] != modified:
            known = self._known[path.name] = modified, _read_voice(path, modified / 1e9)
        voice = known[1]
        if voice is not None and voice.expires <= self._clock():
            log.info("voice id=%s expired", voice.id)
            self._remove(path)
            return None
        return voice

    def _touch(self, path: Path, voice: Voice) -> Voice:
        now = self._clock()
        if now - voice.used > min(TOUCH_SECONDS, voice.ttl / 4):
            with suppress(OSError):  # read-only or just removed by another server: the voice is still good
                os.utime(path, (now, now))
            voice = replace(voice, used=now)
        return voice

    def _write(self, stored: StoredVoice) -> Voice:
        now = self._clock()
        voice = replace(stored.voice, created=now, used=now, ttl=stored.voice.ttl or self._settings.ttl_seconds)
        latents = {"prompt": stored.prompt, "reference": stored.reference}
        tensors = {name: np.ascontiguousarray(x, np.float32) for name, x in latents.items() if x is not None}
        fields = asdict(voice) | {"kind": voice.kind.value}
        path = self._path(stored.voice.id)
        temporary = path.with_name(f"{path.name}.tmp{os.getpid()}-{threading.get_ident()}")
        try:
            with temporary.open("wb") as file:
                file.write(save(tensors, {"voice": json.dumps(fields)}))
                file.flush()
                os.utime(file.fileno(), (now, now))
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync()
        return voice

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._known.pop(path.name, None)

    def _sync(self) -> None:
        """Make the directory's entries durable."""
        handle = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read_voice(path: Path, used: float) -> Voice | None:
    try:
        with safe_open(path, "np") as file:
            fields = json.loads(file.metadata()["voice"])
        return Voice(**fields | {"kind": Kind(fields["kind"]), "used": used})
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        log.warning("voice file %s is unreadable and skipped: %s", path.name, error)
        return None


def _order(voice: Voice) -> tuple[float, str]:
    return -voice.created, voice.id


def _token(voice: Voice) -> str:
    return base64.urlsafe_b64encode(json.dumps(_order(voice)).encode()).decode()


def _parse_token(token: str) -> tuple[float, str]:
    try:
        negated, id = json.loads(base64.urlsafe_b64decode(token.encode()))
        return float(negated), str(id)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidRequest("page_token is none that this server gave out", field="page_token") from None
