"""Checks and conversions of single fields of requests. All raise InvalidRequest with the path of the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from voxcpm_grpc.audio import AudioFormat, usual_rate
from voxcpm_grpc.audio.uploads import Cleaning
from voxcpm_grpc.errors import InvalidRequest, VoxCPMError
from voxcpm_grpc.text.characters import CONTROL
from voxcpm_grpc.text.durations import duration_text
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.wire.enums import ENCODINGS

T = TypeVar("T")

MAX_TAG = 128


def read_tag(tag: str, field: str) -> str:
    if len(tag) > MAX_TAG:
        raise InvalidRequest(f"the tag has {len(tag)} characters and the limit is {MAX_TAG}", field=field)
    return tag


def refuse_control_characters(name: str, text: str, field: str) -> None:
    if (found := CONTROL.search(text)) is not None:
        raise InvalidRequest(
            f"{name} has the control character U+{ord(found[0]):04X} at index {found.start()}; remove it",
            field=field,
        )


def read_cleaning(holder: Any) -> Cleaning:
    """The changes of a recording that a message asks for. Raises FailedPrecondition if a package is missing."""
    cleaning = Cleaning(denoise=holder.denoise, trim_silence=holder.trim_silence_vad)
    cleaning.check()
    return cleaning


def read_format(format: pb.AudioFormat, default_encoding: int, default_rate: int, name: str) -> AudioFormat:
    try:
        encoding = read_enum(ENCODINGS, format.encoding or default_encoding, "encoding")
        return AudioFormat(
            encoding,
            format.sample_rate_hz or usual_rate(encoding, default_rate),
            bitrate=format.bitrate if format.HasField("bitrate") else None,
            compression_level=format.compression_level if format.HasField("compression_level") else None,
        )
    except InvalidRequest as error:
        # The library and the message have different names for the field.
        field = "sample_rate_hz" if error.field == "sample_rate" else error.field
        text = error.message.replace(error.field, field, 1)
        raise InvalidRequest(text, field=f"{name}.{field}") from None


def read_seconds(message: Any, name: str, path: str = "", *, or_zero: bool = False) -> float | None:
    """A duration in seconds; None if it is not set."""
    if not message.HasField(name):
        return None
    duration = getattr(message, name)
    seconds = duration.seconds + duration.nanos / 1e9
    if seconds < 0 or (seconds == 0 and not or_zero):
        rule = "it must be 0 or more" if or_zero else "it must be more than 0"
        raise InvalidRequest(f"{name} is {duration_text(seconds)}; {rule}", field=path or name)
    return seconds


def read_float(message: Any, name: str, default: float) -> float:
    """A field of 32 bits as the number of up to 6 digits that the caller wrote."""
    return float(f"{getattr(message, name):.6g}") if message.HasField(name) else default


def read_enum(table: Mapping[Any, T], value: int, field: str) -> T:
    if value not in table:
        raise InvalidRequest(
            f"{field} has the value {value}, which this server does not know; upgrade the server or set another",
            field=field,
        )
    return table[value]


class inside:
    """Puts `prefix` before the field of every error that the block raises.

    It is a class, because each request passes several blocks, and a generator would take three times as long.
    """

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, VoxCPMError):
            error.field = ".".join(part for part in (self._prefix, error.field) if part)
