from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SsmlVoiceGender(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SSML_VOICE_GENDER_UNSPECIFIED: _ClassVar[SsmlVoiceGender]
    MALE: _ClassVar[SsmlVoiceGender]
    FEMALE: _ClassVar[SsmlVoiceGender]
    NEUTRAL: _ClassVar[SsmlVoiceGender]

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    LINEAR16: _ClassVar[AudioEncoding]
    MP3: _ClassVar[AudioEncoding]
    OGG_OPUS: _ClassVar[AudioEncoding]
    MULAW: _ClassVar[AudioEncoding]
    ALAW: _ClassVar[AudioEncoding]
    PCM: _ClassVar[AudioEncoding]
    M4A: _ClassVar[AudioEncoding]
SSML_VOICE_GENDER_UNSPECIFIED: SsmlVoiceGender
MALE: SsmlVoiceGender
FEMALE: SsmlVoiceGender
NEUTRAL: SsmlVoiceGender
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
LINEAR16: AudioEncoding
MP3: AudioEncoding
OGG_OPUS: AudioEncoding
MULAW: AudioEncoding
ALAW: AudioEncoding
PCM: AudioEncoding
M4A: AudioEncoding

class ListVoicesRequest(_message.Message):
    __slots__ = ("language_code",)
    LANGUAGE_CODE_FIELD_NUMBER: _ClassVar[int]
    language_code: str
    def __init__(self, language_code: _Optional[str] = ...) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[Voice]
    def __init__(self, voices: _Optional[_Iterable[_Union[Voice, _Mapping]]] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("language_codes", "name", "ssml_gender", "natural_sample_rate_hertz")
    LANGUAGE_CODES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SSML_GENDER_FIELD_NUMBER: _ClassVar[int]
    NATURAL_SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    language_codes: _containers.RepeatedScalarFieldContainer[str]
    name: str
    ssml_gender: SsmlVoiceGender
    natural_sample_rate_hertz: int
    def __init__(self, language_codes: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., ssml_gender: _Optional[_Union[SsmlVoiceGender, str]] = ..., natural_sample_rate_hertz: _Optional[int] = ...) -> None: ...

class AdvancedVoiceOptions(_message.Message):
    __slots__ = ("low_latency_journey_synthesis", "enable_textnorm", "relax_safety_filters", "safety_settings")
    class HarmCategory(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HARM_CATEGORY_UNSPECIFIED: _ClassVar[AdvancedVoiceOptions.HarmCategory]
        HARM_CATEGORY_HATE_SPEECH: _ClassVar[AdvancedVoiceOptions.HarmCategory]
        HARM_CATEGORY_DANGEROUS_CONTENT: _ClassVar[AdvancedVoiceOptions.HarmCategory]
        HARM_CATEGORY_HARASSMENT: _ClassVar[AdvancedVoiceOptions.HarmCategory]
        HARM_CATEGORY_SEXUALLY_EXPLICIT: _ClassVar[AdvancedVoiceOptions.HarmCategory]
    HARM_CATEGORY_UNSPECIFIED: AdvancedVoiceOptions.HarmCategory
    HARM_CATEGORY_HATE_SPEECH: AdvancedVoiceOptions.HarmCategory
    HARM_CATEGORY_DANGEROUS_CONTENT: AdvancedVoiceOptions.HarmCategory
    HARM_CATEGORY_HARASSMENT: AdvancedVoiceOptions.HarmCategory
    HARM_CATEGORY_SEXUALLY_EXPLICIT: AdvancedVoiceOptions.HarmCategory
    class HarmBlockThreshold(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HARM_BLOCK_THRESHOLD_UNSPECIFIED: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
        BLOCK_LOW_AND_ABOVE: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
        BLOCK_MEDIUM_AND_ABOVE: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
        BLOCK_ONLY_HIGH: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
        BLOCK_NONE: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
        OFF: _ClassVar[AdvancedVoiceOptions.HarmBlockThreshold]
    HARM_BLOCK_THRESHOLD_UNSPECIFIED: AdvancedVoiceOptions.HarmBlockThreshold
    BLOCK_LOW_AND_ABOVE: AdvancedVoiceOptions.HarmBlockThreshold
    BLOCK_MEDIUM_AND_ABOVE: AdvancedVoiceOptions.HarmBlockThreshold
    BLOCK_ONLY_HIGH: AdvancedVoiceOptions.HarmBlockThreshold
    BLOCK_NONE: AdvancedVoiceOptions.HarmBlockThreshold
    OFF: AdvancedVoiceOptions.HarmBlockThreshold
    class SafetySetting(_message.Message):
        __slots__ = ("category", "threshold")
        CATEGORY_FIELD_NUMBER: _ClassVar[int]
        THRESHOLD_FIELD_NUMBER: _ClassVar[int]
        category: AdvancedVoiceOptions.HarmCategory
        threshold: AdvancedVoiceOptions.HarmBlockThreshold
        def __init__(self, category: _Optional[_Union[AdvancedVoiceOptions.HarmCategory, str]] = ..., threshold: _Optional[_Union[AdvancedVoiceOptions.HarmBlockThreshold, str]] = ...) -> None: ...
    class SafetySettings(_message.Message):
        __slots__ = ("settings",)
        SETTINGS_FIELD_NUMBER: _ClassVar[int]
        settings: _containers.RepeatedCompositeFieldContainer[AdvancedVoiceOptions.SafetySetting]
        def __init__(self, settings: _Optional[_Iterable[_Union[AdvancedVoiceOptions.SafetySetting, _Mapping]]] = ...) -> None: ...
    LOW_LATENCY_JOURNEY_SYNTHESIS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_TEXTNORM_FIELD_NUMBER: _ClassVar[int]
    RELAX_SAFETY_FILTERS_FIELD_NUMBER: _ClassVar[int]
    SAFETY_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    low_latency_journey_synthesis: bool
    enable_textnorm: bool
    relax_safety_filters: bool
    safety_settings: AdvancedVoiceOptions.SafetySettings
    def __init__(self, low_latency_journey_synthesis: bool = ..., enable_textnorm: bool = ..., relax_safety_filters: bool = ..., safety_settings: _Optional[_Union[AdvancedVoiceOptions.SafetySettings, _Mapping]] = ...) -> None: ...

class SynthesizeSpeechRequest(_message.Message):
    __slots__ = ("input", "voice", "audio_config", "advanced_voice_options")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_CONFIG_FIELD_NUMBER: _ClassVar[int]
    ADVANCED_VOICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    input: SynthesisInput
    voice: VoiceSelectionParams
    audio_config: AudioConfig
    advanced_voice_options: AdvancedVoiceOptions
    def __init__(self, input: _Optional[_Union[SynthesisInput, _Mapping]] = ..., voice: _Optional[_Union[VoiceSelectionParams, _Mapping]] = ..., audio_config: _Optional[_Union[AudioConfig, _Mapping]] = ..., advanced_voice_options: _Optional[_Union[AdvancedVoiceOptions, _Mapping]] = ...) -> None: ...

class CustomPronunciationParams(_message.Message):
    __slots__ = ("phrase", "phonetic_encoding", "pronunciation")
    class PhoneticEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHONETIC_ENCODING_UNSPECIFIED: _ClassVar[CustomPronunciationParams.PhoneticEncoding]
        PHONETIC_ENCODING_IPA: _ClassVar[CustomPronunciationParams.PhoneticEncoding]
        PHONETIC_ENCODING_X_SAMPA: _ClassVar[CustomPronunciationParams.PhoneticEncoding]
        PHONETIC_ENCODING_JAPANESE_YOMIGANA: _ClassVar[CustomPronunciationParams.PhoneticEncoding]
        PHONETIC_ENCODING_PINYIN: _ClassVar[CustomPronunciationParams.PhoneticEncoding]
    PHONETIC_ENCODING_UNSPECIFIED: CustomPronunciationParams.PhoneticEncoding
    PHONETIC_ENCODING_IPA: CustomPronunciationParams.PhoneticEncoding
    PHONETIC_ENCODING_X_SAMPA: CustomPronunciationParams.PhoneticEncoding
    PHONETIC_ENCODING_JAPANESE_YOMIGANA: CustomPronunciationParams.PhoneticEncoding
    PHONETIC_ENCODING_PINYIN: CustomPronunciationParams.PhoneticEncoding
    PHRASE_FIELD_NUMBER: _ClassVar[int]
    PHONETIC_ENCODING_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATION_FIELD_NUMBER: _ClassVar[int]
    phrase: str
    phonetic_encoding: CustomPronunciationParams.PhoneticEncoding
    pronunciation: str
    def __init__(self, phrase: _Optional[str] = ..., phonetic_encoding: _Optional[_Union[CustomPronunciationParams.PhoneticEncoding, str]] = ..., pronunciation: _Optional[str] = ...) -> None: ...

class CustomPronunciations(_message.Message):
    __slots__ = ("pronunciations",)
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    pronunciations: _containers.RepeatedCompositeFieldContainer[CustomPronunciationParams]
    def __init__(self, pronunciations: _Optional[_Iterable[_Union[CustomPronunciationParams, _Mapping]]] = ...) -> None: ...

class MultiSpeakerMarkup(_message.Message):
    __slots__ = ("turns",)
    class Turn(_message.Message):
        __slots__ = ("speaker", "text")
        SPEAKER_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        speaker: str
        text: str
        def __init__(self, speaker: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[MultiSpeakerMarkup.Turn]
    def __init__(self, turns: _Optional[_Iterable[_Union[MultiSpeakerMarkup.Turn, _Mapping]]] = ...) -> None: ...

class MultispeakerPrebuiltVoice(_message.Message):
    __slots__ = ("speaker_alias", "speaker_id")
    SPEAKER_ALIAS_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_ID_FIELD_NUMBER: _ClassVar[int]
    speaker_alias: str
    speaker_id: str
    def __init__(self, speaker_alias: _Optional[str] = ..., speaker_id: _Optional[str] = ...) -> None: ...

class MultiSpeakerVoiceConfig(_message.Message):
    __slots__ = ("speaker_voice_configs",)
    SPEAKER_VOICE_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    speaker_voice_configs: _containers.RepeatedCompositeFieldContainer[MultispeakerPrebuiltVoice]
    def __init__(self, speaker_voice_configs: _Optional[_Iterable[_Union[MultispeakerPrebuiltVoice, _Mapping]]] = ...) -> None: ...

class SynthesisInput(_message.Message):
    __slots__ = ("text", "ssml", "multi_speaker_markup", "markup", "custom_pronunciations", "prompt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SSML_FIELD_NUMBER: _ClassVar[int]
    MULTI_SPEAKER_MARKUP_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    text: str
    ssml: str
    multi_speaker_markup: MultiSpeakerMarkup
    markup: str
    custom_pronunciations: CustomPronunciations
    prompt: str
    def __init__(self, text: _Optional[str] = ..., ssml: _Optional[str] = ..., multi_speaker_markup: _Optional[_Union[MultiSpeakerMarkup, _Mapping]] = ..., markup: _Optional[str] = ..., custom_pronunciations: _Optional[_Union[CustomPronunciations, _Mapping]] = ..., prompt: _Optional[str] = ...) -> None: ...

class VoiceSelectionParams(_message.Message):
    __slots__ = ("language_code", "name", "ssml_gender", "custom_voice", "voice_clone", "model_name", "multi_speaker_voice_config")
    LANGUAGE_CODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SSML_GENDER_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_VOICE_FIELD_NUMBER: _ClassVar[int]
    VOICE_CLONE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MULTI_SPEAKER_VOICE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    language_code: str
    name: str
    ssml_gender: SsmlVoiceGender
    custom_voice: CustomVoiceParams
    voice_clone: VoiceCloneParams
    model_name: str
    multi_speaker_voice_config: MultiSpeakerVoiceConfig
    def __init__(self, language_code: _Optional[str] = ..., name: _Optional[str] = ..., ssml_gender: _Optional[_Union[SsmlVoiceGender, str]] = ..., custom_voice: _Optional[_Union[CustomVoiceParams, _Mapping]] = ..., voice_clone: _Optional[_Union[VoiceCloneParams, _Mapping]] = ..., model_name: _Optional[str] = ..., multi_speaker_voice_config: _Optional[_Union[MultiSpeakerVoiceConfig, _Mapping]] = ...) -> None: ...

class AudioConfig(_message.Message):
    __slots__ = ("audio_encoding", "speaking_rate", "pitch", "volume_gain_db", "sample_rate_hertz", "effects_profile_id")
    AUDIO_ENCODING_FIELD_NUMBER: _ClassVar[int]
    SPEAKING_RATE_FIELD_NUMBER: _ClassVar[int]
    PITCH_FIELD_NUMBER: _ClassVar[int]
    VOLUME_GAIN_DB_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    audio_encoding: AudioEncoding
    speaking_rate: float
    pitch: float
    volume_gain_db: float
    sample_rate_hertz: int
    effects_profile_id: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, audio_encoding: _Optional[_Union[AudioEncoding, str]] = ..., speaking_rate: _Optional[float] = ..., pitch: _Optional[float] = ..., volume_gain_db: _Optional[float] = ..., sample_rate_hertz: _Optional[int] = ..., effects_profile_id: _Optional[_Iterable[str]] = ...) -> None: ...

class CustomVoiceParams(_message.Message):
    __slots__ = ("model", "reported_usage")
    class ReportedUsage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REPORTED_USAGE_UNSPECIFIED: _ClassVar[CustomVoiceParams.ReportedUsage]
        REALTIME: _ClassVar[CustomVoiceParams.ReportedUsage]
        OFFLINE: _ClassVar[CustomVoiceParams.ReportedUsage]
    REPORTED_USAGE_UNSPECIFIED: CustomVoiceParams.ReportedUsage
    REALTIME: CustomVoiceParams.ReportedUsage
    OFFLINE: CustomVoiceParams.ReportedUsage
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPORTED_USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    reported_usage: CustomVoiceParams.ReportedUsage
    def __init__(self, model: _Optional[str] = ..., reported_usage: _Optional[_Union[CustomVoiceParams.ReportedUsage, str]] = ...) -> None: ...

class VoiceCloneParams(_message.Message):
    __slots__ = ("voice_cloning_key",)
    VOICE_CLONING_KEY_FIELD_NUMBER: _ClassVar[int]
    voice_cloning_key: str
    def __init__(self, voice_cloning_key: _Optional[str] = ...) -> None: ...

class SynthesizeSpeechResponse(_message.Message):
    __slots__ = ("audio_content",)
    AUDIO_CONTENT_FIELD_NUMBER: _ClassVar[int]
    audio_content: bytes
    def __init__(self, audio_content: _Optional[bytes] = ...) -> None: ...

class StreamingAudioConfig(_message.Message):
    __slots__ = ("audio_encoding", "sample_rate_hertz", "speaking_rate")
    AUDIO_ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    SPEAKING_RATE_FIELD_NUMBER: _ClassVar[int]
    audio_encoding: AudioEncoding
    sample_rate_hertz: int
    speaking_rate: float
    def __init__(self, audio_encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hertz: _Optional[int] = ..., speaking_rate: _Optional[float] = ...) -> None: ...

class StreamingSynthesizeConfig(_message.Message):
    __slots__ = ("voice", "streaming_audio_config", "custom_pronunciations", "advanced_voice_options")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    STREAMING_AUDIO_CONFIG_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    ADVANCED_VOICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    voice: VoiceSelectionParams
    streaming_audio_config: StreamingAudioConfig
    custom_pronunciations: CustomPronunciations
    advanced_voice_options: AdvancedVoiceOptions
    def __init__(self, voice: _Optional[_Union[VoiceSelectionParams, _Mapping]] = ..., streaming_audio_config: _Optional[_Union[StreamingAudioConfig, _Mapping]] = ..., custom_pronunciations: _Optional[_Union[CustomPronunciations, _Mapping]] = ..., advanced_voice_options: _Optional[_Union[AdvancedVoiceOptions, _Mapping]] = ...) -> None: ...

class StreamingSynthesisInput(_message.Message):
    __slots__ = ("text", "markup", "multi_speaker_markup", "prompt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    MULTI_SPEAKER_MARKUP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    text: str
    markup: str
    multi_speaker_markup: MultiSpeakerMarkup
    prompt: str
    def __init__(self, text: _Optional[str] = ..., markup: _Optional[str] = ..., multi_speaker_markup: _Optional[_Union[MultiSpeakerMarkup, _Mapping]] = ..., prompt: _Optional[str] = ...) -> None: ...

class StreamingSynthesizeRequest(_message.Message):
    __slots__ = ("streaming_config", "input")
    STREAMING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    streaming_config: StreamingSynthesizeConfig
    input: StreamingSynthesisInput
    def __init__(self, streaming_config: _Optional[_Union[StreamingSynthesizeConfig, _Mapping]] = ..., input: _Optional[_Union[StreamingSynthesisInput, _Mapping]] = ...) -> None: ...

class StreamingSynthesizeResponse(_message.Message):
    __slots__ = ("audio_content",)
    AUDIO_CONTENT_FIELD_NUMBER: _ClassVar[int]
    audio_content: bytes
    def __init__(self, audio_content: _Optional[bytes] = ...) -> None: ...
