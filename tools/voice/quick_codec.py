"""The official codec with faster convolutions and activations for training, and with plain weights.

A file holds each weight as a magnitude `weight_g` and a direction `weight_v`; here each is one `weight`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.voice import official

TAPS = 7  # of a depthwise convolution
CONFIG, WEIGHTS = "codec.json", "audiovae.safetensors"  # the files of a codec; the first one is written last
UNUSED = "fc_logvar"  # the deviation of latents, which the files do not hold

kernels_allowed = True  # False: plain functions on a GPU too


def plain_snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(alpha x)^2 / alpha; x: [batch, channels, time], alpha: [1, channels, 1]."""
    return x + (alpha * x).sin() ** 2 / (alpha + 1e-9)


def plain_depthwise(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Causal; x: [batch, channels, time], weight: [channels, 1, TAPS]. A sum, for a compiler to fuse."""
    time, padded = x.shape[-1], F.pad(x, ((TAPS - 1) * dilation, 0))
    out = bias[:, None]
    for tap in range(TAPS):
        out = out + padded[..., tap * dilation : tap * dilation + time] * weight[:, 0, tap, None]
    return out


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """As `plain_snake`, by a kernel on a GPU."""
    if not (kernels_allowed and x.is_cuda):
        return plain_snake(x, alpha)
    from tools.voice.codec_kernels import Snake  # Triton is not always installed

    return Snake.apply(x, alpha)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """As `plain_depthwise`, by a kernel on a GPU."""
    if not (kernels_allowed and x.is_cuda):
        return plain_depthwise(x, weight, bias, dilation)
    from tools.voice.codec_kernels import Depthwise  # Triton is not always installed

    return Depthwise.apply(x, weight, bias, dilation)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution of one tap as a matrix product; weight: [out, in, 1]."""
    return weight[:, :, 0] @ x + bias[:, None].to(x.dtype)


def downsampling(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A causal convolution of 2 x stride taps: two matrix products over blocks of `stride` samples.

    x: [batch, in, time], time a multiple of stride; weight: [out, in, 2 x stride].
    """
    blocks = x.unflatten(2, (-1, stride)).transpose(2, 3).flatten(1, 2)  # [batch, in * stride, time / stride]
    earlier, now = (part.flatten(1) for part in weight.split(stride, 2))
    return now @ blocks + F.pad((earlier @ blocks)[..., :-1], (1, 0)) + bias[:, None].to(x.dtype)


def upsampling(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """The causal transposed convolution of 2 x stride taps; weight: [in, out, 2 x stride]."""
    now, later = (part.flatten(1).t() for part in weight.split(stride, 2))  # [out * stride, in]
    blocks = now @ x + F.pad((later @ x)[..., :-1], (1, 0))
    out = blocks.unflatten(1, (-1, stride)).transpose(2, 3).flatten(2)
    return out + bias[:, None].to(x.dtype)


def build(config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Any:
    """The official codec, with the tensors of a file or with new random weights."""
    audio_vae = official.module("modules.audiovae.audio_vae_v2")
    audio_vae.snake = snake
    codec = audio_vae.AudioVAE(audio_vae.AudioVAEConfig(**config))
    if tensors is not None:
        missing, unknown = codec.load_state_dict(tensors, strict=False)
        if unknown or any(UNUSED not in name for name in missing):
            raise ValueError(f"the weights are not those of this codec: {missing} are missing, {unknown} are unknown")
    for module in codec.modules():
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            nn.utils.remove_weight_norm(module)
            replace_forward(module)
    return codec


def file_tensors(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, in half precision, from the parameters of a codec by name; without UNUSED."""
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if UNUSED in name:
            continue
        half = weight.detach().to(torch.float16)
        if name.endswith(".weight"):
            magnitude = half.float().flatten(1).norm(dim=1).view(-1, 1, 1)  # of the rounded direction
            tensors |= {f"{name}_v": half, f"{name}_g": magnitude.to(torch.float16)}
        else:
            tensors[name] = half
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def replace_forward(conv: Any) -> None:
    """Replace the forward function of a convolution by one of the functions above, if one fits."""
    (taps,), (stride,) = conv.kernel_size, conv.stride
    if conv.transposed:
        conv.forward = lambda x: upsampling(x, conv.weight, conv.bias, stride)
    elif stride > 1:
        conv.forward = lambda x: downsampling(x, conv.weight, conv.bias, stride)
    elif conv.groups == conv.in_channels > 1 and taps == TAPS:
        conv.forward = lambda x: depthwise(x, conv.weight, conv.bias, conv.dilation[0])
    elif conv.groups == 1 and taps == 1:
        conv.forward = lambda x: pointwise(x, conv.weight, conv.bias)
