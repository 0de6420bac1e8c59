"""Messages with random fields, for tests of what a server does with requests that no client would send."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

INTEGERS = (0, 1, 2, 4, 10, 100, 16000, 48000, 2**31 - 1)
FLOATS = (0.0, 0.5, 1.0, 2.0, -1.0, 1e30, math.nan, math.inf)
DEPTH = 5  # of messages in messages
SHARE = 0.3  # of the fields that are set


def texts() -> st.SearchStrategy[str]:
    """Sentences and their fragments, or any characters at all."""
    words = st.sampled_from(["Hello. ", "One two", " three! ", "3.14 ", "你好。", "?!", "**bold** ", "\n\n", ""])
    return st.lists(words, max_size=6).map("".join) | st.text(st.characters(codec="utf-8"), max_size=40)


@st.composite
def random_messages(draw: st.DrawFn, kind: type[M]) -> M:
    """A message of a kind whose fields are set or not, to values of which some are valid."""
    message = kind()
    _fill(draw, message, DEPTH)
    return message


def _fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw(st.floats(0, 1)) > SHARE or (field.message_type and not depth):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[draw(texts())] = draw(texts())
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type:
                    _fill(draw, getattr(message, field.name).add(), depth - 1)
                else:
                    getattr(message, field.name).append(draw(_scalars(field)))
        elif field.message_type:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(draw, part, depth - 1)
        else:
            setattr(message, field.name, draw(_scalars(field)))


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return st.binary(max_size=200) if field.type == FieldDescriptor.TYPE_BYTES else texts()
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return st.sampled_from(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([value.number for value in field.enum_type.values] + [77])
        case _:
            return st.sampled_from(INTEGERS)
