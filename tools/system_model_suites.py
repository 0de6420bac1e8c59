"""The suites of models beside VoxCPM2: their own tests, and those of every server with a tiny checkpoint of each."""

from __future__ import annotations

from system_environments import LANGUAGES, QWEN3
from system_paths import CONTRACT, ENGINE, QWEN3_TOOLS, RPC, VOICES, WIRE
from system_suite import Suite

QWEN3_TTS = ("voxcpm_grpc/models/qwen3_tts/", *QWEN3_TOOLS)
VARIANTS = ("base06", "base17", "custom06", "custom17", "design")  # of tools/qwen3_checkpoint_layout.py
MODEL_SUITES = (
    Suite(
        "older-models",
        "all goldens of VoxCPM-0.5B and VoxCPM1.5, and their streams in full batches",
        5,
        judges=(*ENGINE, "voxcpm_grpc/kernels/", "tools/golden", "tools/make_"),
    ),
    Suite(
        "qwen3",
        "the codec of Qwen3-TTS over all frames of its goldens, and its tokenizer with the released vocabulary",
        8,
        environment=QWEN3,
        judges=(*QWEN3_TTS, "voxcpm_grpc/layers/"),
    ),
    *(
        Suite(
            f"conformance-{model}",
            f"{file}, of the conformance tests, with the tiny model {model}",
            8,
            (
                f"tests/conformance/test_{file}.py",
                *("-m=not references", "-k=not thousand", f"--model=tests/checkpoints/tiny-{model}"),
            ),
            judges=(*ENGINE, "voxcpm_grpc/checkpoint.py", *WIRE),
        )
        for model, file in (("0.5b", "order"), ("1.5", "cancellation"))
    ),
    *(
        Suite(
            f"conformance-qwen3-{variant}",
            f"order, errors and uploads, of the conformance tests, and random calls, with a tiny Qwen3-TTS {kind}",
            6,
            (
                *(f"tests/conformance/test_{file}.py" for file in ("order", "error_table", "uploads")),
                *("tests/system/fuzz", "--hypothesis-profile=few"),
                *("-k=not interrupted_turn and not small_limits", f"--model=qwen3-{variant}"),
                "-m=" + " and ".join(f"not {mark}" for mark in ("latents", "timesteps", "styles", *lacking)),
            ),
            judges=(*QWEN3_TTS, "voxcpm_grpc/request.py", *WIRE, *more),
        )
        for variant, kind, lacking, more in (
            ("base06", "Base", (), VOICES),
            ("custom17", "CustomVoice", ("prompts", "references"), ()),
            ("design", "VoiceDesign", ("prompts", "references", "presets"), ()),
        )
    ),
    Suite(
        "clients-qwen3",
        "the core calls of other clients, and the programs of the folder clients, each with each tiny Qwen3-TTS",
        15,
        (
            *("tests/system/clients", "tests/system/languages"),
            *("-m=models", f"--model={','.join(f'qwen3-{variant}' for variant in VARIANTS)}"),
        ),
        environment=LANGUAGES,
        by_default=False,  # clients and languages run some pairs
        nightly=True,
        judges=(*QWEN3_TTS, *CONTRACT, "clients/", *RPC, *WIRE),
    ),
)
