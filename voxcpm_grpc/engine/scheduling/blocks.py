"""The owners of KV pages, and the pages whose content another request may share. No torch."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

SCRATCH_PAGE = 0  # padding rows write here; no sequence owns it


class BlockManager:
    """Counts references to pages 1..pages. A page without owners keeps its registered content until it is needed."""

    def __init__(self, pages: int) -> None:
        self.total = pages
        self._owners: dict[int, int] = {}
        self._blank: deque[int] = deque(range(1, pages + 1))
        # These pages have registered content and no owner, the oldest first.
        self._idle: OrderedDict[int, bytes] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        return self.total - self.free

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """The longest prefix of pages with these contents, with a reference to each."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            self._idle.pop(page, None)
            self._owners[page] = self._owners.get(page, 0) + 1
            pages.append(page)
        return pages

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages of undefined content, or None if fewer are free."""
        if count > self.free:
            return None
        pages = []
        for _ in range(count):
            page = self._blank.popleft() if self._blank else self._evict()
            self._owners[page] = 1
            pages.append(page)
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page."""
        for page in reversed(pages):  # the end of a sequence is then evicted before its start
            self._owners[page] -= 1
            if self._owners[page]:
                continue
            del self._owners[page]
            if page in self._key_of:
                self._idle[page] = self._key_of[page]
            else:
                self._blank.append(page)

    def register(self, page: int, key: bytes) -> None:
        """Record the content of an owned page. If another page has the same content, nothing is recorded."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def clear_cache(self) -> None:
        """Drop all registered content, for example after a fault that may have left pages unwritten."""
        self._blank.extend(self._idle)
        self._idle.clear()
        self._page_of.clear()
        self._key_of.clear()

    def _evict(self) -> int:
        page, key = self._idle.popitem(last=False)
        del self._page_of[key], self._key_of[page]
        return page


def page_keys(contents: Iterable[bytes], adapter: str = "") -> list[bytes]:
    """A key for each page. Equal keys mean equal content of all positions up to the end of the page.

    `contents` are those of the pages, in order. `adapter` is the fingerprint of the LoRA adapter, or empty.
    """
    keys: list[bytes] = []
    previous = adapter.encode()
    for content in contents:
        previous = hashlib.blake2b(previous + content, digest_size=16).digest()
        keys.append(previous)
    return keys
