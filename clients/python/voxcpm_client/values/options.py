"""The options of a call, with the meaning, unit, range and default of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from voxcpm_client.values.recordings import Recording
from voxcpm_client.values.voices import Latents
from voxcpm_grpc.audio import AudioFormat

SegmentationMode = Literal["sentence", "manual", "tokens"]
FirstSegment = Literal["sentence", "eager"]
Continuity = Literal["carry", "independent"]
VoiceKind = Literal["prompt", "reference", "hifi", "speaker"]
Priority = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A recording that the speech continues, sent with the call. `add_prompt` stores one on the server instead."""

    audio: Recording | Latents
    """The recording, or its latents. `ModelInfo.limits` has the limits: `max_inline_audio_bytes` for recordings and
    `max_prompt_seconds` for both."""

    transcript: str
    """The words of the recording, exactly as spoken, at most 2000 characters unless the server sets another limit. The
    new text follows without a separator: end the transcript with a space if the language uses spaces."""


@dataclass(frozen=True, slots=True)
class Audition:
    """A text to speak with a voice that is being stored. The options that are None have the server's defaults."""

    text: str = ""
    """The text, at most `ModelInfo.limits.max_buffered_text_chars` characters. A preview without a text says one that
    the server chooses by the script of the transcript. Default: `""`, for a preview only."""

    style: str | None = None
    """SpeechOptions explains it. Cannot be combined with a prompt, alone or in a hifi voice. Default: `None`."""

    speech_language: str | None = None
    """As in SpeechOptions. Default: `None`."""

    lora: str | None = None
    """SpeechOptions explains it. Default: `None`."""

    seed: int | None = None
    """SpeechOptions explains it. Default: `None`, the seed of the preview, or one that the server draws."""

    normalize: bool | None = None
    """SpeechOptions explains it. Default: `None`."""

    cfg_value: float | None = None
    """SpeechOptions explains it. Default: `None`."""

    timesteps: int | None = None
    """SpeechOptions explains it. Default: `None`."""

    temperature: float | None = None
    """SpeechOptions explains it. Default: `None`."""

    top_k: int | None = None
    """As in SpeechOptions. Default: `None`."""

    top_p: float | None = None
    """As in SpeechOptions. Default: `None`."""

    repetition_penalty: float | None = None
    """As in SpeechOptions. Default: `None`."""

    code_temperature: float | None = None
    """As in SpeechOptions. Default: `None`."""

    code_top_k: int | None = None
    """As in SpeechOptions. Default: `None`."""

    code_top_p: float | None = None
    """As in SpeechOptions. Default: `None`."""

    min_steps: int | None = None
    """SpeechOptions explains it. Default: `None`."""

    max_steps: int | None = None
    """SpeechOptions explains it. Default: `None`."""


class TurnOptions(TypedDict, total=False):
    """Options that the turns of a session can have each for themselves (`set_turn`): style and sampling. The server
    fills in every option that is left out."""

    style: str
    """A description of the voice or of the way to speak, such as "a calm old man", at most 500 characters unless the
    server sets another limit. Cannot be combined with a prompt, alone or in a hifi voice. Models before VoxCPM2, and
    Qwen3-TTS Base and 0.6B, take none (`ModelInfo.styles`). Default: none."""

    style_in_text: bool
    """True lets the text begin with a style in parentheses: "(a calm old man)Good evening.", at most 200 characters.
    False reads the words in the parentheses; leave it so for text that others write. Default: that of the server,
    `False` unless it is configured."""

    speech_language: str
    """Language that the model shall speak, one of `ModelInfo.speech_languages`, in the forms of `language`. Models with
    none take it from the text, and refuse this option. Default: the model finds it in the text."""

    speed: float
    """Speed of the speech at the same pitch, 0.5 to 2. Other speeds than 1 hold up to 0.11 s of the speech back until
    more of it follows. Default: `1.0`."""

    volume_gain_db: float
    """Change of the volume in dB, -30 to 20. Speech that is made louder passes a limiter, which keeps its peaks at -1
    dB of full scale or less. Default: `0.0`."""

    normalize: bool
    """True speaks numbers, dates, units and symbols in words, in English and Chinese, and numbers of other languages
    where their words are certain, without Markdown and emoji. The server needs its extra `normalize`.
    Default: `False`."""

    lora: str
    """LoRA adapter to speak with, one of `ModelInfo.loras`; an empty string: none, the model alone. Default: that of
    the voice, `Voice.lora`."""

    seed: int
    """Seed of the random numbers, 0 to 2**63 - 1. The same seed, text, voice, options and model give the same speech.
    Default: the server draws one; `Header.seed` gives it."""

    cfg_value: float
    """Strength of the classifier-free guidance, 0 to 10. A higher value follows the text and the voice more
    strictly. Default: `2.0`."""

    timesteps: int
    """Flow-matching steps for each step of audio. More steps take longer and can sound better. The server accepts
    only the values in `ModelInfo.inference_timesteps`. Default: `10`, or the nearest value that the server accepts."""

    temperature: float
    """Scale of the random noise that each step starts from, 0 to 2; of Qwen3-TTS the randomness of the first code of a
    step, 0.9 unless it is given, where 0 takes the most probable one. Default: `1.0`."""

    top_k: int
    """The number of most probable codes that the first one of a step is drawn from, 1 or more. Of Qwen3-TTS, as the
    options below: `ModelInfo.sampling_fields` has those of the model. Default: that of the model, 50."""

    top_p: float
    """The sum of the probabilities of these codes, above 0 and up to 1. Default: that of the model, 1."""

    repetition_penalty: float
    """Factor by which first codes that were drawn before are less probable, 1 to 2. Default: that of the model,
    1.05."""

    code_temperature: float
    """As `temperature`, for the other codes of a step. Default: that of the model, 0.9."""

    code_top_k: int
    """As `top_k`, for the other codes of a step. Default: that of the model, 50."""

    code_top_p: float
    """As `top_p`, for the other codes of a step. Default: that of the model, 1."""

    retry_badcase: bool
    """True generates a segment again, with the next seed, if its speech ran on. Each segment is held back until it is
    complete, so the audio starts later. Default: `False`."""

    retry_badcase_max_times: int
    """Largest number of attempts for `retry_badcase`, 1 to 10. Default: `3`."""

    retry_badcase_ratio_threshold: float
    """Steps for each token of the text from which on speech has run on, above 0 and up to 100. With 10 steps more it
    ends in any case. With Qwen3-TTS 12 unless it is given, and the speech ends there. Default: `6.0`."""

    max_silence: float
    """Seconds of silence after speech that end a segment, more than 0. Default: that of the model,
    `ModelInfo.default_max_silence`; without one any silence may follow."""

    min_steps: int
    """The model cannot end a segment in its first `min_steps` + 1 steps. A step is `ModelInfo.samples_per_step`
    samples, 160 ms with VoxCPM2. 0 or more, and at most `max_steps`. Default: `2`, or `max_steps` if that is less."""

    max_steps: int
    """Largest number of steps in a segment, 1 or more. Default: the model's own limit, which depends on the length of
    the text and always applies."""


class SpeechOptions(TurnOptions, total=False):
    """Options of `speak`, `say` and `session`. The server fills in every option that is left out."""

    model: str
    """Name of the model that speaks, one of `list_models`. Default: the server's default model."""

    voice: str | Sequence[str]
    """The voice: the name of a preset of the model, or the name or the id of a stored voice. The server finds it. To
    combine a prompt and a reference, a sequence of the two, the prompt first. Default: the server's default voice; if
    `style` is given or the server has no default voice, the model chooses a voice from `style` and `seed`."""

    no_voice: bool
    """True lets the model choose the voice from `seed`, even if the server has a default voice. Cannot be combined
    with a voice. Default: `False`."""

    prompt: Prompt
    """A recording that the speech continues, sent with this call. Can be combined with a reference. Default: none."""

    reference: Recording | Latents
    """A recording whose voice (timbre) the speech takes, sent with this call; no transcript is needed. The limits are
    `max_inline_audio_bytes` and `max_reference_seconds` of `ModelInfo.limits`. Can be combined with a prompt.
    Models before VoxCPM2 take none (`ModelInfo.voice_kinds`). Default: none."""

    denoise: bool
    """True reduces steady noise in the recordings of `prompt` and `reference`, by up to 20 dB. Default: `False`."""

    trim_silence_vad: bool
    """True cuts the silence at both ends of the recordings of `prompt` and `reference` down to 0.2 s.
    Default: `False`."""

    format: str
    """Encoding of the audio: `pcm_s16le` (16-bit integers), `pcm_f32le` (32-bit floats), `wav` (16-bit integers
    after a WAV header), `mulaw`, `alaw`, `mp3`, `ogg_opus` or `flac`. All are mono. Default: `pcm_s16le`."""

    sample_rate: int
    """Sample rate of the audio in Hz, one of `ModelInfo.sample_rates`. `mulaw` and `alaw` have 8000 and 16000,
    `ogg_opus` 8000, 12000, 16000, 24000 and 48000, `mp3` up to 48000. Default: 8000 for `mulaw` and `alaw`, else the
    rate of the model, `ModelInfo.output_sample_rate`, or the nearest one that the format has."""

    bitrate: int
    """Bits per second: 8000 to 320000 for `mp3`, 6000 to 256000 for `ogg_opus`. Other formats have none. Default:
    128000 for `mp3` at 44.1 and 48 kHz and less at lower rates, 64000 for `ogg_opus`."""

    compression_level: int
    """Effort of the encoder, from 0, the fastest, to 7 for `mp3`, 10 for `ogg_opus` and 12 for `flac`. Other formats
    have none. Default: `5`."""

    segmentation: SegmentationMode
    """The time at which text is spoken. `sentence`: each sentence as soon as it is complete. `manual`: only at a flush
    or at the end of the text. `tokens`: each word as soon as it is complete, for models that read text while they
    speak, such as Qwen3-TTS; without `normalize` and `retry_badcase`. Default: `sentence`."""

    language: str
    """Language of the text as a BCP 47 tag, such as `de` or `pt-BR`, at most 35 characters; `pt_BR`, the ISO 639 code
    `deu` and the names `German` and `Deutsch` are understood, too. It selects the rules that find the ends of sentences
    and read numbers. `auto`: those of the script. Default: those of the script."""

    max_wait: float
    """Seconds without new text after which a sentence that looks complete is spoken. If its end is in doubt, five
    times as long. 0: never. Default: `0.25`."""

    first_segment: FirstSegment
    """The first segment of a turn. `sentence`: a whole sentence. `eager`: the sentence may be cut after a clause of
    five words or more, so that the audio starts earlier. Default: `sentence`."""

    max_segment_chars: int
    """Longest segment in Unicode code points, 1 or more. Longer sentences are split. The server lowers values above
    `ModelInfo.limits.max_segment_chars`. Default: `400` unless the server sets another limit."""

    continuity: Continuity
    """The audio that a segment continues. `carry`: that of the segment before it. `independent`: none, each segment
    depends on the voice alone. Default: `carry`."""

    lexicon: Mapping[str, str]
    """Words, and the spellings that are spoken instead of them, such as `{"GIF": "jif"}`: at most 1000 words of 100
    characters, with spellings of 200. A word in lower case matches in every case, any other one in its own, and none
    inside a longer word. They precede the words of the server's own lexicon. Default: none."""

    max_lead: float
    """Seconds of audio that the server may hold for a client that does not read, more than 0. The server lowers
    values above its own limit. Default: `30.0` unless the server sets another limit."""

    max_queue_time: float
    """Longest wait for a free slot of an engine in seconds, more than 0. After it, the server refuses the call with
    RESOURCE_EXHAUSTED, and the client retries as long as its `retry_seconds` and `timeout` allow. The server lowers
    values above its own limit. Default: `30.0`, with `priority="batch"` 600, unless the server sets other limits."""

    priority: Priority
    """`interactive`: somebody listens. `batch`: nobody waits for the audio, as with a book. A batch call gets a slot
    when no interactive call waits for one. It gives its slot and its memory to interactive calls that need them, and
    goes on later with the same audio. Default: `interactive`."""

    trim_leading_silence: float
    """Most seconds of silence that are left out at the start of each turn, so that speech is heard sooner, 0 to 10. 0:
    all audio of the model is sent. Default: `1.0`, with `priority="batch"` 0, unless the server sets another limit."""

    word_timestamps: bool
    """True returns the time of each word: in `Chunk.words` as they become known, and in `Summary.words` and
    `Speech.words`. The audio does not wait for them. Default: `False`."""

    request_id: str
    """Id of the call in the server's log and in errors, at most 128 printable characters. Default: a random id."""

    timeout: float | None
    """Longest duration of the whole call in seconds, including retries. None: no limit. Default: the `timeout` of the
    client."""


class VoiceOptions(TypedDict, total=False):
    """Options of `add_prompt`, `add_reference` and `add_hifi`.

    If the server has stored the recording already, its voice gets the `name` and its `labels` beside those that it has,
    the longest `ttl`, and the `lora` in place of its own. The returned `Voice` has the values in force.
    """

    model: str
    """Name of the model that the voice is for, one of `list_models`. Other models cannot use it. Default: the server's
    default model."""

    name: str
    """Name of the voice, for the option `voice`: at most 200 characters without control characters, and not the name of
    a preset. A name of another recording raises AlreadyExists. Default: none."""

    labels: Mapping[str, str]
    """Labels that `voices` can filter by: at most 32, with keys and values of at most 200 characters without
    control characters. They belong to the name and replace all labels of it. Default: none."""

    ttl: float
    """Time to live in seconds, more than 0 and at most 100 years. It starts again with each use of the voice.
    Default: `2592000.0` (30 days) unless the server sets another."""

    lora: str
    """LoRA adapter of the voice, one of `ModelInfo.loras`. Calls without the option `lora` speak with it, and so do the
    preview and the auditions. An empty string removes the adapter of a stored voice. Default: none, the model alone."""

    preview: bool | Audition
    """True also returns the stored recording as the model reproduces it, in `Voice.preview`. An Audition returns its
    text, spoken with the new voice, instead. Default: `False`."""

    auditions: Sequence[str | Audition]
    """Texts to speak with the new voice in the same call, returned in `Voice.auditions` in this order. Each sounds as
    in a call of `say` with its seed. If one fails, the call raises its error; the voice stays stored, and storing it
    again returns it. Default: none."""

    word_timestamps: bool
    """True returns the time of each word of the texts of `preview` and `auditions`, in `Speech.words`.
    Default: `False`."""

    denoise: bool
    """True reduces steady noise in the recording, by up to 20 dB. Default: `False`."""

    trim_silence_vad: bool
    """True cuts the silence at both ends of the recording down to 0.2 s. Default: `False`."""

    source: AudioFormat
    """Encoding and sample rate of raw PCM without a header. Leave it out for audio files. Default: the format that
    the file itself declares."""

    request_id: str
    """Id of the call in the server's log and in errors, at most 128 printable characters. Default: a random id."""

    timeout: float | None
    """Longest duration of the whole call in seconds, including retries. None: no limit. Default: the `timeout` of the
    client."""
