"""The configurations of random Qwen3-TTS checkpoints, and the names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Shapes = Iterator[tuple[str, tuple[int, ...]]]

CUSTOM, BASE, DESIGN = "custom_voice", "base", "voice_design"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TTS = ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
LANGUAGES = {"english": 2, "german": 5, "spanish": 6, "chinese": 7, "japanese": 10, "french": 13, "korean": 16}
LANGUAGES |= {"russian": 21, "italian": 22, "portuguese": 23, "sichuan_dialect": 14, "beijing_dialect": 26}
"""The languages, and their ids behind those of the codes."""
SPEAKERS = {"serena": 1018, "vivian": 1017, "uncle_fu": 962, "ryan": 1013, "aiden": 813, "ono_anna": 825}
SPEAKERS |= {"sohee": 816, "eric": 827, "dylan": 830}
MARKS = {"codec_pad_id": 100, "codec_bos_id": 101, "codec_eos_token_id": 102, "codec_think_id": 106}
MARKS |= {"codec_nothink_id": 107, "codec_think_bos_id": 108, "codec_think_eos_id": 109}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A released model: what it takes, its size, and the transformer layers of the codec in its tiny checkpoint."""

    kind: str
    size: str
    codec_layers: int = 2


VARIANTS = {
    "custom06": Variant(kind=CUSTOM, size="0b6"),
    "custom17": Variant(kind=CUSTOM, size="1b7"),
    "base06": Variant(kind=BASE, size="0b6"),
    "base17": Variant(kind=BASE, size="1b7", codec_layers=8),
    "design": Variant(kind=DESIGN, size="1b7"),
}


def model_config(variant: Variant, *, full: bool, first_special: int) -> dict[str, Any]:
    """The config.json. first_special: the id of the first special token of the tokenizer."""
    special = {name: first_special + place for place, name in enumerate((*SPECIAL, *TTS))}
    if full:  # the released ids leave a gap between the first tokens and those of speech
        special |= {name: first_special + 28 + place for place, name in enumerate(TTS)}
    talker = _talker(variant, full=full)
    talker["text_vocab_size"] = 151936 if full else special[TTS[2]] + 3
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": variant.size,
        "tts_model_type": variant.kind,
        "im_start_token_id": special[SPECIAL[1]],
        "im_end_token_id": special[SPECIAL[2]],
        "assistant_token_id": 77091,
        "tts_pad_token_id": special[TTS[0]],
        "tts_bos_token_id": special[TTS[1]],
        "tts_eos_token_id": special[TTS[2]],
        "talker_config": talker,
    }
    if variant.kind == BASE:
        speaker = {"enc_dim": talker["hidden_size"], "sample_rate": 24000}
        tiny = {"enc_channels": [32, 32, 32, 32, 96], "enc_attention_channels": 24}
        tiny |= {"enc_se_channels": 16, "enc_res2net_scale": 4}
        config["speaker_encoder_config"] = speaker if full else speaker | tiny
    return config


def _talker(variant: Variant, *, full: bool) -> dict[str, Any]:
    codes, small = 2048 if full else 512, variant.size == "0b6"
    if full:
        sizes = _stack(1024 if small else 2048, 3072 if small else 6144, 28, 16, 8, 128)
        predictor = _stack(1024, 3072, 5, 16, 8, 128)
    else:
        sizes = _stack(64, 160, 3, 4, 2, 32)
        predictor = _stack(64 if small else 48, 96, 2, 4, 2, 16)
    third = sizes["head_dim"] // 2 // 3
    section = [sizes["head_dim"] // 2 - 2 * third, third, third]
    speakers = SPEAKERS if variant.kind == CUSTOM else {}
    common = {"num_code_groups": 16, "rope_theta": 1000000}
    return {
        **sizes,
        **common,
        **{name: codes + id for name, id in MARKS.items()},
        "model_type": "qwen3_tts_talker",
        "vocab_size": codes + 1024,
        "text_hidden_size": 2048 if full else 40,
        "max_position_embeddings": 32768 if full else 4096,
        "rope_scaling": {"interleaved": True, "mrope_section": section, "rope_type": "default", "type": "default"},
        "codec_language_id": {name: codes + id for name, id in LANGUAGES.items()},
        "spk_id": {name: codes + id for name, id in speakers.items()},
        "spk_is_dialect": {name: DIALECTS.get(name, False) for name in speakers},
        "position_id_per_seconds": 13,
        "code_predictor_config": {
            **predictor,
            **common,
            "model_type": "qwen3_tts_talker_code_predictor",
            "vocab_size": codes,
            "max_position_embeddings": 65536 if full else 256,
            "rope_scaling": None,
        },
    }


def codec_config(variant: Variant, *, full: bool) -> dict[str, Any]:
    """The config.json of the folder speech_tokenizer."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "encode_downsample_rate": 1920,
        "decode_upsample_rate": 1920,
        "decoder_config": _decoder_config(variant, full=full),
        "encoder_config": _encoder_config(full=full),
    }


def _decoder_config(variant: Variant, *, full: bool) -> dict[str, Any]:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16}
    sizes |= {"num_hidden_layers": 8, "latent_dim": 1024, "codebook_dim": 512, "decoder_dim": 1536}
    if not full:
        sizes = {"hidden_size": 32, "intermediate_size": 56, "head_dim": 16, "num_attention_heads": 4}
        sizes |= {"num_hidden_layers": variant.codec_layers, "latent_dim": 48, "codebook_dim": 24, "decoder_dim": 64}
    return {
        **sizes,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "codebook_size": 2048 if full else 512,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_key_value_heads": sizes["num_attention_heads"],
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512 if full else 24,
    }


def _encoder_config(*, full: bool) -> dict[str, Any]:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "head_dim": 64, "num_attention_heads": 8}
    sizes |= {"num_hidden_layers": 8, "num_filters": 64, "codebook_dim": 256}
    if not full:
        sizes = {"hidden_size": 32, "intermediate_size": 56, "head_dim": 8, "num_attention_heads": 4}
        sizes |= {"num_hidden_layers": 2, "num_filters": 4, "codebook_dim": 16}
    return {
        **sizes,
        "audio_channels": 1,
        "codebook_size": 2048 if full else 512,
        "compress": 2,
        "dilation_growth_rate": 2,
        "frame_rate": 12.5,
        "hidden_act": "gelu",
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "num_key_value_heads": sizes["num_attention_heads"],
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": sizes["hidden_size"],
        "upsampling_ratios": [8, 6, 5, 4],
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "vector_quantization_hidden_dimension": sizes["codebook_dim"],
    }


def _stack(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, head: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def model_shapes(c: dict[str, Any]) -> Shapes:
    """The tensors of model.safetensors with this config.json."""
    talker = c["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text = talker["hidden_size"], talker["text_hidden_size"]
    yield "talker.model.text_embedding.weight", (talker["text_vocab_size"], text)
    yield from _with_bias("talker.text_projection.linear_fc1", text, text)
    yield from _with_bias("talker.text_projection.linear_fc2", hidden, text)
    yield "talker.model.codec_embedding.weight", (talker["vocab_size"], hidden)
    yield from _decoder("talker.model", talker)
    yield "talker.codec_head.weight", (talker["vocab_size"], hidden)
    for group in range(talker["num_code_groups"] - 1):
        embedding = f"talker.code_predictor.model.codec_embedding.{group}.weight"
        yield embedding, (predictor["vocab_size"], hidden)
        yield f"talker.code_predictor.lm_head.{group}.weight", (predictor["vocab_size"], predictor["hidden_size"])
    if predictor["hidden_size"] != hidden:
        yield from _with_bias("talker.code_predictor.small_to_mtp_projection", predictor["hidden_size"], hidden)
    yield from _decoder("talker.code_predictor.model", predictor)
    if "speaker_encoder_config" in c:
        yield from _speaker(c["speaker_encoder_config"])


def _decoder(prefix: str, c: dict[str, Any]) -> Shapes:
    hidden, ffn, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    for number in range(c["num_hidden_layers"]):
        layer = f"{prefix}.layers.{number}"
        for name, shape in (("q", (heads, hidden)), ("k", (kv_heads, hidden)), ("v", (kv_heads, hidden))):
            yield f"{layer}.self_attn.{name}_proj.weight", shape
        yield f"{layer}.self_attn.o_proj.weight", (hidden, heads)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", (head,)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (ffn, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, ffn)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (hidden,)
    yield f"{prefix}.norm.weight", (hidden,)


def _speaker(c: dict[str, Any]) -> Shapes:
    channels = c.get("enc_channels", [512, 512, 512, 512, 1536])
    attention, squeezed = c.get("enc_attention_channels", 128), c.get("enc_se_channels", 128)
    scale, wide = c.get("enc_res2net_scale", 8), channels[-1]
    yield from _conv("speaker_encoder.blocks.0.conv", channels[0], 128, 5)
    for number in range(1, 4):
        block, inputs, size = f"speaker_encoder.blocks.{number}", channels[number - 1], channels[number]
        yield from _conv(f"{block}.tdnn1.conv", size, inputs, 1)
        for part in range(scale - 1):
            yield from _conv(f"{block}.res2net_block.blocks.{part}.conv", size // scale, size // scale, 3)
        yield from _conv(f"{block}.tdnn2.conv", size, size, 1)
        yield from _conv(f"{block}.se_block.conv1", squeezed, size, 1)
        yield from _conv(f"{block}.se_block.conv2", size, squeezed, 1)
    yield from _conv("speaker_encoder.mfa.conv", wide, sum(channels[1:-1]), 1)
    yield from _conv("speaker_encoder.asp.tdnn.conv", attention, 3 * wide, 1)
    yield from _conv("speaker_encoder.asp.conv", wide, attention, 1)
    yield from _conv("speaker_encoder.fc", c["enc_dim"], 2 * wide, 1)


def codec_shapes(c: dict[str, Any]) -> Shapes:
    """The tensors of speech_tokenizer/model.safetensors with the config.json beside it."""
    yield from _codec_decoder(c["decoder_config"])
    yield from _codec_encoder(c["encoder_config"])


def _codec_decoder(c: dict[str, Any]) -> Shapes:
    width, half, latent = c["codebook_dim"], c["codebook_dim"] // 2, c["latent_dim"]
    for name, count in (("rvq_first", 1), ("rvq_rest", c["num_quantizers"] - 1)):
        quantizer = f"decoder.quantizer.{name}"
        for number in range(count):
            book = f"{quantizer}.vq.layers.{number}._codebook"
            yield f"{book}.cluster_usage", (c["codebook_size"],)
            yield f"{book}.embedding_sum", (c["codebook_size"], half)
        yield f"{quantizer}.input_proj.weight", (half, width, 1)
        yield f"{quantizer}.output_proj.weight", (width, half, 1)
    yield from _conv("decoder.pre_conv.conv", latent, width, 3)
    hidden, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * c["head_dim"]
    stack = "decoder.pre_transformer"
    yield from _with_bias(f"{stack}.input_proj", hidden, latent)
    yield from _with_bias(f"{stack}.output_proj", latent, hidden)
    for number in range(c["num_hidden_layers"]):
        layer = f"{stack}.layers.{number}"
        for name in "qkv":
            yield f"{layer}.self_attn.{name}_proj.weight", (heads, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, heads)
        for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
            yield f"{layer}.mlp.{name}_proj.weight", shape
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield f"{layer}.{name}", (hidden,)
        for name in ("self_attn_layer_scale.scale", "mlp_layer_scale.scale"):
            yield f"{layer}.{name}", (hidden,)
    yield f"{stack}.norm.weight", (hidden,)
    for number, ratio in enumerate(c["upsampling_ratios"]):
        yield from _conv(f"decoder.upsample.{number}.0.conv", latent, latent, ratio)
        block = f"decoder.upsample.{number}.1"
        yield from _conv(f"{block}.dwconv.conv", latent, 1, 7)
        yield from ((f"{block}.norm.{name}", (latent,)) for name in ("weight", "bias"))
        yield from _with_bias(f"{block}.pwconv1", 4 * latent, latent)
        yield from _with_bias(f"{block}.pwconv2", latent, 4 * latent)
        yield f"{block}.gamma", (latent,)
    size = c["decoder_dim"]
    yield from _conv("decoder.decoder.0.conv", size, latent, 7)
    for number, rate in enumerate(c["upsample_rates"], 1):
        block = f"decoder.decoder.{number}.block"
        yield from _snake(f"{block}.0", size)
        yield f"{block}.1.conv.weight", (size, size // 2, 2 * rate)
        size //= 2
        yield f"{block}.1.conv.bias", (size,)
        for unit in range(2, 5):
            yield from _snake(f"{block}.{unit}.act1", size)
            yield from _conv(f"{block}.{unit}.conv1.conv", size, size, 7)
            yield from _snake(f"{block}.{unit}.act2", size)
            yield from _conv(f"{block}.{unit}.conv2.conv", size, size, 1)
    last = 1 + len(c["upsample_rates"])
    yield from _snake(f"decoder.decoder.{last}", size)
    yield from _conv(f"decoder.decoder.{last + 1}.conv", 1, size, 7)


def _codec_encoder(c: dict[str, Any]) -> Shapes:
    size, hidden, half = c["num_filters"], c["hidden_size"], c["codebook_dim"]
    yield from _conv("encoder.encoder.layers.0.conv", size, 1, 7)
    for stage, stride in enumerate(reversed(c["upsampling_ratios"])):
        block = f"encoder.encoder.layers.{1 + 3 * stage}.block"
        yield from _conv(f"{block}.1.conv", size // 2, size, 3)
        yield from _conv(f"{block}.3.conv", size, size // 2, 1)
        yield from _conv(f"encoder.encoder.layers.{3 + 3 * stage}.conv", 2 * size, size, 2 * stride)
        size *= 2
    last = 2 + 3 * len(c["upsampling_ratios"])
    yield from _conv(f"encoder.encoder.layers.{last}.conv", hidden, size, c["last_kernel_size"])
    heads = c["num_attention_heads"] * c["head_dim"]
    for number in range(c["num_hidden_layers"]):
        layer = f"encoder.encoder_transformer.layers.{number}"
        for name in "qkv":
            yield f"{layer}.self_attn.{name}_proj.weight", (heads, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, heads)
        yield f"{layer}.mlp.fc1.weight", (c["intermediate_size"], hidden)
        yield f"{layer}.mlp.fc2.weight", (hidden, c["intermediate_size"])
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from ((f"{layer}.{name}.{kind}", (hidden,)) for kind in ("weight", "bias"))
        for name in ("self_attn_layer_scale", "mlp_layer_scale"):
            yield f"{layer}.{name}.scale", (hidden,)
    yield "encoder.downsample.conv.weight", (hidden, hidden, 4)
    counts = c["num_semantic_quantizers"], c["num_quantizers"] - c["num_semantic_quantizers"]
    for name, count in zip(("semantic", "acoustic"), counts, strict=True):
        quantizer = f"encoder.quantizer.{name}_residual_vector_quantizer"
        yield f"{quantizer}.input_proj.weight", (half, hidden, 1)
        yield f"{quantizer}.output_proj.weight", (hidden, half, 1)
        for number in range(count):
            book = f"{quantizer}.layers.{number}.codebook"
            yield f"{book}.cluster_usage", (c["codebook_size"],)
            yield f"{book}.embed_sum", (c["codebook_size"], half)
            yield f"{book}.initialized", (1,)


def _with_bias(name: str, outputs: int, inputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
    yield f"{name}.weight", (outputs, inputs, kernel)
    yield f"{name}.bias", (outputs,)


def _snake(name: str, channels: int) -> Shapes:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)
