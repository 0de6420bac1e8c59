"""Write the results of the official package of Qwen3-TTS for the tiny random checkpoints.

    ENV/bin/python tools/make_qwen3_goldens.py     minutes on one core; qwen3_official.py has the environment

The checkpoints are those of make_qwen3_checkpoint.py, which the tests make as well. All speech is greedy but that of
the sampler's cases.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if this file is run as a program

from tools.make_qwen3_checkpoint import SEED, write_checkpoint
from tools.qwen3_official import prepare

GOLDENS = Path(__file__).resolve().parents[1] / "tests" / "goldens" / "qwen3_tts"
GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 41}  # 40 frames, the last one is not made
KEPT_LOGITS = 5  # of so many ids one is kept
SHORT, LONG = "Hello world, tiny.", "The quick brown fox is over the lazy dog, and 你好世界 to all of the world."
HEARD = "as is said"
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "custom06": {
        "whole": {"text": SHORT, "speaker": "vivian", "language": "English"},
        "streamed": {"text": SHORT, "speaker": "vivian", "language": "English", "non_streaming_mode": False},
        "auto": {"text": LONG, "speaker": "Ryan", "language": "Auto", "non_streaming_mode": False},
        "dialect": {"text": LONG, "speaker": "eric", "language": "Auto"},
        "dialect_chinese": {"text": "今天世界", "speaker": "dylan", "language": "Chinese"},
        "dialect_other": {"text": SHORT, "speaker": "eric", "language": "German"},
    },
    "custom17": {
        "whole": {"text": SHORT, "speaker": "sohee", "language": "Korean"},
        "instructed": {"text": LONG, "speaker": "serena", "language": "Auto", "instruct": "Very happy."},
        "instructed_streamed": {
            "text": LONG,
            "speaker": "serena",
            "language": "French",
            "instruct": "Very happy.",
            "non_streaming_mode": False,
        },
    },
    "base06": {
        "streamed": {"text": LONG, "language": "English", "frames": 0},
        "whole": {"text": SHORT, "language": "Auto", "frames": 0, "non_streaming_mode": True},
        "continued": {"text": LONG, "language": "English", "frames": 12},
        "continued_shorter": {"text": SHORT, "language": "Auto", "frames": 45},
    },
    "base17": {
        "streamed": {"text": SHORT, "language": "Russian", "frames": 0},
        "continued": {"text": LONG, "language": "Auto", "frames": 20},
        "continued_shorter": {"text": SHORT, "language": "Italian", "frames": 45},
        "continued_whole": {"text": SHORT, "language": "English", "frames": 20, "non_streaming_mode": True},
    },
    "design": {
        "described": {"text": SHORT, "language": "Spanish", "instruct": "A warm voice."},
        "described_streamed": {
            "text": LONG,
            "language": "Auto",
            "instruct": "A warm voice.",
            "non_streaming_mode": False,
        },
        "plain": {"text": LONG, "language": "Portuguese", "instruct": ""},
    },
}
FORCED = (("custom06", "whole"), ("custom17", "whole"))  # of which the logits of 20 frames are kept
SAMPLINGS = (
    {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.3, "repetition_penalty": 1.0},
    {"temperature": 1.0, "top_k": 2000, "top_p": 0.9, "repetition_penalty": 1.05},
)
TEXTS = (
    *(
        SHORT,
        LONG,
        "iPhone and HelloWorld",
        "don't we'll I'M",
        "naïve café ÉTÉ",
        "e\u0301 a\u0308\u0323 가각 \u1112\u1161\u11ab",
    ),
    *(
        "今天，世界！你好……",
        "日本語のテキストです。",
        "한국어 문장입니다.",
        "Привет, мир!",
        "  two  spaces   three",
        "tabs\tand\nlines\n\n\n end",
    ),
    *(
        "1234567890",
        "3.14 and 2,718",
        "a",
        "😀👩‍👩‍👧 flags 🇩🇪",
        "مرحبا بالعالم",
        "สวัสดีชาวโลก",
        "नमस्ते दुनिया",
        "__init__ == x->y;  //",
    ),
)


def load_official(directory: Path) -> Any:
    """The official model of a checkpoint directory, in float32 with plain attention."""
    from qwen_tts import Qwen3TTSModel  # pyright: ignore[reportMissingImports]

    return Qwen3TTSModel.from_pretrained(str(directory), dtype=torch.float32, attn_implementation="eager")


@contextmanager
def recorded(model: Any) -> Iterator[dict[str, Any]]:
    """The inputs and outputs of the parts of the official model, while a case runs."""
    seen: dict[str, Any] = {"heads": {}, "codes": []}
    talker = model.model.talker
    generate, whole = talker.generate, model.model.generate

    def watch_talker(*args: Any, **given: Any) -> Any:
        seen["rows"] = given["inputs_embeds"][0].clone()
        seen["trail"] = given["trailing_text_hidden"][0].clone()
        return generate(*args, **given)

    def watch_all(*args: Any, **given: Any) -> Any:
        result = whole(*args, **given)
        seen["codes"] = [codes.clone() for codes in result[0]]
        return result

    def watch_head(stage: int) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            seen["heads"].setdefault(stage, []).append(output[0, -1].clone())

        return hook

    heads = [talker.codec_head, *talker.code_predictor.lm_head]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(talker, "generate", watch_talker))
        stack.enter_context(mock.patch.object(model.model, "generate", watch_all))
        for stage, head in enumerate(heads):
            handle = head.register_forward_hook(watch_head(stage))
            stack.callback(handle.remove)
        yield seen


def voice(hidden: int, frames: int, codes: int, seed: int = 11) -> list[Any]:
    """A cloned voice of random codes, which the tests make in the same way."""
    rng = np.random.Generator(np.random.Philox(seed))
    speaker = torch.from_numpy((rng.integers(-1000, 1000, hidden) / 1000).astype(np.float32))
    drawn = torch.from_numpy(rng.integers(0, codes, (frames, 16)))
    from qwen_tts import VoiceClonePromptItem  # pyright: ignore[reportMissingImports]

    item = VoiceClonePromptItem(
        ref_code=drawn if frames else None,
        ref_spk_embedding=speaker,
        x_vector_only_mode=not frames,
        icl_mode=bool(frames),
        ref_text=HEARD if frames else None,
    )
    return [item]


def spoken(model: Any, case: dict[str, Any], **sampling: Any) -> dict[str, Any]:
    """A case, spoken by the official package."""
    given = dict(case)
    talker = model.model.config.talker_config
    with recorded(model) as seen:
        if (frames := given.pop("frames", None)) is not None:
            given["voice_clone_prompt"] = voice(talker.hidden_size, frames, talker.vocab_size - 1024)
            model.generate_voice_clone(**given, **sampling)
        elif "speaker" in given:
            model.generate_custom_voice(**given, **sampling)
        else:
            model.generate_voice_design(**given, **sampling)
    return seen


def sampled(model: Any, case: dict[str, Any], options: dict[str, float], *, ties: bool) -> dict[str, Tensor]:
    """The logits and the probabilities of both stages in a few frames of a sampled case, and what was drawn."""
    probabilities: list[Tensor] = []
    multinomial = torch.multinomial

    def watch(given: Tensor, *args: Any, **others: Any) -> Tensor:
        probabilities.append(given[0].clone())
        return multinomial(given, *args, **others)

    def tied(module: Any, inputs: Any, output: Tensor) -> Tensor:
        return (output * 4).round() / 4

    talker = model.model.talker
    heads = [talker.codec_head, *talker.code_predictor.lm_head] if ties else []
    handles = [head.register_forward_hook(tied) for head in heads]
    codes = {f"subtalker_{name}": options[name] for name in ("temperature", "top_k", "top_p")}
    torch.manual_seed(5)
    try:
        with mock.patch.object(torch, "multinomial", watch):
            seen = spoken(model, case, **options, **codes, max_new_tokens=7)
    finally:
        for handle in handles:
            handle.remove()
    each = len(seen["heads"])
    first, others = probabilities[::each], [row for place, row in enumerate(probabilities) if place % each]
    frames = len(first) - 1
    drawn = torch.tensor(seen["codes"][0][:frames].tolist())
    stages = [seen["heads"][stage][:frames] for stage in range(1, each)]
    kept = slice(0, each - 1, 5)  # of the other stages every fifth
    return {
        "codes": drawn.to(torch.int16),
        "first_logits": torch.stack(seen["heads"][0][:frames]),
        "first_probabilities": torch.stack(first[:frames]),
        "code_logits": torch.stack([torch.stack(stage) for stage in stages], 1)[:, kept].contiguous(),
        "code_probabilities": torch.stack(others[: frames * (each - 1)])
        .unflatten(0, (frames, each - 1))[:, kept]
        .contiguous(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=CASES, action="append", help="only this checkpoint; may be repeated")
    chosen = parser.parse_args().variant or list(CASES)
    prepare()
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for variant in chosen:
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), variant)
            model = load_official(Path(folder))
            tensors: dict[str, Tensor] = {}
            for name, case in CASES[variant].items():
                seen = spoken(model, case, **GREEDY)
                tensors[f"{name}.rows"], tensors[f"{name}.trail"] = seen["rows"], seen["trail"]
                tensors[f"{name}.codes"] = seen["codes"][0].to(torch.int16)
                print(variant, name, *(tuple(tensors[f"{name}.{kind}"].shape) for kind in ("rows", "trail", "codes")))
                if (variant, name) in FORCED:
                    heads = [torch.stack(rows[:20])[:, ::KEPT_LOGITS] for _, rows in sorted(seen["heads"].items())]
                    tensors[f"{name}.first_logits"] = heads[0].contiguous()
                    tensors[f"{name}.code_logits"] = torch.stack(heads[1:], 1).contiguous()
            save_file(tensors, GOLDENS / f"{variant}.safetensors")
            if variant == "custom17":
                write_sampler(model)
                write_texts(model)
    numbers = {"seed": SEED, "cases": CASES, "heard": HEARD, "samplings": SAMPLINGS, "kept_logits": KEPT_LOGITS}
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    (GOLDENS / "cases.json").write_text(text + "\n", encoding="utf-8")


def write_sampler(model: Any) -> None:
    tensors: dict[str, Tensor] = {}
    for number, options in enumerate(SAMPLINGS):
        found = sampled(model, CASES["custom17"]["whole"], dict(options), ties=number % 2 == 1)
        tensors |= {f"{number}.{name}": tensor for name, tensor in found.items()}
    save_file(tensors, GOLDENS / "sampler.safetensors")


def write_texts(model: Any) -> None:
    """Token ids of texts, as the official processor gives them between the marks of the template."""
    rng, texts = random.Random(3), [*TEXTS]
    for _ in range(20):
        texts.append(" ".join(rng.choice(TEXTS) for _ in range(3)))
    ids = {}
    for text in texts:
        whole = model._tokenize_texts([model._build_assistant_text(text)])[0][0].tolist()
        if text == text.strip():
            ids[text] = whole[3:-5]
    content = json.dumps(ids, ensure_ascii=False, indent=0)
    (GOLDENS / "texts.json").write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
