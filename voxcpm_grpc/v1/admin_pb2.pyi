from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    SERVER_STATE_STARTING: _ClassVar[ServerState]
    SERVER_STATE_SERVING: _ClassVar[ServerState]
    SERVER_STATE_NO_ENGINE: _ClassVar[ServerState]
    SERVER_STATE_DRAINING: _ClassVar[ServerState]

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_STATE_UNSPECIFIED: _ClassVar[EngineState]
    ENGINE_STATE_STARTING: _ClassVar[EngineState]
    ENGINE_STATE_READY: _ClassVar[EngineState]
    ENGINE_STATE_DRAINING: _ClassVar[EngineState]
    ENGINE_STATE_GIVEN_UP: _ClassVar[EngineState]
    ENGINE_STATE_DRAINED: _ClassVar[EngineState]
SERVER_STATE_UNSPECIFIED: ServerState
SERVER_STATE_STARTING: ServerState
SERVER_STATE_SERVING: ServerState
SERVER_STATE_NO_ENGINE: ServerState
SERVER_STATE_DRAINING: ServerState
ENGINE_STATE_UNSPECIFIED: EngineState
ENGINE_STATE_STARTING: EngineState
ENGINE_STATE_READY: EngineState
ENGINE_STATE_DRAINING: EngineState
ENGINE_STATE_GIVEN_UP: EngineState
ENGINE_STATE_DRAINED: EngineState

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: ServerStats
    def __init__(self, stats: _Optional[_Union[ServerStats, _Mapping]] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: ServerStats
    def __init__(self, stats: _Optional[_Union[ServerStats, _Mapping]] = ...) -> None: ...

class RegisterLoraRequest(_message.Message):
    __slots__ = ("name", "source", "sha256", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    sha256: str
    model: str
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., sha256: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class RegisterLoraResponse(_message.Message):
    __slots__ = ("lora",)
    LORA_FIELD_NUMBER: _ClassVar[int]
    lora: LoraInfo
    def __init__(self, lora: _Optional[_Union[LoraInfo, _Mapping]] = ...) -> None: ...

class ListLorasRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListLorasResponse(_message.Message):
    __slots__ = ("loras",)
    LORAS_FIELD_NUMBER: _ClassVar[int]
    loras: _containers.RepeatedCompositeFieldContainer[LoraInfo]
    def __init__(self, loras: _Optional[_Iterable[_Union[LoraInfo, _Mapping]]] = ...) -> None: ...

class UnregisterLoraRequest(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class UnregisterLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainEngineRequest(_message.Message):
    __slots__ = ("engine", "restart")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    engine: str
    restart: bool
    def __init__(self, engine: _Optional[str] = ..., restart: bool = ...) -> None: ...

class DrainEngineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartEngineRequest(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: str
    def __init__(self, engine: _Optional[str] = ...) -> None: ...

class StartEngineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoraInfo(_message.Message):
    __slots__ = ("name", "model", "source", "fingerprint", "streams", "engines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    source: str
    fingerprint: str
    streams: int
    engines: int
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., source: _Optional[str] = ..., fingerprint: _Optional[str] = ..., streams: _Optional[int] = ..., engines: _Optional[int] = ...) -> None: ...

class ServerStats(_message.Message):
    __slots__ = ("version", "start_time", "read_time", "state", "start_step", "model", "front", "engines", "recent", "models", "fronts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    READ_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FRONT_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    FRONTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    start_time: _timestamp_pb2.Timestamp
    read_time: _timestamp_pb2.Timestamp
    state: ServerState
    start_step: str
    model: str
    front: FrontStats
    engines: _containers.RepeatedCompositeFieldContainer[EngineStats]
    recent: RecentStats
    models: _containers.RepeatedScalarFieldContainer[str]
    fronts: _containers.RepeatedCompositeFieldContainer[FrontStats]
    def __init__(self, version: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., read_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[ServerState, str]] = ..., start_step: _Optional[str] = ..., model: _Optional[str] = ..., front: _Optional[_Union[FrontStats, _Mapping]] = ..., engines: _Optional[_Iterable[_Union[EngineStats, _Mapping]]] = ..., recent: _Optional[_Union[RecentStats, _Mapping]] = ..., models: _Optional[_Iterable[str]] = ..., fronts: _Optional[_Iterable[_Union[FrontStats, _Mapping]]] = ...) -> None: ...

class FrontStats(_message.Message):
    __slots__ = ("process_id", "open_calls", "streams", "max_streams", "uploads", "upload_bytes", "stored_voices", "tasks", "open_files", "resident_bytes", "cpu_time", "calls_ended", "calls_failed", "audio_sent", "loop_busy", "loop_lag", "full_remedy", "name")
    class OpenCallsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_CALLS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_VOICES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_TIME_FIELD_NUMBER: _ClassVar[int]
    CALLS_ENDED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FAILED_FIELD_NUMBER: _ClassVar[int]
    AUDIO_SENT_FIELD_NUMBER: _ClassVar[int]
    LOOP_BUSY_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_FIELD_NUMBER: _ClassVar[int]
    FULL_REMEDY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    open_calls: _containers.ScalarMap[str, int]
    streams: int
    max_streams: int
    uploads: int
    upload_bytes: int
    stored_voices: int
    tasks: int
    open_files: int
    resident_bytes: int
    cpu_time: _duration_pb2.Duration
    calls_ended: int
    calls_failed: int
    audio_sent: _duration_pb2.Duration
    loop_busy: float
    loop_lag: _duration_pb2.Duration
    full_remedy: str
    name: str
    def __init__(self, process_id: _Optional[int] = ..., open_calls: _Optional[_Mapping[str, int]] = ..., streams: _Optional[int] = ..., max_streams: _Optional[int] = ..., uploads: _Optional[int] = ..., upload_bytes: _Optional[int] = ..., stored_voices: _Optional[int] = ..., tasks: _Optional[int] = ..., open_files: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., cpu_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., calls_ended: _Optional[int] = ..., calls_failed: _Optional[int] = ..., audio_sent: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., loop_busy: _Optional[float] = ..., loop_lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., full_remedy: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class EngineStats(_message.Message):
    __slots__ = ("name", "state", "device", "process_id", "restarts", "age", "slots_used", "slots_total", "requests_running", "requests_waiting", "requests_resting", "pages_used", "pages_free", "pages_total", "kv_positions", "prefix_hit_positions", "prefill_positions", "steps", "step_time", "preemptions", "swaps", "audio_made", "requests_finished", "requests_cancelled", "requests_failed", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RESTING_FIELD_NUMBER: _ClassVar[int]
    PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_MADE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: EngineState
    device: str
    process_id: int
    restarts: int
    age: _duration_pb2.Duration
    slots_used: int
    slots_total: int
    requests_running: int
    requests_waiting: int
    requests_resting: int
    pages_used: int
    pages_free: int
    pages_total: int
    kv_positions: int
    prefix_hit_positions: int
    prefill_positions: int
    steps: int
    step_time: _duration_pb2.Duration
    preemptions: int
    swaps: int
    audio_made: _duration_pb2.Duration
    requests_finished: int
    requests_cancelled: int
    requests_failed: int
    model: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[EngineState, str]] = ..., device: _Optional[str] = ..., process_id: _Optional[int] = ..., restarts: _Optional[int] = ..., age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., slots_used: _Optional[int] = ..., slots_total: _Optional[int] = ..., requests_running: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., requests_resting: _Optional[int] = ..., pages_used: _Optional[int] = ..., pages_free: _Optional[int] = ..., pages_total: _Optional[int] = ..., kv_positions: _Optional[int] = ..., prefix_hit_positions: _Optional[int] = ..., prefill_positions: _Optional[int] = ..., steps: _Optional[int] = ..., step_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., preemptions: _Optional[int] = ..., swaps: _Optional[int] = ..., audio_made: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., requests_finished: _Optional[int] = ..., requests_cancelled: _Optional[int] = ..., requests_failed: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class RecentStats(_message.Message):
    __slots__ = ("period", "calls", "failed", "audio_sent", "first_audio_p50", "first_audio_p95", "first_audio_p99", "queue_p50", "queue_p95", "underruns")
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    AUDIO_SENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_AUDIO_P50_FIELD_NUMBER: _ClassVar[int]
    FIRST_AUDIO_P95_FIELD_NUMBER: _ClassVar[int]
    FIRST_AUDIO_P99_FIELD_NUMBER: _ClassVar[int]
    QUEUE_P50_FIELD_NUMBER: _ClassVar[int]
    QUEUE_P95_FIELD_NUMBER: _ClassVar[int]
    UNDERRUNS_FIELD_NUMBER: _ClassVar[int]
    period: _duration_pb2.Duration
    calls: int
    failed: int
    audio_sent: _duration_pb2.Duration
    first_audio_p50: _duration_pb2.Duration
    first_audio_p95: _duration_pb2.Duration
    first_audio_p99: _duration_pb2.Duration
    queue_p50: _duration_pb2.Duration
    queue_p95: _duration_pb2.Duration
    underruns: int
    def __init__(self, period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., calls: _Optional[int] = ..., failed: _Optional[int] = ..., audio_sent: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_audio_p50: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_audio_p95: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_audio_p99: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue_p50: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue_p95: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., underruns: _Optional[int] = ...) -> None: ...
