"""Write a random checkpoint in the layout of a released Qwen3-TTS model.

    python tools/make_qwen3_checkpoint.py OUT --variant base17      a tiny model for tests, 5 MB
    python tools/make_qwen3_checkpoint.py OUT --variant base17 --full-size --never-stop    the released dimensions

Needs torch, safetensors and numpy, but not the official package. The numbers come from Philox by integer arithmetic, so
that the same seed gives the same weights on every machine. The model is not trained, so its audio is noise. The end of
the speech is drawn after a plausible number of steps, because the row of its id in the head is longer than the others.
With --full-size the tokenizer has the released ids, and merges for the words of all prompts alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if this file is run as a program

from tools.qwen3_checkpoint_layout import (
    SPECIAL,
    TTS,
    VARIANTS,
    codec_config,
    codec_shapes,
    model_config,
    model_shapes,
)

SEED = 3
END_GAIN = 1.5  # of the end's row in the head: greedy speech of the tests then ends after 5 to 80 steps, if it ends
WORDS = (  # that the tiny tokenizer has as single tokens, built from left to right
    *("assistant", "user", " the", " and", " of", " to", "ing", " is", " quick", " brown", " fox", "Hello", " world"),
    *(
        "你",
        "好",
        "世界",
        "今天",
        "é",
        " naïve",
        "The",
        " a",
        " lazy",
        " dog",
        " over",
        "12",
        "...",
        " --",
        "  ",
        "\n\n",
    ),
)
RELEASED_VOCABULARY = 151643
GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}


class Random:
    """Draws tensors, each from a stream of its own that the seed, the variant and its name choose."""

    def __init__(self, seed: int, variant: str) -> None:
        self.seed, self.variant = seed, variant

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        bits = self._bits(name, math.prod(shape)) >> np.uint64(40)
        return _tensor(low + (high - low) * (bits.astype(np.float64) * 2.0**-24), shape)

    def normal(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        """The sum of four uniform numbers, which is nearly normal, and exact in integers."""
        parts = self._bits(name, math.prod(shape)).view(np.uint16).reshape(-1, 4).astype(np.int64)
        return _tensor((parts.sum(1) - 2 * 65535) * (std / (65536 * math.sqrt(1 / 3))), shape)

    def _bits(self, name: str, count: int) -> np.ndarray:
        stream = zlib.crc32(f"{self.variant} {name}".encode())
        return np.random.Philox(key=(self.seed << 32) | stream).random_raw(count).astype("<u8")


def _tensor(values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).view(shape)


def model_tensor(random: Random, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of model.safetensors, in bfloat16 as released."""
    if name.endswith("norm.weight"):
        drawn = random.uniform(name, shape, 0.6, 1.4)
    elif len(shape) == 1:
        drawn = random.normal(name, shape, 0.05)
    elif "embedding" in name:
        drawn = random.normal(name, shape, 0.35)
    else:
        drawn = random.normal(name, shape, 1 / math.sqrt(math.prod(shape[1:])))
    return drawn.bfloat16()


def codec_tensor(random: Random, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of the codec, in float32 as released."""
    kind = name.rpartition(".")[2]
    if kind == "initialized":
        return torch.ones(shape)
    if kind == "cluster_usage":
        return random.uniform(name, shape, 0.5, 3.0)
    if kind in ("embedding_sum", "embed_sum"):
        return random.normal(name, shape, 1.0)
    if kind in ("alpha", "beta"):
        return random.normal(name, shape, 0.2)
    if kind in ("scale", "gamma"):  # far from 0, so that each branch counts
        return random.normal(name, shape, 0.3)
    if len(shape) == 1 and kind == "weight":  # of norms
        return random.uniform(name, shape, 0.6, 1.4)
    if len(shape) == 1:
        return random.normal(name, shape, 0.05)
    last = name.startswith("decoder.decoder.") and shape[0] == 1  # quiet enough for the clamp at 1
    return random.normal(name, shape, (0.02 if last else 0.9) / math.sqrt(math.prod(shape[1:])))


def vocabulary(words: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """The symbols of all bytes and the words as ids, and the merges that build the words."""
    symbols = _byte_symbols()
    ids, merges = {symbol: byte for byte, symbol in enumerate(symbols.values())}, list[str]()
    for word in words:
        spelled = "".join(symbols[byte] for byte in word.encode())
        for end in range(1, len(spelled)):
            if (merge := f"{spelled[:end]} {spelled[end]}") not in merges:
                merges.append(merge)
                ids.setdefault(spelled[: end + 1], len(ids))
    return ids, merges


def _byte_symbols() -> dict[int, str]:
    """The printable character that stands for each byte in the files of byte-level tokenizers."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def write_tokenizer(out: Path, config: dict[str, Any], *, full: bool) -> None:
    ids, merges = vocabulary(("assistant", "user") if full else WORDS)
    if full:  # the words of all prompts with the released ids, and names for the rest
        ids |= {"assistant": config["assistant_token_id"], "user": 872}
        taken = set(ids.values())
        ids |= {f"<{id}>": id for id in range(RELEASED_VOCABULARY) if id not in taken}
    names = ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")
    marks = dict(zip((*SPECIAL[1:], *TTS), (config[f"{name}_token_id"] for name in names), strict=True))
    marks = {SPECIAL[0]: config["im_start_token_id"] - 1} | marks
    write_json(out / "vocab.json", ids)
    (out / "merges.txt").write_text("\n".join(("#version: 0.2", *merges)) + "\n", encoding="utf-8")
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    write_json(
        out / "tokenizer_config.json",
        {
            "added_tokens_decoder": {str(id): {"content": name, **plain} for name, id in marks.items()},
            "additional_special_tokens": [*SPECIAL[1:], *TTS],
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": SPECIAL[2],
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": SPECIAL[0],
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(
    out: Path, variant: str, *, seed: int = SEED, full: bool = False, never_stop: bool = False
) -> None:
    """Write the files of a checkpoint into `out`, which is created if need be."""
    chosen, codec = VARIANTS[variant], out / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    first = RELEASED_VOCABULARY if full else len(vocabulary(WORDS)[0])
    config = model_config(chosen, full=full, first_special=first)
    if not full:
        config["assistant_token_id"] = vocabulary(WORDS)[0]["assistant"]
    random = Random(seed, variant)
    tensors = {name: model_tensor(random, name, shape) for name, shape in model_shapes(config)}
    head = tensors["talker.codec_head.weight"]
    head[config["talker_config"]["codec_eos_token_id"]] *= 0 if never_stop else END_GAIN
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", GENERATION)
    write_tokenizer(out, config, full=full)
    write_json(out / "preprocessor_config.json", {"processor_class": "Qwen3TTSProcessor"})
    sizes = codec_config(chosen, full=full)
    of_codec = {name: codec_tensor(random, name, shape) for name, shape in codec_shapes(sizes)}
    save_file(of_codec, codec / "model.safetensors", {"format": "pt"})
    write_json(codec / "config.json", sizes)
    write_json(codec / "configuration.json", {"framework": "pytorch", "task": "feature-extraction"})
    write_json(
        codec / "preprocessor_config.json",
        {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24000,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--variant", choices=VARIANTS, default="custom06", help="the model; default: %(default)s")
    parser.add_argument("--seed", type=int, default=SEED, help="of the weights")
    parser.add_argument("--full-size", action="store_true", help="use the dimensions of the released model")
    parser.add_argument("--never-stop", action="store_true", help="make an end that is never drawn with top_k")
    args = parser.parse_args()
    write_checkpoint(args.out, args.variant, seed=args.seed, full=args.full_size, never_stop=args.never_stop)


if __name__ == "__main__":
    main()
