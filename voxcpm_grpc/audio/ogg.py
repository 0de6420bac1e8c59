"""Pages of Ogg Opus (RFC 3533 and RFC 7845), one for each packet.

FFmpeg's muxer keeps every page until the next one begins, which would hold 20 ms of a stream back.
"""

from __future__ import annotations

import secrets
import struct
import zlib

FIRST, LAST = 2, 4  # flags of a page
RATE = 48000  # of positions, whatever the rate of the signal
NO_COMMENTS = b"OpusTags" + struct.pack("<I", 0) + struct.pack("<I", 0)
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OpusPages:
    """Makes the pages of a stream. head: the packet OpusHead."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._serial = secrets.randbits(32)
        self._number = 0

    def header(self) -> bytes:
        """The first two pages."""
        return self._page(self._head, 0, FIRST) + self._page(NO_COMMENTS, 0)

    def page(self, packet: bytes, end: int, *, last: bool = False) -> bytes:
        """The page of a packet. end: position of the end of its audio, at 48 kHz and with the encoder's lookahead."""
        return self._page(packet, end, LAST if last else 0)

    def _page(self, packet: bytes, position: int, flags: int = 0) -> bytes:
        sizes = b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255])
        fields = (b"OggS", 0, flags, position, self._serial, self._number, 0, len(sizes))
        page = bytearray(struct.pack("<4sBBqIIIB", *fields) + sizes + packet)
        struct.pack_into("<I", page, 22, _checksum(bytes(page)))
        self._number += 1
        return bytes(page)


def _checksum(data: bytes) -> int:
    """CRC-32 of Ogg: the polynomial of zlib, most significant bit first, from 0 and without a final inversion."""
    mirrored = ~zlib.crc32(data.translate(REVERSED), 0xFFFFFFFF) & 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
