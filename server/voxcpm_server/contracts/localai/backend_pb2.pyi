from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthMessage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reply(_message.Message):
    __slots__ = ("message", "audio")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    audio: bytes
    def __init__(self, message: _Optional[bytes] = ..., audio: _Optional[bytes] = ...) -> None: ...

class ModelOptions(_message.Message):
    __slots__ = ("Model", "AudioPath", "Options")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AUDIOPATH_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    Model: str
    AudioPath: str
    Options: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, Model: _Optional[str] = ..., AudioPath: _Optional[str] = ..., Options: _Optional[_Iterable[str]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("message", "success")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    message: str
    success: bool
    def __init__(self, message: _Optional[str] = ..., success: bool = ...) -> None: ...

class TTSRequest(_message.Message):
    __slots__ = ("text", "model", "dst", "voice", "language", "instructions", "params", "ModelIdentity")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    model: str
    dst: str
    voice: str
    language: str
    instructions: str
    params: _containers.ScalarMap[str, str]
    ModelIdentity: str
    def __init__(self, text: _Optional[str] = ..., model: _Optional[str] = ..., dst: _Optional[str] = ..., voice: _Optional[str] = ..., language: _Optional[str] = ..., instructions: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("state",)
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNINITIALIZED: _ClassVar[StatusResponse.State]
        BUSY: _ClassVar[StatusResponse.State]
        READY: _ClassVar[StatusResponse.State]
        ERROR: _ClassVar[StatusResponse.State]
    UNINITIALIZED: StatusResponse.State
    BUSY: StatusResponse.State
    READY: StatusResponse.State
    ERROR: StatusResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: StatusResponse.State
    def __init__(self, state: _Optional[_Union[StatusResponse.State, str]] = ...) -> None: ...
