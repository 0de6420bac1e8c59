"""Our protos have the names, numbers and types of the published ones, and live beside them in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.cloud import texttospeech_v1  # pyright: ignore[reportAttributeAccessIssue]
from google.protobuf.descriptor import Descriptor
from riva.client.proto import riva_audio_pb2 as published_audio
from riva.client.proto import riva_tts_pb2 as published_tts

from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.contracts.riva import riva_audio_pb2, riva_tts_pb2


def shape(message: Descriptor) -> Iterator[tuple[Any, ...]]:
    for field in message.fields:
        inner = field.message_type or field.enum_type
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        yield field.name, field.number, field.type, field.is_repeated, inner and inner.full_name, oneof
    for nested in message.nested_types:
        yield nested.full_name, sorted(shape(nested))
    for enum in message.enum_types:
        yield enum.full_name, sorted(values(enum))


def values(enum: Any) -> Iterator[tuple[str, int]]:
    return ((value.name, value.number) for value in enum.values)


def messages(file: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {message.full_name: sorted(shape(message), key=repr) for message in file.message_types_by_name.values()}


def enums(file: Any) -> dict[str, list[tuple[str, int]]]:
    return {enum.full_name: sorted(values(enum)) for enum in file.enum_types_by_name.values()}


def test_googles_messages_are_those_of_its_package():
    published = texttospeech_v1.SynthesizeSpeechRequest.pb().DESCRIPTOR.file
    assert messages(google.DESCRIPTOR) == messages(published)
    assert enums(google.DESCRIPTOR) == enums(published)


def test_rivas_messages_and_methods_are_those_of_its_package():
    assert messages(riva_tts_pb2.DESCRIPTOR) == messages(published_tts.DESCRIPTOR)
    assert enums(riva_audio_pb2.DESCRIPTOR) == enums(published_audio.DESCRIPTOR)
    ours, theirs = (
        {
            (method.name, method.client_streaming, method.server_streaming, method.input_type.full_name)
            for method in file.services_by_name["RivaSpeechSynthesis"].methods
        }
        for file in (riva_tts_pb2.DESCRIPTOR, published_tts.DESCRIPTOR)
    )
    assert ours == theirs
