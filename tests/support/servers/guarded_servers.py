"""A server with small limits, and callers with keys and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from support.clients.json_tokens import document
from support.servers.running import ADMIN, serving
from support.servers.targets import Target

from voxcpm_server.auth.keys import create

MAX_STREAMS, MAX_OF_CALLER, MAX_OF_CONNECTION = 4, 3, 2
MAX_UPLOAD_BYTES, MAX_UPLOAD_BYTES_OF_CALLER = 100_000, 70_000
MAX_VOICES, MAX_VOICES_OF_CALLER = 3, 2
FLAGS = {
    "limits.max-streams": MAX_STREAMS,
    "limits.max-streams-per-caller": MAX_OF_CALLER,
    "limits.max-streams-per-connection": MAX_OF_CONNECTION,
    "limits.max-upload-bytes-total": MAX_UPLOAD_BYTES,
    "limits.max-upload-bytes-per-caller": MAX_UPLOAD_BYTES_OF_CALLER,
    "voices.max-voices": MAX_VOICES,
    "voices.max-voices-per-caller": MAX_VOICES_OF_CALLER,
    "engine.max-slots": 1,
    "engine.max-queue": 1,
}


@dataclass(frozen=True)
class Guarded:
    """A server that needs credentials: API keys of `keys`, or tokens that `support.clients.json_tokens` makes."""

    address: str
    keys: Path

    def caller(self, credential: str) -> Target:
        return Target(self.address, api_key=credential)

    def new_caller(self, name: str, *, admin: bool = False) -> Target:
        """A caller with a new API key, which the server accepts within seconds."""
        return self.caller(create(name, self.keys, admin=admin))


@contextmanager
def guarded_server(folder: Path, model: Path) -> Iterator[tuple[Guarded, dict[str, Target]]]:
    """Serve with small limits. Yields the server, and the callers a, b and operator, which is an admin."""
    keys, tokens = folder / "keys.toml", folder / "jwks.json"
    made = {name: create(name, keys, admin=name == "operator") for name in ("a", "b", "operator")}
    tokens.write_text(document("ES256"))
    flags = ["--admin.listen", "127.0.0.1:0"]
    flags += [text for name, value in FLAGS.items() for text in (f"--{name}", str(value))]
    with serving(folder / "voices", "--auth.keys", str(keys), "--auth.jwks", str(tokens), *flags, model=model) as one:
        guarded = Guarded(one.address, keys)
        [admin] = ADMIN.findall(one.log)
        yield guarded, {name: replace(guarded.caller(key), admin=admin, server=one) for name, key in made.items()}
