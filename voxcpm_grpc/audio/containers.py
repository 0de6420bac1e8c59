"""Facts about a recording in the bytes of its file that FFmpeg does not pass on."""

from __future__ import annotations

import struct

ID3, ID3_HEADER_BYTES, ID3_FOOTER = b"ID3", 10, 0x10
MPEG_SYNC = 0xFF  # begins a frame of MP3 and AAC, whose files may begin with tags
OGG, OGG_HEADER_BYTES, OGG_END = b"OggS", 27, 4
MAX_OGG_PAGE = OGG_HEADER_BYTES + 255 + 255 * 255
FRAME_COUNT = 1  # flag of an MP3 header
MPEG_HEADER_BYTES = 200  # side information and header of the first frame


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
        if size < 8:  # 0 reaches to the end of the file
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
