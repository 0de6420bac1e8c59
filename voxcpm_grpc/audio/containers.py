"""Containers of audio: the parts of files that are checked before they are decoded, and pages of Ogg."""

from __future__ import annotations

import secrets
import struct
import zlib

ID3, ID3_HEADER_BYTES, ID3_FOOTER = b"ID3", 10, 0x10
MPEG_SYNC = 0xFF  # frames of MP3 and AAC begin with it; their files may begin with tags
OGG, OGG_HEADER_BYTES, OGG_END = b"OggS", 27, 4
MAX_OGG_PAGE = OGG_HEADER_BYTES + 255 + 255 * 255
FRAME_COUNT = 1  # an MP3 header has this flag
MPEG_HEADER_BYTES = 200  # bytes of the side information and the header of the first frame


def without_tags(data: bytes) -> bytes:
    """The file without ID3v2 tags at its start, which some programs write before files of any format.

    Those of MP3 and AAC stay: they belong to the format.
    """
    at = _after_tags(data)
    return data[at:] if at and at < len(data) and data[at] != MPEG_SYNC else data


def lacks_index(data: bytes) -> bool:
    """True for a file of the MP4 family that ends before its index, which many programs write last."""
    if data[4:8] != b"ftyp":
        return False
    at = 0
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        if name in (b"moov", b"moof"):
            return False
        if size == 1 and at + 16 <= len(data):
            (size,) = struct.unpack_from(">Q", data, at + 8)
        if size < 8:  # a size of 0 reaches to the end of the file
            break
        at += size
    return True


def lacks_end(data: bytes) -> bool:
    """True for an Ogg file whose last page is incomplete or does not end its stream."""
    if not data.startswith(OGG):
        return False
    at = data.rfind(OGG, max(0, len(data) - MAX_OGG_PAGE))
    if at < 0 or at + OGG_HEADER_BYTES > len(data):
        return True
    segments = data[at + OGG_HEADER_BYTES - 1]
    sizes = data[at + OGG_HEADER_BYTES : at + OGG_HEADER_BYTES + segments]
    complete = len(sizes) == segments and at + OGG_HEADER_BYTES + segments + sum(sizes) <= len(data)
    return not (complete and data[at + 5] & OGG_END)


def counts_frames(data: bytes) -> bool:
    """True for an MP3 file whose header has the number of its frames, so that its length is not an estimate."""
    start = _after_tags(data)
    head = data[start : start + MPEG_HEADER_BYTES]
    if b"VBRI" in head:
        return True
    at = max(head.find(b"Xing"), head.find(b"Info"))
    return at >= 0 and at + 8 <= len(head) and bool(head[at + 7] & FRAME_COUNT)


def opus_gain(header: bytes | None) -> float:
    """The output gain in dB of an Opus header (RFC 7845), by which a decoder changes the level; 0 for other headers."""
    if not header or not header.startswith(b"OpusHead") or len(header) < 18:
        return 0.0
    (gain,) = struct.unpack_from("<h", header, 16)
    return gain / 256


def _after_tags(data: bytes) -> int:
    at = 0
    while data[at : at + 3] == ID3 and at + ID3_HEADER_BYTES <= len(data):
        flags, *size = data[at + 5 : at + ID3_HEADER_BYTES]
        length = 0
        for byte in size:
            length = length << 7 | byte & 0x7F
        at += ID3_HEADER_BYTES + length + (ID3_HEADER_BYTES if flags & ID3_FOOTER else 0)
    return at


FIRST, LAST = 2, 4  # pages have these flags
RATE = 48000  # positions have this rate, whatever the rate of the signal
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
