"""Write a random VoxCPM2 checkpoint in the layout of the released one.

    python tools/make_checkpoint.py OUT                          the tests' tiny model, a few hundred kB
    python tools/make_checkpoint.py OUT --full-size --never-stop the released dimensions, about 5 GB, for load tests

Needs torch, safetensors and tokenizers, but not the official package. The same seed, dtype and device give the same
bytes. The model is not trained, so its audio is noise. The weights are scaled so that hidden states and latents have
about unit scale, audio is neither silent nor saturated, and the stop predictor fires after a plausible number of
patches.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from torch import Tensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]

TINY_SEED = 1
STOP_UNIT = 0  # constant unit of stop_proj: it gives stop_head, which has no bias, a threshold
STOP_THRESHOLD = 1.15  # with TINY_SEED, every text has 10 to 50 patches
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


def ramp(pairs: int, top: float) -> list[float]:
    """RoPE frequency divisors, one per pair of head dimensions: near 1 for fast pairs, near `top` for slow ones."""
    width = pairs / 12
    return [1 + (top - 1) / (1 + math.exp((pairs / 2 - 0.5 - j) / width)) for j in range(pairs)]


def config(full: bool, dtype: str) -> dict:
    """config.json.

    The tiny model has the released rates and patch size. All its other dimensions differ from each other, so that tests
    find a transposed or swapped tensor.
    """
    head = 128 if full else 16
    positions = 32768 if full else 2048
    stack = ("hidden_dim", "ffn_dim", "num_heads", "num_layers", "kv_channels")
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 2048 if full else 28,
            "intermediate_size": 6144 if full else 44,
            "max_position_embeddings": positions,
            "num_attention_heads": 16 if full else 4,
            "num_hidden_layers": 28 if full else 3,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": ramp(head // 2, 31 if full else 7),
                "short_factor": ramp(head // 2, 31 if full else 5),
                "original_max_position_embeddings": positions,
            },
            "vocab_size": 73448 if full else 608,
            "use_mup": False,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
            "kv_channels": head,
        },
        "patch_size": 4,
        "feat_dim": 64 if full else 8,
        "residual_lm_num_layers": 8 if full else 2,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 512 if full else 12,
        "scalar_quantization_scale": 9,
        "encoder_config": dict(zip(stack, (1024, 4096, 16, 12, head) if full else (24, 36, 6, 1, head), strict=True)),
        "dit_config": {
            **dict(zip(stack, (1024, 4096, 16, 12, head) if full else (20, 52, 8, 2, head), strict=True)),
            "mean_mode": False,
            "cfm_config": {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0},
        },
        "audio_vae_config": {
            "encoder_dim": 128 if full else 2,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": 64 if full else 8,
            "decoder_dim": 2048 if full else 64,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "depthwise": True,
            "sample_rate": 16000,
            "out_sample_rate": 48000,
            "use_noise_block": False,
            "sr_bin_boundaries": [20000, 30000, 40000],
            "cond_type": "scale_bias",
            "cond_dim": 128,
            "cond_out_layer": False,
        },
        "max_length": 8192 if full else 2048,
        "device": "cuda" if full else "cpu",
        "dtype": dtype,
    }


def stack_shapes(prefix: str, hidden: int, ffn: int, heads: int, layers: int, lm: dict) -> Shapes:
    query, kv = heads * lm["kv_channels"], lm["num_key_value_heads"] * lm["kv_channels"]
    for i in range(layers):
        layer = f"{prefix}.layers.{i}"
        yield f"{layer}.self_attn.q_proj.weight", (query, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, query)
        yield f"{layer}.mlp.gate_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.up_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, ffn)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield f"{prefix}.norm.weight", (hidden,)


def model_shapes(c: dict) -> Shapes:
    """The names and shapes of model.safetensors."""
    lm, enc, dit = c["lm_config"], c["encoder_config"], c["dit_config"]
    h, e, d, feat, code = (
        lm["hidden_size"],
        enc["hidden_dim"],
        dit["hidden_dim"],
        c["feat_dim"],
        c["scalar_quantization_latent_dim"],
    )
    yield "base_lm.embed_tokens.weight", (lm["vocab_size"], h)
    ffn, heads = lm["intermediate_size"], lm["num_attention_heads"]
    yield from stack_shapes("base_lm", h, ffn, heads, lm["num_hidden_layers"], lm)
    yield from stack_shapes("residual_lm", h, ffn, heads, c["residual_lm_num_layers"], lm)
    yield from stack_shapes("feat_encoder.encoder", e, enc["ffn_dim"], enc["num_heads"], enc["num_layers"], lm)
    estimator = "feat_decoder.estimator"
    yield from stack_shapes(f"{estimator}.decoder", d, dit["ffn_dim"], dit["num_heads"], dit["num_layers"], lm)
    yield "feat_encoder.special_token", (1, 1, 1, e)
    linears = {
        "feat_encoder.in_proj": (e, feat),
        f"{estimator}.in_proj": (d, feat),
        f"{estimator}.cond_proj": (d, feat),
        f"{estimator}.out_proj": (feat, d),
        f"{estimator}.time_mlp.linear_1": (d, d),
        f"{estimator}.time_mlp.linear_2": (d, d),
        f"{estimator}.delta_time_mlp.linear_1": (d, d),
        f"{estimator}.delta_time_mlp.linear_2": (d, d),
        "fsq_layer.in_proj": (code, h),
        "fsq_layer.out_proj": (h, code),
        "enc_to_lm_proj": (h, e),
        "lm_to_dit_proj": (d, h),
        "res_to_dit_proj": (d, h),
        "fusion_concat_proj": (h, 2 * h),
        "stop_proj": (h, h),
    }
    for name, shape in linears.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
    yield "stop_head.weight", (2, h)


def conv_shapes(name: str, v: tuple[int, int, int], bias: int | None = None) -> Shapes:
    yield f"{name}.weight_v", v
    yield f"{name}.weight_g", (v[0], 1, 1)
    yield f"{name}.bias", (v[0] if bias is None else bias,)


def residual_unit_shapes(name: str, channels: int) -> Shapes:
    yield f"{name}.block.0.alpha", (1, channels, 1)
    yield from conv_shapes(f"{name}.block.1", (channels, 1, 7))
    yield f"{name}.block.2.alpha", (1, channels, 1)
    yield from conv_shapes(f"{name}.block.3", (channels, channels, 1))


def vae_shapes(c: dict) -> Shapes:
    """The names and shapes of the AudioVAE file, without the integers of `decoder.sr_bin_boundaries`."""
    channels, latent = c["encoder_dim"], c["latent_dim"]
    yield from conv_shapes("encoder.block.0", (channels, 1, 7))
    for i, stride in enumerate(c["encoder_rates"]):
        block = f"encoder.block.{1 + i}.block"
        for j in range(3):
            yield from residual_unit_shapes(f"{block}.{j}", channels)
        yield f"{block}.3.alpha", (1, channels, 1)
        yield from conv_shapes(f"{block}.4", (2 * channels, channels, 2 * stride))
        channels *= 2
    yield from conv_shapes("encoder.fc_mu", (latent, channels, 3))
    yield from conv_shapes("encoder.fc_logvar", (latent, channels, 3))

    rates, buckets = c["decoder_rates"], len(c["sr_bin_boundaries"]) + 1
    yield from conv_shapes("decoder.model.0", (latent, 1, 7))
    yield from conv_shapes("decoder.model.1", (c["decoder_dim"], latent, 1))
    for i, stride in enumerate(rates):
        wide, narrow = c["decoder_dim"] >> i, c["decoder_dim"] >> (i + 1)
        block = f"decoder.model.{2 + i}.block"
        yield f"{block}.0.alpha", (1, wide, 1)
        yield from conv_shapes(f"{block}.1", (wide, narrow, 2 * stride), bias=narrow)  # transposed: [in, out, k]
        for j in range(2, 5):
            yield from residual_unit_shapes(f"{block}.{j}", narrow)
        yield f"decoder.sr_cond_model.{2 + i}.scale_embed.weight", (buckets, wide)
        yield f"decoder.sr_cond_model.{2 + i}.bias_embed.weight", (buckets, wide)
    last = c["decoder_dim"] >> len(rates)
    yield f"decoder.model.{2 + len(rates)}.alpha", (1, last, 1)
    yield from conv_shapes(f"decoder.model.{3 + len(rates)}", (1, last, 7))


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


def model_tensors(c: dict, random: Random, dtype: torch.dtype, never_stop: bool) -> dict[str, Tensor]:
    tensors = {name: random.model(name, shape).to(dtype) for name, shape in model_shapes(c)}
    arrange_stop(tensors, threshold=None if never_stop else STOP_THRESHOLD)
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
    out: Path, dtype: str = "float32", seed: int = TINY_SEED, full: bool = False, never_stop: bool = False
) -> None:
    """Write config, weights and tokenizer into `out`, which is created if need be."""
    out.mkdir(parents=True, exist_ok=True)
    c = config(full, dtype)
    random = Random(seed, "cuda" if full and torch.cuda.is_available() else "cpu")
    save_file(model_tensors(c, random, getattr(torch, dtype), never_stop), out / "model.safetensors")
    vae = vae_tensors(c["audio_vae_config"], random)
    if full:
        torch.save({"state_dict": {name: tensor.cpu() for name, tensor in vae.items()}}, out / "audiovae.pth")
    else:
        save_file(vae, out / "audiovae.safetensors")  # a pickle needs half a kB more for each tensor
    write_tokenizer(out, c["lm_config"]["vocab_size"])
    write_json(out / "config.json", c)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the model's weights; default: float32, with --full-size bfloat16",
    )
    parser.add_argument("--seed", type=int, default=TINY_SEED, help="of the weights")
    parser.add_argument("--full-size", action="store_true", help="use the dimensions of the released VoxCPM2")
    parser.add_argument("--never-stop", action="store_true", help="make a stop head that never fires")
    args = parser.parse_args()
    dtype = args.dtype or ("bfloat16" if args.full_size else "float32")
    write_checkpoint(args.out, dtype, args.seed, args.full_size, args.never_stop)


if __name__ == "__main__":
    main()
