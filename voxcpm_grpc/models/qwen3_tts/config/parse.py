"""Reads the files that describe a Qwen3-TTS checkpoint, and reports all of their faults in one error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.qwen3_tts.config.codec import CodecConfig, SpeakerConfig, read_codec, read_speaker
from voxcpm_grpc.models.qwen3_tts.config.config import (
    CONTROL_IDS,
    CodecMarks,
    DecoderConfig,
    Generation,
    Qwen3Config,
    TextMarks,
    TextSizes,
)
from voxcpm_grpc.models.qwen3_tts.config.fields import read_fields
from voxcpm_grpc.models.qwen3_tts.family import CODEC_FOLDER, MODEL_FILE

TOKENIZER = "qwen3_tts_tokenizer_12hz"
KINDS = ("custom_voice", "base", "voice_design")
SIZES = ("0b6", "1b7")
GENERATION = {  # generation_config.json has these names of the fields of Generation
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "subtalker_temperature": "code_temperature",
    "subtalker_top_k": "code_top_k",
    "subtalker_top_p": "code_top_p",
}
RANGES = {"temperature": (0, 2), "top_k": (0, math.inf), "top_p": (0, 1), "repetition_penalty": (1, 2)}
MARKS = ("tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id", "im_start_token_id", "im_end_token_id")


def parse_model(directory: Path, content: Any) -> tuple[Qwen3Config, Generation, CodecConfig, SpeakerConfig | None]:
    """The configurations in a directory with this parsed config.json; that of the speaker encoder in Base models.

    Raises one StartupError that lists all faults.
    """
    faults: list[str] = []
    config = parse_config(content, faults)
    generation = _generation(_object(directory / "generation_config.json", faults), faults)
    if (directory / f"{MODEL_FILE}.index.json").exists():
        faults.append(f"{MODEL_FILE}.index.json splits the weights into several files; use the released {MODEL_FILE}")
    _check_marks(directory, content, faults)
    codec = speaker = None
    if (directory / CODEC_FOLDER).is_dir():
        codec = _read_codec(_object(directory / CODEC_FOLDER / "config.json", faults), faults)
    else:
        faults.append(f"the folder {CODEC_FOLDER} is missing, which has the codec")
    if config is not None and config.kind == "base":
        speaker = read_speaker(content.get("speaker_encoder_config"), config.talker.hidden_size, faults)
    if config is not None and codec is not None:
        faults += _codec_faults(config, codec)
    if faults or config is None or codec is None:
        raise StartupError(f"{directory} cannot be used: {'; '.join(faults)}. Take all files from one release")
    return config, generation, codec, speaker


def parse_config(content: Any, faults: list[str]) -> Qwen3Config | None:
    """The configuration in a parsed config.json. Faults are appended, and the result is None if there are any."""
    before = len(faults)
    if (tokenizer := content.get("tokenizer_type")) != TOKENIZER:
        faults.append(
            f"tokenizer_type is {tokenizer!r}, and only {TOKENIZER!r} is supported; take a model whose name has 12Hz"
        )
    for name, known in (("tts_model_type", KINDS), ("tts_model_size", SIZES)):
        if content.get(name) not in known:
            faults.append(f"{name} is {content.get(name)!r}, expected one of {', '.join(known)}")
    path = "talker_config"
    data = content.get(path)
    given: Mapping[str, Any] = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    talker = read_fields(DecoderConfig, data, path, faults)
    predictor = read_fields(DecoderConfig, given.get("code_predictor_config"), f"{path}.code_predictor_config", faults)
    text = read_fields(TextSizes, given, path, faults)
    marks = read_fields(CodecMarks, given, path, faults)
    text_marks = read_fields(TextMarks, content, "", faults)
    languages = _ids(given, "codec_language_id", faults)
    speakers, dialects = dict[str, int](), {}
    if content.get("tts_model_type") == "custom_voice":
        speakers, dialects = _ids(given, "spk_id", faults), given.get("spk_is_dialect")
    if not isinstance(dialects, dict):
        faults.append(f"{path}.spk_is_dialect is {'missing' if dialects is None else 'no object'}")
        dialects = {}
    spoken = {str(name): dialect for name, dialect in cast("dict[Any, Any]", dialects).items() if dialect is not False}
    faults += (
        f"{path}.spk_is_dialect names {dialect!r}, which codec_language_id lacks"
        for dialect in spoken.values()
        if dialect not in languages
    )
    if talker is None or predictor is None or text is None or marks is None or text_marks is None:
        return None
    config = Qwen3Config(
        kind=content.get("tts_model_type"),
        size=str(content.get("tts_model_size")),
        talker=talker,
        predictor=predictor,
        text=text,
        text_marks=text_marks,
        marks=marks,
        languages=languages,
        speakers=speakers,
        dialects=spoken,
    )
    for name, stack in ((path, talker), (f"{path}.code_predictor_config", predictor)):
        faults += _stack_faults(name, stack, given.get("rope_scaling") if stack is talker else None)
    faults += _faults(config)
    return config if len(faults) == before else None


def _stack_faults(path: str, stack: DecoderConfig, scaling: Any) -> Iterator[str]:
    for name, value in (("hidden_act", "silu"), ("attention_bias", False), ("use_sliding_window", False)):
        if (given := getattr(stack, name)) != value:
            yield f"{path}.{name} is {given!r}, and only {value!r} is supported"
    if stack.num_attention_heads % stack.num_key_value_heads:
        heads = stack.num_attention_heads, stack.num_key_value_heads
        yield f"{path}: {heads[0]} attention heads are no multiple of {heads[1]} KV heads"
    if stack.head_dim % 2:
        yield f"{path}.head_dim is {stack.head_dim}, positions need pairs"
    # All positions of a sequence are equal in the three parts of the released rope, which therefore is the plain one.
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else scaling
    if kind not in (None, "default"):
        yield f"{path}.rope_scaling has the type {kind!r}, and only 'default' is supported"


def _faults(config: Qwen3Config) -> Iterator[str]:
    """Values that do not fit together."""
    talker, predictor = config.talker, config.predictor
    if talker.num_code_groups != predictor.num_code_groups or talker.num_code_groups % 2:
        yield (
            f"num_code_groups is {talker.num_code_groups} of the talker and {predictor.num_code_groups} of the code "
            "predictor; they must be even, and agree"
        )
    if talker.vocab_size != predictor.vocab_size + CONTROL_IDS:
        yield (
            f"talker_config.vocab_size is {talker.vocab_size}, and {predictor.vocab_size} codes with {CONTROL_IDS} ids "
            f"for control need {predictor.vocab_size + CONTROL_IDS}"
        )
    named = {name: getattr(config.marks, name) for name in CodecMarks.__slots__}
    named |= {f"spk_id.{name}": id for name, id in config.speakers.items()}
    named |= {f"codec_language_id.{name}": id for name, id in config.languages.items()}
    for name, id in named.items():
        if id >= talker.vocab_size:
            yield f"talker_config.{name} is {id}, and the vocabulary ends at {talker.vocab_size}"
    for name in TextMarks.__slots__:
        if (id := getattr(config.text_marks, name)) >= config.text.text_vocab_size:
            yield f"{name} is {id}, and the vocabulary of text ends at {config.text.text_vocab_size}"
    if config.kind == "custom_voice" and not config.speakers:
        yield "talker_config.spk_id is empty, and a CustomVoice model needs speakers"
    if lacking := sorted(config.dialects.keys() - config.speakers.keys()):
        yield f"talker_config.spk_is_dialect names {lacking[0]!r}, which spk_id lacks"
    if predictor.max_position_embeddings < predictor.num_code_groups:
        yield f"code_predictor_config.max_position_embeddings is {predictor.max_position_embeddings}, too few"


def _codec_faults(config: Qwen3Config, codec: CodecConfig) -> Iterator[str]:
    pairs = (
        ("num_code_groups", config.groups, "the codec's quantizers", codec.decoder.num_quantizers),
        ("code_predictor_config.vocab_size", config.codes, "the codec's codebook_size", codec.decoder.codebook_size),
    )
    for one, left, other, right in pairs:
        if left != right:
            yield f"{one} is {left} and that of {other} {right}, they must agree"


def _generation(data: Mapping[str, Any], faults: list[str]) -> Generation:
    """The defaults of sampling. Absent ones are those of the official package, which are the released ones."""
    values: dict[str, Any] = {}
    for name, field in GENERATION.items():
        if name not in data:
            continue
        low, high = RANGES[name.removeprefix("subtalker_")]
        whole = name.endswith("top_k")
        value = data[name]
        kind = int if whole else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
            faults.append(f"generation_config.json: {name} is {value!r}, expected a number from {low} to {high}")
        elif value or field.endswith("temperature"):  # 0 stands for no limit there
            values[field] = int(value) if whole else float(value)
        else:
            values[field] = 1 << 20 if whole else 1.0
    for name, field in (("do_sample", "temperature"), ("subtalker_dosample", "code_temperature")):
        if data.get(name) is False:
            values[field] = 0.0
    return Generation(**values)


def _check_marks(directory: Path, content: Mapping[str, Any], faults: list[str]) -> None:
    """The tokenizer must have the tokens that config.json names."""
    described = _object(directory / "tokenizer_config.json", faults).get("added_tokens_decoder")
    if not isinstance(described, dict):
        faults.append("tokenizer_config.json has no added_tokens_decoder")
        return
    lacking = [name for name in MARKS if type(content.get(name)) is int and str(content[name]) not in described]
    if lacking:
        faults.append(f"tokenizer_config.json lacks the tokens that config.json names as {', '.join(lacking)}")


def _ids(data: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, int]:
    """A table of ids in the configuration of the talker, by names in lower case."""
    table = data.get(name)
    if not isinstance(table, dict):
        faults.append(f"talker_config.{name} is missing" if table is None else f"talker_config.{name} is no object")
        return {}
    entries = cast("dict[str, Any]", table)
    faults += (f"talker_config.{name}.{key} is {id!r}, expected an id" for key, id in entries.items() if not _is_id(id))
    return {key.lower(): id for key, id in entries.items() if _is_id(id)}


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _object(path: Path, faults: list[str]) -> dict[str, Any]:
    name = path.relative_to(path.parents[1] if path.parent.name == CODEC_FOLDER else path.parent)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        faults.append(f"{name} cannot be read ({error.strerror})")
    except ValueError as error:
        faults.append(f"{name} is not valid JSON ({error})")
    else:
        if isinstance(content, dict):
            return cast("dict[str, Any]", content)
        faults.append(f"{name} holds no JSON object")
    return {}


def _read_codec(data: Any, faults: list[str]) -> CodecConfig | None:
    own: list[str] = []
    codec = read_codec(data, own)
    faults += (f"{CODEC_FOLDER}/config.json: {fault}" for fault in own)
    return codec
