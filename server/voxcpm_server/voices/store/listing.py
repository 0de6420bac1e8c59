"""The pages of a list of voices: filter, order and token."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.store.names import ID, Generation

PAGE, MAX_PAGE = 100, 1000


class Listing:
    """Collects one page, the newest voices first. Raises InvalidRequest for a bad size or token."""

    def __init__(
        self,
        kind: VoiceKind | None,
        labels: Mapping[str, str],
        size: int,
        token: str,
        sees: Callable[[str], bool],
        fingerprint: str = "",
    ) -> None:
        if size < 0:
            raise InvalidRequest(f"page_size is {size}; it must be 0 or more", field="page_size")
        self._prefix = f"{kind.value}_" if kind else ""
        self._labels = labels
        self._sees = sees
        self._fingerprint = fingerprint
        self._size = min(size or PAGE, MAX_PAGE)
        self._after = _parse(token) if token else None
        self._found: list[tuple[Generation, Voice]] = []

    def batches(self, voices: Iterable[Generation]) -> list[list[Generation]]:
        """The voices that may be on the page, in its order, in batches whose records are read together."""
        wanted = [one for one in voices if one.id.startswith(self._prefix)]
        if self._after:
            wanted = [one for one in wanted if _order(one) > self._after]
        wanted.sort(key=_order)
        batch = self._size + 1
        return [wanted[at : at + batch] for at in range(0, len(wanted), batch)]

    def offer(self, one: Generation, voice: Voice) -> None:
        """Add a voice if its principal is to be listed, and its model and the labels of one of its names match.

        A stored voice shows that name; a preset has one of its own.
        """
        if self._fingerprint and voice.fingerprint != self._fingerprint:
            return
        if self._sees(voice.principal):
            if self._matches(voice.labels):
                self._found.append((one, voice))
            elif name := next((other.name for other in voice.other_names if self._matches(other.labels)), ""):
                self._found.append((one, voice.shown_as(name) if voice.created else voice))

    def _matches(self, labels: Mapping[str, str]) -> bool:
        return self._labels.items() <= labels.items()

    @property
    def full(self) -> bool:
        return len(self._found) > self._size

    @property
    def page(self) -> list[Voice]:
        return [voice for _, voice in self._found[: self._size]]

    @property
    def next_token(self) -> str:
        """The token of the next page; "" if this page is the last."""
        if not self.full:
            return ""
        last, _ = self._found[self._size - 1]
        return base64.urlsafe_b64encode(json.dumps([last.created, last.id]).encode()).decode()


def _order(one: Generation) -> tuple[int, str]:
    return -one.created, one.id


def _parse(token: str) -> tuple[int, str]:
    try:
        created, id = json.loads(base64.urlsafe_b64decode(token.encode()))
        if isinstance(created, int) and isinstance(id, str) and ID.fullmatch(id):
            return -created, id
    except (ValueError, TypeError, RecursionError):
        pass
    raise InvalidRequest("page_token is not one of this server's; start again with the first page", field="page_token")
