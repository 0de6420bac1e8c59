"""The JSON messages of the WebSocket: those of callers as values, and the events that answer them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from voxcpm_client import (
    Chunk,
    Flushed,
    Header,
    Interrupted,
    Prompt,
    SegmentEvent,
    SpeechOptions,
    SpeechWarning,
    Summary,
)
from voxcpm_client.options import TurnOptions
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.fields import Field, Kind, checked

KINDS: Mapping[object, Kind] = {str: "string", int: "integer", float: "number", bool: "boolean"}
OWN = ("voice", "prompt", "reference", "timeout")  # options of the client that have another form here, or none


def _options(options: type) -> tuple[Field, ...]:
    """The fields for the options of the client that are plain values, with their names and types."""
    hints = {name: hint for name, hint in get_type_hints(options).items() if name not in OWN}
    return tuple(
        Field(name, KINDS.get(hint, "string"), "As the option of the client.", choices=get_args(hint))
        for name, hint in hints.items()
        if hint in KINDS or get_origin(hint) is Literal
    )


CONFIG = (
    Field("key", "string", "Key of the caller, for programs that cannot send the header `authorization`."),
    Field("voice", "voice", "Name of a preset, or name or id of a stored voice."),
    Field("prompt", "object", "A recording that the speech continues: `audio` in base64, and its `transcript`."),
    Field("reference", "object", "A recording whose timbre the speech takes: `audio` in base64."),
    Field("lexicon", "strings", "Words, and the spellings that are spoken instead of them."),
    *_options(SpeechOptions),
)
TURN = _options(TurnOptions)
MESSAGES: dict[str, tuple[Field, ...]] = {
    "config": CONFIG,
    "text": (Field("text", "string", "Text to append to the open turn.", required=True),),
    "turn": TURN,
    "flush": (
        Field("end_turn", "boolean", "True also ends the turn."),
        Field("tag", "string", "Returned in `flush_done`."),
    ),
    "pause": (Field("milliseconds", "integer", "Silence in order with the text, 1 to 60,000 ms.", required=True),),
    "interrupt": (
        Field("played_samples", "integer", "Samples of the stream that the listener has heard."),
        Field("tag", "string", "Returned in `interrupted`."),
    ),
    "finish": (),
}
PROMPT = (
    Field("audio", "string", "The file of a recording in base64.", required=True),
    Field("transcript", "string", "The words of the recording.", required=True),
)
REFERENCE = PROMPT[:1]
KEY_CHARS = 64 << 10  # of a config, which are parsed before the server has accepted its key


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a caller: its type, and its fields without those that are null."""

    type: str
    fields: dict[str, Any]

    @property
    def chars(self) -> int:
        return len(self.fields.get("text", ""))


@dataclass(frozen=True, slots=True)
class Config:
    """The first message: the options of the stream, as `AsyncClient.session` takes them, and the key of the caller.

    key: empty if the message has none
    """

    options: dict[str, Any]
    key: str


def parse(text: str) -> Message:
    """A message of a caller. Raises HttpError for what is no message."""
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError):
        raise HttpError(400, "the message is not JSON", code="invalid_json") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the message must be an object of JSON with the key type", code="invalid_json")
    given = cast("dict[str, Any]", body)
    kind: object = given.pop("type", None)
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise HttpError(400, f"type is {repr(kind)[:60]}; it must be one of {', '.join(MESSAGES)}", param="type")
    fields = checked(given, MESSAGES[kind])
    for name, value in fields.items():
        if isinstance(value, str) and not _encodes(value):
            raise HttpError(400, f"{name} has half of a surrogate pair, which is no character", param=name)
    return Message(kind, fields)


def config(message: Message) -> Config:
    """The options of a stream from its first message. Raises HttpError."""
    if message.type != "config":
        raise HttpError(400, f"the first message is a {message.type}; it must be a config", param="type")
    options = dict(message.fields)
    key = _usable_key(options.pop("key", ""))
    if isinstance(voice := options.get("voice"), dict):
        options["voice"] = cast("dict[str, str]", voice)["id"]
    if (prompt := options.get("prompt")) is not None:
        fields = checked(prompt, PROMPT, "prompt.")
        options["prompt"] = Prompt(_recording(fields["audio"], "prompt.audio"), fields["transcript"])
    if (reference := options.get("reference")) is not None:
        fields = checked(reference, REFERENCE, "reference.")
        options["reference"] = _recording(fields["audio"], "reference.audio")
    return Config(options, key)


def key_of(text: str) -> str:
    """The field `key` of a config, if its first KEY_CHARS characters have it; else empty. Only they are parsed.

    Raises HttpError for a key of wrong characters.
    """
    start, decoder = text[:KEY_CHARS], json.JSONDecoder()
    try:
        at = start.index("{")
        while True:
            name, at = decoder.raw_decode(start, _after_blanks(start, at + 1))
            at = start.index(":", at)
            value, at = decoder.raw_decode(start, _after_blanks(start, at + 1))
            if name == "key":
                return _usable_key(value) if isinstance(value, str) else ""
            at = start.index(",", at)
    except (ValueError, RecursionError):
        return ""


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


def _usable_key(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise HttpError(401, "key must be of printable ASCII characters", param="key")
    return key


def header(found: Header) -> dict[str, Any]:
    return {"type": "header", **asdict(found)}


def segment(found: SegmentEvent) -> dict[str, Any]:
    fields = asdict(found)
    return {"type": "segment", "event": fields.pop("kind"), **fields}


def answers(chunk: Chunk, dropped: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The answers to a flush or an interrupt that a chunk has.

    dropped: tags of flushes that an interrupt dropped before the server had them
    """
    found: list[dict[str, Any]] = []
    if chunk.flushed is not None:
        found.append(_event("flush_done", chunk.flushed))
    if chunk.interrupted is not None:
        event = _event("interrupted", chunk.interrupted)
        event["dropped_flushes"] = [*event["dropped_flushes"], *dropped]
        found.append(event)
    return found


def warning(found: SpeechWarning) -> dict[str, Any]:
    return _event("warning", found)


def summary(found: Summary) -> dict[str, Any]:
    return _event("summary", found)


def error(found: HttpError, request_id: str) -> dict[str, Any]:
    """The event of a stream that failed: the error as OpenAI's API writes it, with the id for the server's log."""
    after = found.retry_after if found.retry_after not in (None, float("inf")) else None
    return {"type": "error", "error": {**found.error, "request_id": request_id, "retry_after": after}}


def _event(kind: str, found: Flushed | Interrupted | SpeechWarning | Summary) -> dict[str, Any]:
    return {"type": kind, **asdict(found)}


def _recording(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpError(400, f"{path} is not base64", param=path) from None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
