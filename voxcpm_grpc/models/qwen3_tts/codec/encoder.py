"""The encoder from audio to codes, in chunks that join exactly.

Dimensions: c channels, T samples or frames at the rate of a module, n frames of the transformer, h heads, d head size.

Each convolution with a stride fills up the end of its own input, so that the last frame is whole. Chunks have a fixed
size: zeros follow the end of a recording, and each of these convolutions replaces what came of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.streaming import CausalConv, DelayLine, Module, ResidualUnit
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.qwen3_tts.codec.quantizer import Quantizer
from voxcpm_grpc.models.qwen3_tts.codec.windowed import rotate
from voxcpm_grpc.models.qwen3_tts.config.codec import EncoderConfig

HALVING = 2  # the last convolution has this stride, from the rate of the transformer to that of the codes


class EndedLine(DelayLine):
    """A delay line of a chunk that may end early: its first `valid` samples, at the rate of the module, count."""

    def __init__(self, tails: list[Tensor], valid: int) -> None:
        super().__init__(tails)
        self.valid = valid


@dataclass(frozen=True, slots=True)
class Downsample:
    """A convolution of kernel 2s and stride s, which reads zeros behind the end."""

    weight: Tensor  # [out, in, 2 * stride]
    bias: Tensor
    stride: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        assert isinstance(line, EndedLine)
        x = torch.where(torch.arange(x.shape[-1], device=x.device) < line.valid, x, 0)
        line.valid = -(-line.valid // self.stride)
        return F.conv1d(line.extend(x), self.weight, self.bias, self.stride)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the transformer. The last map of each branch has its scale."""

    norm: tuple[Tensor, Tensor]
    qkv: Linear
    out: Linear
    mlp_norm: tuple[Tensor, Tensor]
    up: Linear
    down: Linear


class Encoder:
    """Encodes recordings in float32."""

    def __init__(self, config: EncoderConfig, quantizers: int, weights: Weights) -> None:
        """Take the weights, whose names begin with `encoder.` in the file. `quantizers`: those that codes have."""
        self.config, self.device = config, weights.device
        self._read_convolutions(weights.scope("encoder"))
        stack = weights.scope("encoder_transformer")
        self._layers = [_read_layer(config, stack.scope(f"layers.{i}")) for i in range(config.num_hidden_layers)]
        exponent = torch.arange(0, config.head_dim, 2, device=self.device, dtype=torch.float32) / config.head_dim
        self._frequency = 1.0 / config.rope_theta**exponent
        hidden = config.hidden_size
        self._halve = weights.take("downsample.conv.weight", hidden, hidden, 2 * HALVING)
        sizes = config.codebook_size, config.codebook_dim, hidden
        semantic, acoustic = (
            weights.scope(f"quantizer.{kind}_residual_vector_quantizer") for kind in ("semantic", "acoustic")
        )
        self._semantic = Quantizer.load(semantic, 1, 0, *sizes)
        self._acoustic = Quantizer.load(acoustic, quantizers - 1, config.num_quantizers - quantizers, *sizes)

    @torch.inference_mode()
    def encode(self, waveform: Tensor, frames: int) -> Iterator[Tensor]:
        """Codes int16 [at most `frames`, q] of the next frames of a recording [samples] on the device, in order.

        All frames see all earlier ones, as in the official package. Each call of the iterator takes bounded time.
        """
        size = frames * self.config.hop
        tails = [waveform.new_zeros(1, channels, samples) for channels, samples in self._tails]
        total = HALVING * -(-len(waveform) // size) * frames
        kept = self.config.num_key_value_heads, self.config.head_dim
        kv = waveform.new_empty(len(self._layers), 2, 1, total, *kept)
        before: Tensor | None = None
        for number, chunk in enumerate(waveform.split(size)):
            if not len(chunk):
                return
            line = EndedLine(tails, len(chunk))
            x = self._convolve(F.pad(chunk, (0, size - len(chunk)))[None, None], line)
            tails = line.after
            x = self._transform(x.transpose(1, 2), kv, number * HALVING * frames).transpose(1, 2)
            end = torch.arange(x.shape[-1], device=self.device).clamp(max=line.valid - 1)
            x = x[..., end]  # the last frame is repeated behind the end
            before = x[..., :1].expand(-1, -1, HALVING) if before is None else before
            y = F.conv1d(torch.cat([before, x], dim=-1), self._halve, stride=HALVING)[0].T
            before = x[..., -HALVING:]
            y = y[: -(-line.valid // HALVING)]
            yield torch.cat([self._semantic(y), self._acoustic(y)], dim=1).to(torch.int16)

    def _convolve(self, x: Tensor, line: EndedLine) -> Tensor:
        # The convolutions run without cuDNN, for the reason that `models.voxcpm.vae.build_encoder` gives, and without
        # TF32.
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            for module in self._modules:
                x = module(x, line)
        return x

    def _transform(self, x: Tensor, kv: Tensor, start: int) -> Tensor:
        """x [1, n, hidden] at positions from `start` on -> the same shape. kv [layers, 2, 1, positions, g, d]."""
        c, stop = self.config, start + x.shape[1]
        position = torch.arange(start, stop, device=x.device)
        angle = (position[:, None, None] * self._frequency).float()
        cos, sin = angle.cos(), angle.sin()
        seen = position[:, None] >= torch.arange(stop, device=x.device)
        heads = [c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads]
        for layer, (keys, values) in zip(self._layers, kv.unbind(), strict=True):
            y = F.layer_norm(x, x.shape[-1:], *layer.norm, eps=c.norm_eps)
            q, k, v = layer.qkv(y).unflatten(-1, (-1, c.head_dim)).split(heads, dim=-2)
            keys[:, start:stop], values[:, start:stop] = rotate(k, cos, sin), v
            q, k, v = (part.transpose(1, 2) for part in (rotate(q, cos, sin), keys[:, :stop], values[:, :stop]))
            mixed = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=heads[0] != heads[1])
            x = x + layer.out(mixed.transpose(1, 2).flatten(2))
            y = F.layer_norm(x, x.shape[-1:], *layer.mlp_norm, eps=c.norm_eps)
            x = x + layer.down(F.gelu(layer.up(y)))
        return x

    def _read_convolutions(self, weights: Weights) -> None:
        c, size = self.config, self.config.num_filters
        modules: list[Module] = []
        tails: list[tuple[int, int]] = []

        def conv(number: int, outputs: int, inputs: int, kernel: int, part: str = "") -> CausalConv:
            tails.extend([(inputs, kernel - 1)] if kernel > 1 else [])
            return CausalConv(*_conv(weights.scope(f"layers.{number}{part}"), outputs, inputs, kernel))

        modules.append(conv(0, size, c.audio_channels, c.kernel_size))
        for stage, stride in enumerate(c.strides):
            unit, narrow = 1 + 3 * stage, size // c.compress
            first = conv(unit, narrow, size, c.residual_kernel_size, ".block.1")
            modules += [ResidualUnit((elu, first, elu, conv(unit, size, narrow, 1, ".block.3"))), elu]
            tails.append((size, stride))
            modules.append(Downsample(*_conv(weights.scope(f"layers.{unit + 2}"), 2 * size, size, 2 * stride), stride))
            size *= 2
        modules += [elu, conv(2 + 3 * len(c.strides), c.hidden_size, size, c.last_kernel_size)]
        self._modules, self._tails = tuple(modules), tuple(tails)


def elu(x: Tensor, line: DelayLine) -> Tensor:
    return F.elu(x)


def _conv(weights: Weights, outputs: int, inputs: int, kernel: int) -> tuple[Tensor, Tensor]:
    return weights.take("conv.weight", outputs, inputs, kernel), weights.take("conv.bias", outputs)


def _read_layer(config: EncoderConfig, weights: Weights) -> Layer:
    hidden, ffn, head = config.hidden_size, config.intermediate_size, config.head_dim
    sizes = {
        "q_proj": config.num_attention_heads * head,
        "k_proj": config.num_key_value_heads * head,
        "v_proj": config.num_key_value_heads * head,
    }

    def norm(name: str) -> tuple[Tensor, Tensor]:
        return weights.take(f"{name}.weight", hidden), weights.take(f"{name}.bias", hidden)

    def scaled(name: str, inputs: int, scale: str) -> Linear:
        linear = Linear.load(weights, name, hidden, inputs, bias=False)
        return replace(linear, weight=linear.weight * weights.take(f"{scale}.scale", hidden)[:, None])

    return Layer(
        norm=norm("input_layernorm"),
        qkv=Linear.fused(weights.scope("self_attn"), sizes, hidden),
        out=scaled("self_attn.o_proj", sizes["q_proj"], "self_attn_layer_scale"),
        mlp_norm=norm("post_attention_layernorm"),
        up=Linear.load(weights, "mlp.fc1", ffn, hidden, bias=False),
        down=scaled("mlp.fc2", ffn, "mlp_layer_scale"),
    )
