"""Write a random checkpoint in the layout of a released model: VoxCPM2, or with --model an older one.

    python tools/make_checkpoint.py OUT                          the tests' tiny model, a few hundred kB
    python tools/make_checkpoint.py OUT --full-size --never-stop the released dimensions, about 5 GB, for load tests
    python tools/make_checkpoint.py OUT --model VoxCPM1.5        the tiny model of an older release

Needs torch, safetensors and tokenizers, but not the official package. The same seed, dtype and device give the same
bytes. The model is not trained, so its audio is noise. The weights are scaled so that hidden states and latents have
about unit scale, audio is neither silent nor saturated, and the stop predictor fires after a plausible number of
patches.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if this file is run as a program

from tools.checkpoint_layout import MODELS, VOXCPM05, VOXCPM2, VOXCPM15, config, model_shapes, vae_shapes

TINY_SEED = 1
STOP_UNIT = 0  # constant unit of stop_proj: it gives stop_head, which has no bias, a threshold
STOP_THRESHOLD = {VOXCPM2: 1.15, VOXCPM15: -1.25, VOXCPM05: 1.85}  # with TINY_SEED, most texts have 10 to 50 patches
SPECIAL = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|audio_prompt_start|>", 104: "<|audio_prompt_end|>"}
HAN = (
    "你好世界今天气很中国语音合成我们的是在说话一二三不了人大小上下来去时间生活学习朋"
    "友谢再见吧呢请听春风花月山水，。！？、：；（）「」"
)
MODEL_GAIN = {
    "feat_decoder.estimator.out_proj.weight": 0.4,  # latents of about unit scale at the usual guidance
    "feat_encoder.in_proj.weight": 2.0,  # the last patch outweighs the text, so that no text alone decides the stop
    "enc_to_lm_proj.weight": 2.0,
    "fsq_layer.in_proj.weight": 1.5,
    "stop_head.weight": 3.0,
}
LATIN_WORDS = (
    "▁the ▁and ▁of ▁to ▁in ▁is ▁it ▁you ▁for ▁with ▁this ▁that ▁hello ▁Hello ▁world ▁from ▁over ▁spoken ▁voice ▁old"
)
WORDS = [
    *LATIN_WORDS.split(),
    "▁warm",
    "ing",
    "tion",
    "er",
    "ed",
    "▁你好",
    "你好世界",
    "世界",
    "今天",
    "天气",
    "中国",
    "语音合成",
    "▁我们",
    "谢谢",
    "好，",
]


class Random:
    """Draws tensors of a checkpoint in order, from one generator on one device."""

    def __init__(self, seed: int, device: str) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        return mean + std * torch.randn(shape, generator=self.generator, device=self.device)

    def model(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return self.normal(shape, 0.1, mean=1.0)
        if name.endswith(("embed_tokens.weight", "special_token")):
            return self.normal(shape, 1.0)
        if name.endswith(".bias"):
            return self.normal(shape, 0.1)
        return self.normal(shape, MODEL_GAIN.get(name, 1.0) / shape[-1] ** 0.5)

    def vae(self, name: str, shape: tuple[int, ...], gains: dict[str, float]) -> Tensor:
        """A tensor of the AudioVAE. gains: the magnitude of each weight_g; the norm of weight_v has no effect."""
        if name.endswith(".alpha"):
            return 1 + 0.2 * torch.rand(shape, generator=self.generator, device=self.device)
        if "_embed." in name:
            return self.normal(shape, 0.1, mean=1.0 if "scale_embed" in name else 0.0)
        if name.endswith(".bias"):
            return self.normal(shape, 0.02)
        if name.endswith(".weight_g"):
            return self.normal(shape, 0.1, mean=1.0).abs() * gains[name]
        return self.normal(shape, 1.0)


def vae_gains(c: dict) -> dict[str, float]:
    """The norm of each filter that keeps the variance: 1 if the norm covers all inputs, more if it does not."""
    gains = {}
    for name, shape in vae_shapes(c):
        if not name.endswith(".weight_v"):
            continue
        gain = 1.0
        if shape[2] == 1 and shape[0] == shape[1]:  # pointwise conv of a residual unit
            gain = 0.3
        elif name == "encoder.fc_mu.weight_v":
            gain = 4.0  # speech is quieter than unit scale, latents must not be
        elif shape[:2] == (1, c["decoder_dim"] >> len(c["decoder_rates"])):  # last conv: noise, not a square wave
            gain = 0.03
        elif shape[2] > 3 and shape[2] % 2 == 0 and name.startswith("decoder"):  # transposed: norm is per input channel
            gain = (shape[1] * shape[2] / (2 * shape[0])) ** 0.5
        gains[name.removesuffix("_v") + "_g"] = gain
    return gains


def model_tensors(c: dict, random: Random, dtype: torch.dtype, threshold: float | None) -> dict[str, Tensor]:
    """The tensors of the networks. `threshold` is that of `arrange_stop`."""
    tensors = {name: random.model(name, shape).to(dtype) for name, shape in model_shapes(c)}
    arrange_stop(tensors, threshold)
    return tensors


def arrange_stop(tensors: dict[str, Tensor], threshold: float | None) -> None:
    """Give the stop head a threshold. With None, make it constant, so that class 0 (continue) always wins.

    stop_head has no bias. One unit of stop_proj is therefore constant (zero weights and bias 1, so silu(1) after the
    activation), and its weight is the bias of class 0.
    """
    tensors["stop_proj.weight"][STOP_UNIT] = 0
    tensors["stop_proj.bias"][STOP_UNIT] = 1
    head = tensors["stop_head.weight"]
    if threshold is None:
        head.zero_()
        threshold = 10.0
    head[:, STOP_UNIT] = 0
    head[0, STOP_UNIT] = threshold / (1 / (1 + math.exp(-1)))


def vae_tensors(c: dict, random: Random) -> dict[str, Tensor]:
    """The tensors of the AudioVAE. They are float32, as in the released checkpoint."""
    gains = vae_gains(c)
    tensors = {name: random.vae(name, shape, gains) for name, shape in vae_shapes(c)}
    out = f"decoder.model.{3 + len(c['decoder_rates'])}"
    tensors[f"{out}.weight_v"] -= tensors[f"{out}.weight_v"].mean(2, keepdim=True)  # audio without an offset
    if c.get("sr_bin_boundaries"):
        tensors["decoder.sr_bin_boundaries"] = torch.tensor(c["sr_bin_boundaries"], dtype=torch.int32)
    return tensors


def tokenizer() -> Tokenizer:
    """A Llama-style BPE tokenizer with byte fallback: ASCII, some Han characters, and merges of several of them."""
    names = ["<unk>", "<s>", "</s>"] + [f"<|reserved_{i}|>" for i in range(3, 101)] + list(SPECIAL.values())
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    names += ["▁"] + [chr(c) for c in range(33, 127)] + list(HAN)
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    merges = []
    for word in WORDS:
        for end in range(1, len(word)):
            pair = (word[:end], word[end])
            if pair not in merges:
                merges.append(pair)
                vocab.setdefault(word[: end + 1], len(vocab))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *SPECIAL.values()]
    tok.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return tok


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(out: Path, vocab_size: int) -> None:
    tok = tokenizer()
    if tok.get_vocab_size() > vocab_size:
        raise ValueError(f"the tokenizer has {tok.get_vocab_size()} entries, the embedding {vocab_size} rows")
    tok.save(str(out / "tokenizer.json"), pretty=False)
    marks: dict[str, object] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(out / "special_tokens_map.json", marks)
    write_json(
        out / "tokenizer_config.json",
        marks
        | {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False, "legacy": True},
    )


def write_checkpoint(
    out: Path,
    dtype: str = "float32",
    seed: int = TINY_SEED,
    full: bool = False,
    never_stop: bool = False,
    model: str = VOXCPM2,
) -> None:
    """Write config, weights and tokenizer into `out`, which is created if need be."""
    out.mkdir(parents=True, exist_ok=True)
    c = config(full, dtype, model)
    random = Random(seed, "cuda" if full and torch.cuda.is_available() else "cpu")
    tensors = model_tensors(c, random, getattr(torch, dtype), None if never_stop else STOP_THRESHOLD[model])
    if full and model == VOXCPM05:
        torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, out / "pytorch_model.bin")
    else:
        save_file(tensors, out / "model.safetensors")
    vae = vae_tensors(c["audio_vae_config"], random)
    if full:
        torch.save({"state_dict": {name: tensor.cpu() for name, tensor in vae.items()}}, out / "audiovae.pth")
    else:
        save_file(vae, out / "audiovae.safetensors")  # a pickle needs half a kB more for each tensor
    write_tokenizer(out, c["lm_config"]["vocab_size"])
    if full and model == VOXCPM05:  # its codec has the sizes that its class has by default
        del c["audio_vae_config"]
    write_json(out / "config.json", c)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--model", choices=MODELS, default=VOXCPM2, help="the released model; default: %(default)s")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the model's weights; default: float32, with --full-size bfloat16",
    )
    parser.add_argument("--seed", type=int, default=TINY_SEED, help="of the weights")
    parser.add_argument("--full-size", action="store_true", help="use the dimensions of the released model")
    parser.add_argument("--never-stop", action="store_true", help="make a stop head that never fires")
    args = parser.parse_args()
    dtype = args.dtype or ("bfloat16" if args.full_size else "float32")
    write_checkpoint(args.out, dtype, args.seed, args.full_size, args.never_stop, args.model)


if __name__ == "__main__":
    main()
