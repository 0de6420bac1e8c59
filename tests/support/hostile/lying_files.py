"""Media files whose headers promise far more than the file holds."""

from __future__ import annotations

import struct

UNITY = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def mp4_bomb(samples: int, *, codec: bytes = b"sowt", ticks: int = 1024, rate: int = 16000) -> bytes:
    """A file of 4.5 kB whose sample table claims `samples` samples of `ticks` each; a demuxer makes an index of all."""
    brand = _box(b"ftyp", b"isom\0\0\2\0isomiso2mp41")

    def movie(offset: int) -> bytes:
        entry = _box(codec, bytes(6), struct.pack(">H", 1), bytes(8), struct.pack(">HHHHI", 1, 16, 0, 0, rate << 16))
        table = _box(
            b"stbl",
            _full(b"stsd", struct.pack(">I", 1), entry),
            _full(b"stts", struct.pack(">III", 1, samples, ticks)),
            _full(b"stsc", struct.pack(">IIII", 1, 1, samples, 1)),
            _full(b"stsz", struct.pack(">II", 4, samples)),
            _full(b"stco", struct.pack(">II", 1, offset)),
        )
        source = _box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1)))
        length = min(samples * ticks, 0xFFFFFFFF)
        media = _box(
            b"mdia",
            _full(b"mdhd", struct.pack(">IIIIHH", 0, 0, rate, length, 0x55C4, 0)),
            _full(b"hdlr", bytes(4), b"soun", bytes(12), b"a\0"),
            _box(b"minf", _full(b"smhd", bytes(4)), source, table),
        )
        header = struct.pack(">IIIII", 0, 0, 1, 0, 1000) + bytes(8) + struct.pack(">HHHH", 0, 0, 256, 0)
        track = _box(b"trak", _full(b"tkhd", header, UNITY, bytes(8), flags=7), media)
        times = struct.pack(">IIIIIH", 0, 0, 1000, 1000, 0x10000, 256)
        return _box(b"moov", _full(b"mvhd", times, bytes(10), UNITY, bytes(24), struct.pack(">I", 2)), track)

    offset = len(brand) + len(movie(0)) + 8
    return brand + movie(offset) + _box(b"mdat", bytes(4000))


def longer_flac(data: bytes, samples: int) -> bytes:
    """A FLAC file whose header claims this many samples."""
    assert data[:4] == b"fLaC"
    packed = int.from_bytes(data[18:26], "big")  # rate, channels, bits, and 36 bits of samples
    return data[:18] + (packed >> 36 << 36 | samples).to_bytes(8, "big") + data[26:]


def holed(data: bytes, start: float, end: float) -> bytes:
    """The file with zeros between two positions, as shares of its length."""
    first, after = int(len(data) * start), int(len(data) * end)
    return data[:first] + bytes(after - first) + data[after:]
