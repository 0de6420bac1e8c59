"""The JSON messages of the WebSocket: those of callers as values, and the events that answer them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    WordTime,
)
from voxcpm_client.values.encodings import ENCODINGS
from voxcpm_client.values.options import TurnOptions
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.requests.bodies import from_base64, parse_json
from voxcpm_gateway.requests.fields import SEEDS, SPEECH_LANGUAGE, Field, Kind, checked, mended, names_of

KINDS: Mapping[object, Kind] = {str: "string", int: "integer", float: "number", bool: "boolean"}
OWN = ("voice", "prompt", "reference", "timeout")  # these options of the client have another form here, or none
CHOICES = {"format": tuple(map(str, ENCODINGS))}
BOUNDS = {"seed": SEEDS}
SETS = {  # the contract has other names for these options
    "format": ("encoding",),
    "sample_rate": ("sample_rate_hz",),
    "timesteps": ("inference_timesteps",),
    "segmentation": ("mode",),
    "max_segment_chars": ("max_chars",),
    "speech_language": SPEECH_LANGUAGE,
}


def _options(options: type) -> tuple[Field, ...]:
    """The fields for the options of the client that are plain values, with their names and types."""
    hints = {name: hint for name, hint in get_type_hints(options).items() if name not in OWN}
    return tuple(
        Field(
            name,
            KINDS.get(hint, "string"),
            "As the option of the client.",
            choices=CHOICES.get(name, get_args(hint)),
            bounds=BOUNDS.get(name),
            empty_counts=name == "lora",
            sets=SETS.get(name, ()),
        )
        for name, hint in hints.items()
        if hint in KINDS or get_origin(hint) is Literal
    )


PROMPT, REFERENCE = "config.conditioning.inline_prompt", "config.conditioning.inline_reference"
RECORDING = Field("audio", "string", "The file of a recording in base64.", required=True, empty_counts=True)
PROMPT_FIELDS = (
    replace(RECORDING, sets=(PROMPT, "prompt")),
    Field("transcript", "string", "The words of the recording.", required=True, sets=(f"{PROMPT}.transcript",)),
)
REFERENCE_FIELDS = (replace(RECORDING, sets=(REFERENCE, "reference")),)
CONFIG = (
    Field("key", "string", "Key of the caller, for programs that cannot send the header `authorization`."),
    Field("voice", "voice", "Name of a preset, or name or id of a stored voice."),
    Field("prompt", "object", "A recording that the speech continues, and its words.", fields=PROMPT_FIELDS),
    Field("reference", "object", "A recording whose timbre the speech takes.", fields=REFERENCE_FIELDS),
    Field("lexicon", "strings", "Words, and the spellings that are spoken instead of them."),
    *_options(SpeechOptions),
)
TURN = _options(TurnOptions)
MESSAGES: dict[str, tuple[Field, ...]] = {
    "config": CONFIG,
    "text": (Field("text", "text", "Text to append to the open turn.", required=True, empty_counts=True),),
    "turn": TURN,
    "flush": (
        Field("end_turn", "boolean", "True also ends the turn."),
        Field("tag", "string", "Returned in `flush_done`."),
    ),
    "pause": (
        Field(
            "milliseconds",
            "integer",
            "Silence in order with the text, 1 to 60,000 ms.",
            required=True,
            bounds=(1, 60_000),
            sets=("pause",),
        ),
    ),
    "interrupt": (
        Field("played_samples", "integer", "Samples of the stream that the listener has heard.", bounds=SEEDS),
        Field("tag", "string", "Returned in `interrupted`."),
    ),
    "finish": (),
}
HIGH_SURROGATES = ("\ud800", "\udbff")  # they are the first and the last one; a low one follows each in UTF-16
KEY_CHARS = 64 << 10  # characters of a config that are parsed before the server has accepted its key


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


class MessageReader:
    """Reads the messages of a socket.

    Programs in JavaScript cut texts between the halves of a surrogate pair. If the halves are in two messages of text
    that follow each other, the reader keeps the first half until the second one arrives.
    """

    def __init__(self) -> None:
        self._half = ""  # the last message ended with it, if that was one of text

    def read(self, text: str) -> list[Message]:
        """The message that a caller has sent. Before it, the half of a pair that no other half has followed, as U+FFFD.

        Raises HttpError for what is no message.
        """
        body = parse_json(text, "message")
        if not isinstance(body, dict):
            raise HttpError(400, "the message must be an object of JSON with the key type", code="invalid_json")
        given = cast("dict[str, Any]", body)
        kind: str = TYPE.value(given.pop("type", None) or "", "type")
        half, self._half = self._half, ""
        if kind == "text" and isinstance(spoken := given.get("text"), str):
            given["text"], self._half = _without_half(half + spoken)
            half = ""
        message = Message(kind, checked(given, MESSAGES[kind]))
        kept = half and kind != "interrupt"  # an interrupt drops the text before it
        return [Message("text", {"text": mended(half)}), message] if kept else [message]


def _without_half(text: str) -> tuple[str, str]:
    """The text up to the first half of a surrogate pair at its end, and that half; empty if there is none."""
    first, last = HIGH_SURROGATES
    return (text[:-1], text[-1]) if first <= text[-1:] <= last else (text, "")


TYPE = Field("type", "string", "The kind of the message.", choices=tuple(MESSAGES), empty_counts=True)


def names(config: Collection[str]) -> Mapping[str, str]:
    """The fields of a caller by those of the gRPC request that they set.

    config: the names of the fields of the caller's config
    """
    return names_of([field for fields in MESSAGES.values() for field in fields], config)


async def config(message: Message) -> Config:
    """The options of a stream from its first message. Raises HttpError."""
    if message.type != "config":
        raise HttpError(400, f"the first message is a {message.type}; it must be a config", param="type")
    options = dict(message.fields)
    key = _usable_key(options.pop("key", ""))
    if (prompt := options.get("prompt")) is not None:
        options["prompt"] = Prompt(await from_base64(prompt["audio"], "prompt.audio"), prompt["transcript"])
    if (reference := options.get("reference")) is not None:
        options["reference"] = await from_base64(reference["audio"], "reference.audio")
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


def words(found: Sequence[WordTime]) -> dict[str, Any]:
    return {"type": "words", "words": [asdict(word) for word in found]}


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
