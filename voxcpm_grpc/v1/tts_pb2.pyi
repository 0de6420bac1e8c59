from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_S16LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_F32LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_WAV: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_MULAW: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_ALAW: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_MP3: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_OGG_OPUS: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_FLAC: _ClassVar[AudioEncoding]

class SegmentationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENTATION_MODE_UNSPECIFIED: _ClassVar[SegmentationMode]
    SEGMENTATION_MODE_MANUAL: _ClassVar[SegmentationMode]
    SEGMENTATION_MODE_SENTENCE: _ClassVar[SegmentationMode]
    SEGMENTATION_MODE_TOKENS: _ClassVar[SegmentationMode]

class FirstSegment(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIRST_SEGMENT_UNSPECIFIED: _ClassVar[FirstSegment]
    FIRST_SEGMENT_SENTENCE: _ClassVar[FirstSegment]
    FIRST_SEGMENT_EAGER: _ClassVar[FirstSegment]

class CutReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUT_REASON_UNSPECIFIED: _ClassVar[CutReason]
    CUT_REASON_SENTENCE: _ClassVar[CutReason]
    CUT_REASON_PAUSE: _ClassVar[CutReason]
    CUT_REASON_CLAUSE: _ClassVar[CutReason]
    CUT_REASON_LIMIT: _ClassVar[CutReason]
    CUT_REASON_FLUSH: _ClassVar[CutReason]
    CUT_REASON_UNREAD: _ClassVar[CutReason]

class ContinuityMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTINUITY_MODE_UNSPECIFIED: _ClassVar[ContinuityMode]
    CONTINUITY_MODE_INDEPENDENT: _ClassVar[ContinuityMode]
    CONTINUITY_MODE_CARRY: _ClassVar[ContinuityMode]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]

class AudioRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ROLE_UNSPECIFIED: _ClassVar[AudioRole]
    AUDIO_ROLE_PROMPT: _ClassVar[AudioRole]
    AUDIO_ROLE_REFERENCE: _ClassVar[AudioRole]

class PreviewMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREVIEW_MODE_UNSPECIFIED: _ClassVar[PreviewMode]
    PREVIEW_MODE_NONE: _ClassVar[PreviewMode]
    PREVIEW_MODE_RECONSTRUCTION: _ClassVar[PreviewMode]
    PREVIEW_MODE_SYNTHESIS: _ClassVar[PreviewMode]

class VoiceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOICE_KIND_UNSPECIFIED: _ClassVar[VoiceKind]
    VOICE_KIND_PROMPT: _ClassVar[VoiceKind]
    VOICE_KIND_REFERENCE: _ClassVar[VoiceKind]
    VOICE_KIND_HIFI: _ClassVar[VoiceKind]
    VOICE_KIND_SPEAKER: _ClassVar[VoiceKind]

class SegmentEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_EVENT_KIND_UNSPECIFIED: _ClassVar[SegmentEventKind]
    SEGMENT_EVENT_KIND_STARTED: _ClassVar[SegmentEventKind]
    SEGMENT_EVENT_KIND_FINISHED: _ClassVar[SegmentEventKind]
    SEGMENT_EVENT_KIND_DROPPED: _ClassVar[SegmentEventKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_COMPLETE: _ClassVar[FinishReason]
    FINISH_REASON_MAX_STEPS: _ClassVar[FinishReason]
    FINISH_REASON_INTERRUPTED: _ClassVar[FinishReason]
    FINISH_REASON_IDLE: _ClassVar[FinishReason]
    FINISH_REASON_SILENCE: _ClassVar[FinishReason]
    FINISH_REASON_NOTHING_TO_SAY: _ClassVar[FinishReason]

class WarningKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WARNING_KIND_UNSPECIFIED: _ClassVar[WarningKind]
    WARNING_KIND_SHORT_RECORDING: _ClassVar[WarningKind]
    WARNING_KIND_CLIPPED_RECORDING: _ClassVar[WarningKind]
    WARNING_KIND_NOISY_RECORDING: _ClassVar[WarningKind]
    WARNING_KIND_LANGUAGE: _ClassVar[WarningKind]
    WARNING_KIND_TRUNCATED_RECORDING: _ClassVar[WarningKind]
    WARNING_KIND_CANCELLED_CHANNELS: _ClassVar[WarningKind]
    WARNING_KIND_RECORDING_LEVEL: _ClassVar[WarningKind]
    WARNING_KIND_WORD_TIMES: _ClassVar[WarningKind]
    WARNING_KIND_TRANSCRIPT: _ClassVar[WarningKind]
    WARNING_KIND_CONTINUITY: _ClassVar[WarningKind]
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
AUDIO_ENCODING_PCM_S16LE: AudioEncoding
AUDIO_ENCODING_PCM_F32LE: AudioEncoding
AUDIO_ENCODING_WAV: AudioEncoding
AUDIO_ENCODING_MULAW: AudioEncoding
AUDIO_ENCODING_ALAW: AudioEncoding
AUDIO_ENCODING_MP3: AudioEncoding
AUDIO_ENCODING_OGG_OPUS: AudioEncoding
AUDIO_ENCODING_FLAC: AudioEncoding
SEGMENTATION_MODE_UNSPECIFIED: SegmentationMode
SEGMENTATION_MODE_MANUAL: SegmentationMode
SEGMENTATION_MODE_SENTENCE: SegmentationMode
SEGMENTATION_MODE_TOKENS: SegmentationMode
FIRST_SEGMENT_UNSPECIFIED: FirstSegment
FIRST_SEGMENT_SENTENCE: FirstSegment
FIRST_SEGMENT_EAGER: FirstSegment
CUT_REASON_UNSPECIFIED: CutReason
CUT_REASON_SENTENCE: CutReason
CUT_REASON_PAUSE: CutReason
CUT_REASON_CLAUSE: CutReason
CUT_REASON_LIMIT: CutReason
CUT_REASON_FLUSH: CutReason
CUT_REASON_UNREAD: CutReason
CONTINUITY_MODE_UNSPECIFIED: ContinuityMode
CONTINUITY_MODE_INDEPENDENT: ContinuityMode
CONTINUITY_MODE_CARRY: ContinuityMode
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
AUDIO_ROLE_UNSPECIFIED: AudioRole
AUDIO_ROLE_PROMPT: AudioRole
AUDIO_ROLE_REFERENCE: AudioRole
PREVIEW_MODE_UNSPECIFIED: PreviewMode
PREVIEW_MODE_NONE: PreviewMode
PREVIEW_MODE_RECONSTRUCTION: PreviewMode
PREVIEW_MODE_SYNTHESIS: PreviewMode
VOICE_KIND_UNSPECIFIED: VoiceKind
VOICE_KIND_PROMPT: VoiceKind
VOICE_KIND_REFERENCE: VoiceKind
VOICE_KIND_HIFI: VoiceKind
VOICE_KIND_SPEAKER: VoiceKind
SEGMENT_EVENT_KIND_UNSPECIFIED: SegmentEventKind
SEGMENT_EVENT_KIND_STARTED: SegmentEventKind
SEGMENT_EVENT_KIND_FINISHED: SegmentEventKind
SEGMENT_EVENT_KIND_DROPPED: SegmentEventKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_COMPLETE: FinishReason
FINISH_REASON_MAX_STEPS: FinishReason
FINISH_REASON_INTERRUPTED: FinishReason
FINISH_REASON_IDLE: FinishReason
FINISH_REASON_SILENCE: FinishReason
FINISH_REASON_NOTHING_TO_SAY: FinishReason
WARNING_KIND_UNSPECIFIED: WarningKind
WARNING_KIND_SHORT_RECORDING: WarningKind
WARNING_KIND_CLIPPED_RECORDING: WarningKind
WARNING_KIND_NOISY_RECORDING: WarningKind
WARNING_KIND_LANGUAGE: WarningKind
WARNING_KIND_TRUNCATED_RECORDING: WarningKind
WARNING_KIND_CANCELLED_CHANNELS: WarningKind
WARNING_KIND_RECORDING_LEVEL: WarningKind
WARNING_KIND_WORD_TIMES: WarningKind
WARNING_KIND_TRANSCRIPT: WarningKind
WARNING_KIND_CONTINUITY: WarningKind

class GenerateRequest(_message.Message):
    __slots__ = ("config", "text", "flush", "interrupt", "finish", "turn", "pause")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    config: GenerateConfig
    text: str
    flush: Flush
    interrupt: Interrupt
    finish: Finish
    turn: TurnConfig
    pause: Pause
    def __init__(self, config: _Optional[_Union[GenerateConfig, _Mapping]] = ..., text: _Optional[str] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., turn: _Optional[_Union[TurnConfig, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ...) -> None: ...

class GenerateConfig(_message.Message):
    __slots__ = ("request_id", "conditioning", "turn", "output", "segmentation", "pacing", "max_queue_time", "priority", "lexicon", "model", "trim_leading_silence", "word_timestamps")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONDITIONING_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SEGMENTATION_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LEXICON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRIM_LEADING_SILENCE_FIELD_NUMBER: _ClassVar[int]
    WORD_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    conditioning: Conditioning
    turn: TurnConfig
    output: AudioFormat
    segmentation: Segmentation
    pacing: Pacing
    max_queue_time: _duration_pb2.Duration
    priority: Priority
    lexicon: _containers.RepeatedCompositeFieldContainer[LexiconEntry]
    model: str
    trim_leading_silence: _duration_pb2.Duration
    word_timestamps: bool
    def __init__(self, request_id: _Optional[str] = ..., conditioning: _Optional[_Union[Conditioning, _Mapping]] = ..., turn: _Optional[_Union[TurnConfig, _Mapping]] = ..., output: _Optional[_Union[AudioFormat, _Mapping]] = ..., segmentation: _Optional[_Union[Segmentation, _Mapping]] = ..., pacing: _Optional[_Union[Pacing, _Mapping]] = ..., max_queue_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., lexicon: _Optional[_Iterable[_Union[LexiconEntry, _Mapping]]] = ..., model: _Optional[str] = ..., trim_leading_silence: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., word_timestamps: bool = ...) -> None: ...

class LexiconEntry(_message.Message):
    __slots__ = ("word", "spelling")
    WORD_FIELD_NUMBER: _ClassVar[int]
    SPELLING_FIELD_NUMBER: _ClassVar[int]
    word: str
    spelling: str
    def __init__(self, word: _Optional[str] = ..., spelling: _Optional[str] = ...) -> None: ...

class TurnConfig(_message.Message):
    __slots__ = ("sampling", "style", "speed", "volume_gain_db", "normalize", "retry_badcase", "retry_badcase_max_times", "retry_badcase_ratio_threshold", "max_silence", "lora", "style_in_text", "language")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    VOLUME_GAIN_DB_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    RETRY_BADCASE_FIELD_NUMBER: _ClassVar[int]
    RETRY_BADCASE_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    RETRY_BADCASE_RATIO_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_SILENCE_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    STYLE_IN_TEXT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    sampling: Sampling
    style: str
    speed: float
    volume_gain_db: float
    normalize: bool
    retry_badcase: bool
    retry_badcase_max_times: int
    retry_badcase_ratio_threshold: float
    max_silence: _duration_pb2.Duration
    lora: str
    style_in_text: bool
    language: str
    def __init__(self, sampling: _Optional[_Union[Sampling, _Mapping]] = ..., style: _Optional[str] = ..., speed: _Optional[float] = ..., volume_gain_db: _Optional[float] = ..., normalize: bool = ..., retry_badcase: bool = ..., retry_badcase_max_times: _Optional[int] = ..., retry_badcase_ratio_threshold: _Optional[float] = ..., max_silence: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lora: _Optional[str] = ..., style_in_text: bool = ..., language: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("cfg_value", "temperature", "seed", "inference_timesteps", "min_steps", "max_steps", "top_k", "top_p", "repetition_penalty", "code_temperature", "code_top_k", "code_top_p")
    CFG_VALUE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_TIMESTEPS_FIELD_NUMBER: _ClassVar[int]
    MIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    CODE_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    CODE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    CODE_TOP_P_FIELD_NUMBER: _ClassVar[int]
    cfg_value: float
    temperature: float
    seed: int
    inference_timesteps: int
    min_steps: int
    max_steps: int
    top_k: int
    top_p: float
    repetition_penalty: float
    code_temperature: float
    code_top_k: int
    code_top_p: float
    def __init__(self, cfg_value: _Optional[float] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ..., inference_timesteps: _Optional[int] = ..., min_steps: _Optional[int] = ..., max_steps: _Optional[int] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., code_temperature: _Optional[float] = ..., code_top_k: _Optional[int] = ..., code_top_p: _Optional[float] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ("end_turn", "tag")
    END_TURN_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    end_turn: bool
    tag: str
    def __init__(self, end_turn: bool = ..., tag: _Optional[str] = ...) -> None: ...

class Interrupt(_message.Message):
    __slots__ = ("tag", "played_samples")
    TAG_FIELD_NUMBER: _ClassVar[int]
    PLAYED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    tag: str
    played_samples: int
    def __init__(self, tag: _Optional[str] = ..., played_samples: _Optional[int] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("milliseconds",)
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    milliseconds: int
    def __init__(self, milliseconds: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Segmentation(_message.Message):
    __slots__ = ("mode", "max_chars", "max_wait", "continuity", "language", "first_segment")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    CONTINUITY_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    mode: SegmentationMode
    max_chars: int
    max_wait: _duration_pb2.Duration
    continuity: ContinuityMode
    language: str
    first_segment: FirstSegment
    def __init__(self, mode: _Optional[_Union[SegmentationMode, str]] = ..., max_chars: _Optional[int] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., continuity: _Optional[_Union[ContinuityMode, str]] = ..., language: _Optional[str] = ..., first_segment: _Optional[_Union[FirstSegment, str]] = ...) -> None: ...

class Pacing(_message.Message):
    __slots__ = ("max_lead",)
    MAX_LEAD_FIELD_NUMBER: _ClassVar[int]
    max_lead: _duration_pb2.Duration
    def __init__(self, max_lead: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Conditioning(_message.Message):
    __slots__ = ("prompt_id", "inline_prompt", "reference_id", "inline_reference", "hifi_id", "preset", "no_voice", "voice")
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    INLINE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    INLINE_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    HIFI_ID_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    NO_VOICE_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    inline_prompt: InlinePrompt
    reference_id: str
    inline_reference: InlineReference
    hifi_id: str
    preset: str
    no_voice: bool
    voice: str
    def __init__(self, prompt_id: _Optional[str] = ..., inline_prompt: _Optional[_Union[InlinePrompt, _Mapping]] = ..., reference_id: _Optional[str] = ..., inline_reference: _Optional[_Union[InlineReference, _Mapping]] = ..., hifi_id: _Optional[str] = ..., preset: _Optional[str] = ..., no_voice: bool = ..., voice: _Optional[str] = ...) -> None: ...

class InlinePrompt(_message.Message):
    __slots__ = ("audio", "latents", "transcript")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    audio: EncodedAudio
    latents: Latents
    transcript: str
    def __init__(self, audio: _Optional[_Union[EncodedAudio, _Mapping]] = ..., latents: _Optional[_Union[Latents, _Mapping]] = ..., transcript: _Optional[str] = ...) -> None: ...

class InlineReference(_message.Message):
    __slots__ = ("audio", "latents")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    audio: EncodedAudio
    latents: Latents
    def __init__(self, audio: _Optional[_Union[EncodedAudio, _Mapping]] = ..., latents: _Optional[_Union[Latents, _Mapping]] = ...) -> None: ...

class EncodedAudio(_message.Message):
    __slots__ = ("data", "format", "denoise", "trim_silence_vad")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    format: AudioFormat
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, data: _Optional[bytes] = ..., format: _Optional[_Union[AudioFormat, _Mapping]] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class Latents(_message.Message):
    __slots__ = ("data", "feat_dim", "model_fingerprint")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FEAT_DIM_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    feat_dim: int
    model_fingerprint: str
    def __init__(self, data: _Optional[bytes] = ..., feat_dim: _Optional[int] = ..., model_fingerprint: _Optional[str] = ...) -> None: ...

class AudioFormat(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz", "bitrate", "compression_level")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    BITRATE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hz: int
    bitrate: int
    compression_level: int
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ..., bitrate: _Optional[int] = ..., compression_level: _Optional[int] = ...) -> None: ...

class AudioChunk(_message.Message):
    __slots__ = ("audio", "sequence", "offset_samples", "sample_count", "turn_index", "segment_index", "header", "segment_events", "flush_done", "interrupted", "handle", "summary", "warnings", "words")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TURN_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_EVENTS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_DONE_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    audio: bytes
    sequence: int
    offset_samples: int
    sample_count: int
    turn_index: int
    segment_index: int
    header: StreamHeader
    segment_events: _containers.RepeatedCompositeFieldContainer[SegmentEvent]
    flush_done: FlushDone
    interrupted: Interrupted
    handle: VoiceHandle
    summary: StreamSummary
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    words: _containers.RepeatedCompositeFieldContainer[WordTime]
    def __init__(self, audio: _Optional[bytes] = ..., sequence: _Optional[int] = ..., offset_samples: _Optional[int] = ..., sample_count: _Optional[int] = ..., turn_index: _Optional[int] = ..., segment_index: _Optional[int] = ..., header: _Optional[_Union[StreamHeader, _Mapping]] = ..., segment_events: _Optional[_Iterable[_Union[SegmentEvent, _Mapping]]] = ..., flush_done: _Optional[_Union[FlushDone, _Mapping]] = ..., interrupted: _Optional[_Union[Interrupted, _Mapping]] = ..., handle: _Optional[_Union[VoiceHandle, _Mapping]] = ..., summary: _Optional[_Union[StreamSummary, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[WordTime, _Mapping]]] = ...) -> None: ...

class WordTime(_message.Message):
    __slots__ = ("turn_index", "segment_index", "text", "input_start", "input_end", "start_samples", "end_samples", "estimated")
    TURN_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_START_FIELD_NUMBER: _ClassVar[int]
    INPUT_END_FIELD_NUMBER: _ClassVar[int]
    START_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    turn_index: int
    segment_index: int
    text: str
    input_start: int
    input_end: int
    start_samples: int
    end_samples: int
    estimated: bool
    def __init__(self, turn_index: _Optional[int] = ..., segment_index: _Optional[int] = ..., text: _Optional[str] = ..., input_start: _Optional[int] = ..., input_end: _Optional[int] = ..., start_samples: _Optional[int] = ..., end_samples: _Optional[int] = ..., estimated: bool = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("kind", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: WarningKind
    message: str
    def __init__(self, kind: _Optional[_Union[WarningKind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class StreamHeader(_message.Message):
    __slots__ = ("request_id", "format", "model", "model_fingerprint", "seed", "queue_time", "voice", "codec_delay_samples")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    CODEC_DELAY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    format: AudioFormat
    model: str
    model_fingerprint: str
    seed: int
    queue_time: _duration_pb2.Duration
    voice: str
    codec_delay_samples: int
    def __init__(self, request_id: _Optional[str] = ..., format: _Optional[_Union[AudioFormat, _Mapping]] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., seed: _Optional[int] = ..., queue_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., voice: _Optional[str] = ..., codec_delay_samples: _Optional[int] = ...) -> None: ...

class SegmentEvent(_message.Message):
    __slots__ = ("kind", "turn_index", "segment_index", "at_samples", "text", "input_start", "input_end", "finish_reason", "cut_reason", "trimmed_samples")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TURN_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_START_FIELD_NUMBER: _ClassVar[int]
    INPUT_END_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUT_REASON_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    kind: SegmentEventKind
    turn_index: int
    segment_index: int
    at_samples: int
    text: str
    input_start: int
    input_end: int
    finish_reason: FinishReason
    cut_reason: CutReason
    trimmed_samples: int
    def __init__(self, kind: _Optional[_Union[SegmentEventKind, str]] = ..., turn_index: _Optional[int] = ..., segment_index: _Optional[int] = ..., at_samples: _Optional[int] = ..., text: _Optional[str] = ..., input_start: _Optional[int] = ..., input_end: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., cut_reason: _Optional[_Union[CutReason, str]] = ..., trimmed_samples: _Optional[int] = ...) -> None: ...

class FlushDone(_message.Message):
    __slots__ = ("tag", "at_samples")
    TAG_FIELD_NUMBER: _ClassVar[int]
    AT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    tag: str
    at_samples: int
    def __init__(self, tag: _Optional[str] = ..., at_samples: _Optional[int] = ...) -> None: ...

class Interrupted(_message.Message):
    __slots__ = ("tag", "sent_samples", "heard_input_end", "heard_estimated", "heard_turn_index", "dropped_flush_tags")
    TAG_FIELD_NUMBER: _ClassVar[int]
    SENT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HEARD_INPUT_END_FIELD_NUMBER: _ClassVar[int]
    HEARD_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    HEARD_TURN_INDEX_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FLUSH_TAGS_FIELD_NUMBER: _ClassVar[int]
    tag: str
    sent_samples: int
    heard_input_end: int
    heard_estimated: bool
    heard_turn_index: int
    dropped_flush_tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tag: _Optional[str] = ..., sent_samples: _Optional[int] = ..., heard_input_end: _Optional[int] = ..., heard_estimated: bool = ..., heard_turn_index: _Optional[int] = ..., dropped_flush_tags: _Optional[_Iterable[str]] = ...) -> None: ...

class StreamSummary(_message.Message):
    __slots__ = ("finish_reason", "total_samples", "total_bytes", "turns", "segments", "input_chars", "generated_steps", "queue_time", "time_to_first_audio", "engine_time", "wall_time", "cached_prefix_tokens", "text_to_first_audio", "codec_padding_samples", "time_to_first_audible", "text_to_first_audible", "trimmed_samples", "words", "continuations")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_CHARS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_STEPS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_AUDIO_FIELD_NUMBER: _ClassVar[int]
    ENGINE_TIME_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    CACHED_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_TO_FIRST_AUDIO_FIELD_NUMBER: _ClassVar[int]
    CODEC_PADDING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_AUDIBLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_TO_FIRST_AUDIBLE_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    total_samples: int
    total_bytes: int
    turns: int
    segments: int
    input_chars: int
    generated_steps: int
    queue_time: _duration_pb2.Duration
    time_to_first_audio: _duration_pb2.Duration
    engine_time: _duration_pb2.Duration
    wall_time: _duration_pb2.Duration
    cached_prefix_tokens: int
    text_to_first_audio: _duration_pb2.Duration
    codec_padding_samples: int
    time_to_first_audible: _duration_pb2.Duration
    text_to_first_audible: _duration_pb2.Duration
    trimmed_samples: int
    words: _containers.RepeatedCompositeFieldContainer[WordTime]
    continuations: int
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., total_samples: _Optional[int] = ..., total_bytes: _Optional[int] = ..., turns: _Optional[int] = ..., segments: _Optional[int] = ..., input_chars: _Optional[int] = ..., generated_steps: _Optional[int] = ..., queue_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., time_to_first_audio: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., engine_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wall_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cached_prefix_tokens: _Optional[int] = ..., text_to_first_audio: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., codec_padding_samples: _Optional[int] = ..., time_to_first_audible: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., text_to_first_audible: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., trimmed_samples: _Optional[int] = ..., words: _Optional[_Iterable[_Union[WordTime, _Mapping]]] = ..., continuations: _Optional[int] = ...) -> None: ...

class AddPromptRequest(_message.Message):
    __slots__ = ("config", "audio", "commit", "audition")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    AUDITION_FIELD_NUMBER: _ClassVar[int]
    config: AddPromptConfig
    audio: AudioPart
    commit: UploadCommit
    audition: Audition
    def __init__(self, config: _Optional[_Union[AddPromptConfig, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., commit: _Optional[_Union[UploadCommit, _Mapping]] = ..., audition: _Optional[_Union[Audition, _Mapping]] = ...) -> None: ...

class AddPromptConfig(_message.Message):
    __slots__ = ("options", "transcript", "source", "preview", "model", "denoise", "trim_silence_vad")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    options: VoiceOptions
    transcript: str
    source: AudioFormat
    preview: Preview
    model: str
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, options: _Optional[_Union[VoiceOptions, _Mapping]] = ..., transcript: _Optional[str] = ..., source: _Optional[_Union[AudioFormat, _Mapping]] = ..., preview: _Optional[_Union[Preview, _Mapping]] = ..., model: _Optional[str] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class AddReferenceRequest(_message.Message):
    __slots__ = ("config", "audio", "commit", "audition")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    AUDITION_FIELD_NUMBER: _ClassVar[int]
    config: AddReferenceConfig
    audio: AudioPart
    commit: UploadCommit
    audition: Audition
    def __init__(self, config: _Optional[_Union[AddReferenceConfig, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., commit: _Optional[_Union[UploadCommit, _Mapping]] = ..., audition: _Optional[_Union[Audition, _Mapping]] = ...) -> None: ...

class AddReferenceConfig(_message.Message):
    __slots__ = ("options", "source", "preview", "model", "denoise", "trim_silence_vad")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    options: VoiceOptions
    source: AudioFormat
    preview: Preview
    model: str
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, options: _Optional[_Union[VoiceOptions, _Mapping]] = ..., source: _Optional[_Union[AudioFormat, _Mapping]] = ..., preview: _Optional[_Union[Preview, _Mapping]] = ..., model: _Optional[str] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class AddHifiRequest(_message.Message):
    __slots__ = ("config", "audio", "commit", "audition")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    AUDITION_FIELD_NUMBER: _ClassVar[int]
    config: AddHifiConfig
    audio: AudioPart
    commit: UploadCommit
    audition: Audition
    def __init__(self, config: _Optional[_Union[AddHifiConfig, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., commit: _Optional[_Union[UploadCommit, _Mapping]] = ..., audition: _Optional[_Union[Audition, _Mapping]] = ...) -> None: ...

class AddHifiConfig(_message.Message):
    __slots__ = ("options", "prompt_id", "uploaded_prompt", "reference_id", "uploaded_reference", "same_as_prompt", "preview", "model")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_PROMPT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SAME_AS_PROMPT_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    options: VoiceOptions
    prompt_id: str
    uploaded_prompt: UploadedPrompt
    reference_id: str
    uploaded_reference: UploadedReference
    same_as_prompt: SameAsPrompt
    preview: Preview
    model: str
    def __init__(self, options: _Optional[_Union[VoiceOptions, _Mapping]] = ..., prompt_id: _Optional[str] = ..., uploaded_prompt: _Optional[_Union[UploadedPrompt, _Mapping]] = ..., reference_id: _Optional[str] = ..., uploaded_reference: _Optional[_Union[UploadedReference, _Mapping]] = ..., same_as_prompt: _Optional[_Union[SameAsPrompt, _Mapping]] = ..., preview: _Optional[_Union[Preview, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class UploadedPrompt(_message.Message):
    __slots__ = ("source", "transcript", "denoise", "trim_silence_vad")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    source: AudioFormat
    transcript: str
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, source: _Optional[_Union[AudioFormat, _Mapping]] = ..., transcript: _Optional[str] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class UploadedReference(_message.Message):
    __slots__ = ("source", "denoise", "trim_silence_vad")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    source: AudioFormat
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, source: _Optional[_Union[AudioFormat, _Mapping]] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class SameAsPrompt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VoiceOptions(_message.Message):
    __slots__ = ("request_id", "display_name", "labels", "ttl", "lora")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    display_name: str
    labels: _containers.ScalarMap[str, str]
    ttl: _duration_pb2.Duration
    lora: str
    def __init__(self, request_id: _Optional[str] = ..., display_name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lora: _Optional[str] = ...) -> None: ...

class AudioPart(_message.Message):
    __slots__ = ("data", "offset_bytes", "role")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset_bytes: int
    role: AudioRole
    def __init__(self, data: _Optional[bytes] = ..., offset_bytes: _Optional[int] = ..., role: _Optional[_Union[AudioRole, str]] = ...) -> None: ...

class UploadCommit(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedCompositeFieldContainer[UploadDigest]
    def __init__(self, digests: _Optional[_Iterable[_Union[UploadDigest, _Mapping]]] = ...) -> None: ...

class UploadDigest(_message.Message):
    __slots__ = ("role", "total_bytes", "sha256")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    role: AudioRole
    total_bytes: int
    sha256: bytes
    def __init__(self, role: _Optional[_Union[AudioRole, str]] = ..., total_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Preview(_message.Message):
    __slots__ = ("mode", "output", "turn", "text", "auditions", "word_timestamps")
    MODE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDITIONS_FIELD_NUMBER: _ClassVar[int]
    WORD_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    mode: PreviewMode
    output: AudioFormat
    turn: TurnConfig
    text: str
    auditions: bool
    word_timestamps: bool
    def __init__(self, mode: _Optional[_Union[PreviewMode, str]] = ..., output: _Optional[_Union[AudioFormat, _Mapping]] = ..., turn: _Optional[_Union[TurnConfig, _Mapping]] = ..., text: _Optional[str] = ..., auditions: bool = ..., word_timestamps: bool = ...) -> None: ...

class Audition(_message.Message):
    __slots__ = ("text", "turn", "tag")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    text: str
    turn: TurnConfig
    tag: str
    def __init__(self, text: _Optional[str] = ..., turn: _Optional[_Union[TurnConfig, _Mapping]] = ..., tag: _Optional[str] = ...) -> None: ...

class VoiceHandle(_message.Message):
    __slots__ = ("id", "kind", "display_name", "content_digest", "model_fingerprint", "transcript", "prompt_duration", "reference_duration", "prompt_id", "reference_id", "create_time", "expire_time", "labels", "reused", "principal", "model", "lora", "names")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DURATION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: VoiceKind
    display_name: str
    content_digest: str
    model_fingerprint: str
    transcript: str
    prompt_duration: _duration_pb2.Duration
    reference_duration: _duration_pb2.Duration
    prompt_id: str
    reference_id: str
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    labels: _containers.ScalarMap[str, str]
    reused: bool
    principal: str
    model: str
    lora: str
    names: _containers.RepeatedCompositeFieldContainer[VoiceName]
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[VoiceKind, str]] = ..., display_name: _Optional[str] = ..., content_digest: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., transcript: _Optional[str] = ..., prompt_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reference_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prompt_id: _Optional[str] = ..., reference_id: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., reused: bool = ..., principal: _Optional[str] = ..., model: _Optional[str] = ..., lora: _Optional[str] = ..., names: _Optional[_Iterable[_Union[VoiceName, _Mapping]]] = ...) -> None: ...

class VoiceName(_message.Message):
    __slots__ = ("display_name", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, display_name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetVoiceRequest(_message.Message):
    __slots__ = ("id", "model")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class GetVoiceResponse(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: VoiceHandle
    def __init__(self, handle: _Optional[_Union[VoiceHandle, _Mapping]] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ("kind", "page_size", "page_token", "labels", "model")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    kind: VoiceKind
    page_size: int
    page_token: str
    labels: _containers.ScalarMap[str, str]
    model: str
    def __init__(self, kind: _Optional[_Union[VoiceKind, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., model: _Optional[str] = ...) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("handles", "next_page_token")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[VoiceHandle]
    next_page_token: str
    def __init__(self, handles: _Optional[_Iterable[_Union[VoiceHandle, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateVoiceRequest(_message.Message):
    __slots__ = ("id", "display_name", "labels", "ttl", "model", "lora")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    labels: VoiceLabels
    ttl: _duration_pb2.Duration
    model: str
    lora: str
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., labels: _Optional[_Union[VoiceLabels, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., model: _Optional[str] = ..., lora: _Optional[str] = ...) -> None: ...

class VoiceLabels(_message.Message):
    __slots__ = ("labels",)
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateVoiceResponse(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: VoiceHandle
    def __init__(self, handle: _Optional[_Union[VoiceHandle, _Mapping]] = ...) -> None: ...

class DeleteVoiceRequest(_message.Message):
    __slots__ = ("id", "allow_missing", "cascade", "model")
    ID_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    allow_missing: bool
    cascade: bool
    model: str
    def __init__(self, id: _Optional[str] = ..., allow_missing: bool = ..., cascade: bool = ..., model: _Optional[str] = ...) -> None: ...

class DeleteVoiceResponse(_message.Message):
    __slots__ = ("kept_names",)
    KEPT_NAMES_FIELD_NUMBER: _ClassVar[int]
    kept_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kept_names: _Optional[_Iterable[str]] = ...) -> None: ...

class EncodeLatentsRequest(_message.Message):
    __slots__ = ("config", "audio", "commit")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    config: EncodeLatentsConfig
    audio: AudioPart
    commit: UploadCommit
    def __init__(self, config: _Optional[_Union[EncodeLatentsConfig, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., commit: _Optional[_Union[UploadCommit, _Mapping]] = ...) -> None: ...

class EncodeLatentsConfig(_message.Message):
    __slots__ = ("source", "role", "request_id", "model", "denoise", "trim_silence_vad")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DENOISE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SILENCE_VAD_FIELD_NUMBER: _ClassVar[int]
    source: AudioFormat
    role: AudioRole
    request_id: str
    model: str
    denoise: bool
    trim_silence_vad: bool
    def __init__(self, source: _Optional[_Union[AudioFormat, _Mapping]] = ..., role: _Optional[_Union[AudioRole, str]] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., denoise: bool = ..., trim_silence_vad: bool = ...) -> None: ...

class EncodeLatentsResponse(_message.Message):
    __slots__ = ("latents", "audio_duration", "warnings")
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_DURATION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    latents: Latents
    audio_duration: _duration_pb2.Duration
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    def __init__(self, latents: _Optional[_Union[Latents, _Mapping]] = ..., audio_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "is_default", "serving", "architecture", "model_fingerprint", "output_sample_rate_hz", "presets", "default_voice", "languages", "engines", "engines_ready")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_READY_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_default: bool
    serving: bool
    architecture: str
    model_fingerprint: str
    output_sample_rate_hz: int
    presets: _containers.RepeatedScalarFieldContainer[str]
    default_voice: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    engines: int
    engines_ready: int
    def __init__(self, name: _Optional[str] = ..., is_default: bool = ..., serving: bool = ..., architecture: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., output_sample_rate_hz: _Optional[int] = ..., presets: _Optional[_Iterable[str]] = ..., default_voice: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., engines: _Optional[int] = ..., engines_ready: _Optional[int] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model", "model_fingerprint", "input_sample_rate_hz", "output_sample_rate_hz", "feat_dim", "patch_size", "samples_per_step", "output_encodings", "output_sample_rates_hz", "limits", "default_sampling", "server_version", "architecture", "inference_timesteps", "max_model_len", "max_slots", "device", "dtype", "codec_dtype", "presets", "default_voice", "languages", "voice_kinds", "no_styles", "loras", "speech_languages", "sampling_fields", "text_streaming", "default_max_silence", "needs_voice")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    FEAT_DIM_FIELD_NUMBER: _ClassVar[int]
    PATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATES_HZ_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_TIMESTEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    CODEC_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    VOICE_KINDS_FIELD_NUMBER: _ClassVar[int]
    NO_STYLES_FIELD_NUMBER: _ClassVar[int]
    LORAS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_STREAMING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_SILENCE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_VOICE_FIELD_NUMBER: _ClassVar[int]
    model: str
    model_fingerprint: str
    input_sample_rate_hz: int
    output_sample_rate_hz: int
    feat_dim: int
    patch_size: int
    samples_per_step: int
    output_encodings: _containers.RepeatedScalarFieldContainer[AudioEncoding]
    output_sample_rates_hz: _containers.RepeatedScalarFieldContainer[int]
    limits: Limits
    default_sampling: Sampling
    server_version: str
    architecture: str
    inference_timesteps: _containers.RepeatedScalarFieldContainer[int]
    max_model_len: int
    max_slots: int
    device: str
    dtype: str
    codec_dtype: str
    presets: _containers.RepeatedScalarFieldContainer[str]
    default_voice: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    voice_kinds: _containers.RepeatedScalarFieldContainer[VoiceKind]
    no_styles: bool
    loras: _containers.RepeatedScalarFieldContainer[str]
    speech_languages: _containers.RepeatedScalarFieldContainer[str]
    sampling_fields: _containers.RepeatedScalarFieldContainer[str]
    text_streaming: bool
    default_max_silence: _duration_pb2.Duration
    needs_voice: bool
    def __init__(self, model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., input_sample_rate_hz: _Optional[int] = ..., output_sample_rate_hz: _Optional[int] = ..., feat_dim: _Optional[int] = ..., patch_size: _Optional[int] = ..., samples_per_step: _Optional[int] = ..., output_encodings: _Optional[_Iterable[_Union[AudioEncoding, str]]] = ..., output_sample_rates_hz: _Optional[_Iterable[int]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., default_sampling: _Optional[_Union[Sampling, _Mapping]] = ..., server_version: _Optional[str] = ..., architecture: _Optional[str] = ..., inference_timesteps: _Optional[_Iterable[int]] = ..., max_model_len: _Optional[int] = ..., max_slots: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., codec_dtype: _Optional[str] = ..., presets: _Optional[_Iterable[str]] = ..., default_voice: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., voice_kinds: _Optional[_Iterable[_Union[VoiceKind, str]]] = ..., no_styles: bool = ..., loras: _Optional[_Iterable[str]] = ..., speech_languages: _Optional[_Iterable[str]] = ..., sampling_fields: _Optional[_Iterable[str]] = ..., text_streaming: bool = ..., default_max_silence: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., needs_voice: bool = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_request_message_bytes", "max_buffered_text_chars", "max_segment_chars", "max_prompt_duration", "max_reference_duration", "max_upload_bytes", "max_inline_audio_bytes")
    MAX_REQUEST_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BUFFERED_TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENT_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_DURATION_FIELD_NUMBER: _ClassVar[int]
    MAX_REFERENCE_DURATION_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_INLINE_AUDIO_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_request_message_bytes: int
    max_buffered_text_chars: int
    max_segment_chars: int
    max_prompt_duration: _duration_pb2.Duration
    max_reference_duration: _duration_pb2.Duration
    max_upload_bytes: int
    max_inline_audio_bytes: int
    def __init__(self, max_request_message_bytes: _Optional[int] = ..., max_buffered_text_chars: _Optional[int] = ..., max_segment_chars: _Optional[int] = ..., max_prompt_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_reference_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_upload_bytes: _Optional[int] = ..., max_inline_audio_bytes: _Optional[int] = ...) -> None: ...
