"""The family Qwen3-TTS, as hosts without PyTorch know it."""

from __future__ import annotations

from voxcpm_grpc.models.family import Family

MODEL_TYPE = "qwen3_tts"
MODEL_FILE = "model.safetensors"
CODEC_FOLDER = "speech_tokenizer"

QWEN3_TTS = Family(
    name="Qwen3-TTS",
    recognizes=lambda config: config.get("model_type") == MODEL_TYPE,
    kinds=(MODEL_TYPE,),
    hashed=(
        ("config.json",),
        ("generation_config.json",),
        (MODEL_FILE,),
        ("vocab.json",),
        ("merges.txt",),
        ("tokenizer_config.json",),
        (f"{CODEC_FOLDER}/config.json",),
        (f"{CODEC_FOLDER}/{MODEL_FILE}",),
    ),
    patterns=(
        "*.safetensors",
        "generation_config.json",
        "vocab.json",
        "merges.txt",
        "tokenizer_config.json",
        f"{CODEC_FOLDER}/config.json",
    ),
    # There is nothing to compile.
    settings=frozenset(("codec_dtype", "attention", "compile", "reference_silence")),
    load="voxcpm_grpc.models.qwen3_tts.load:load_qwen3_tts",
    footprint="voxcpm_grpc.models.qwen3_tts.footprint:qwen3_tts_footprint",
)
