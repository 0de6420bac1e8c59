"""Chooses the plain or the fast implementation of each part of a model, once, when the model is loaded.

No other module chooses. Triton, CUDA and flash-attn are not part of every installation, so a fast implementation is
imported inside the function that chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from voxcpm_grpc.attention import Attention
from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.kernels import reference
from voxcpm_grpc.layers.noise import GaussianNoise, PatchNoise, RecordedNoise, SlotNoise
from voxcpm_grpc.layers.ops import Ops, TorchOps
from voxcpm_grpc.layers.packed import PackedOps, packing_serves
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm.compiled_flow import CompiledFlow, Evaluation
from voxcpm_grpc.models.voxcpm.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.cpu_vae import with_cpu_modules
from voxcpm_grpc.models.voxcpm.flow import FlowSchedule, PatchFlow, PlainFlow
from voxcpm_grpc.models.voxcpm.local import LocDiT, LocEnc, PatchEncoder
from voxcpm_grpc.models.voxcpm.vae import Decoder, StreamingDecoder, StreamingNet

if TYPE_CHECKING:
    from voxcpm_grpc.models.voxcpm.few_rows import FewRows
    from voxcpm_grpc.models.voxcpm.fused_maps import FusedMaps
    from voxcpm_grpc.models.voxcpm.plain_maps import PlainMaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The device, the dtypes and the implementations of a model, for its constructors."""

    device: torch.device
    dtype: torch.dtype
    attention: Attention
    ops: Ops
    quantize: bool  # the layers of the language models have weights of 8 bits
    noise: PatchNoise
    slots: ModuleType  # `kernels.reference` or `kernels.slot_state`: the state of slots between the parts of a step
    fused: bool  # the flow loop uses kernels
    persistent: bool  # with `fused`, one launch each for the networks of few streams, where kernels serve
    codec_dtype: torch.dtype  # of the codec's decoder

    def compile_ahead(self, config: VoxCPMConfig) -> None:
        """Start to compile kernels that a model with this configuration needs and no earlier start has compiled."""
        if self.fused and self.dtype == torch.bfloat16 and _is_hopper(self.device):
            from voxcpm_grpc.models.voxcpm.compile_ahead import compile_ahead

            language = self._single_language and not self.quantize
            compile_ahead(config, self.device, language=language, local=self.persistent)

    def flow(
        self, dit: LocDiT, schedules: dict[int, FlowSchedule], evaluations: Mapping[int, Evaluation] | None = None
    ) -> PatchFlow:
        """The diffusion with the weights of `dit`, under a schedule for each count of timesteps.

        Without kernels it uses the compiled `evaluations` by number of sequences, if there are any.
        """
        if not self.fused:
            plain = PlainFlow(dit)
            loop = CompiledFlow(plain, evaluations) if evaluations else plain
            return PatchFlow(schedules, single=loop, batch=loop)
        from voxcpm_grpc.models.voxcpm.fused_flow import FusedFlow
        from voxcpm_grpc.models.voxcpm.persistent import persistent_flow

        fused = FusedFlow(dit)
        single = persistent_flow(dit) if self.persistent else None
        return PatchFlow(schedules, single=single or fused, batch=fused)

    def patch_encoder(self, encoder: LocEnc) -> PatchEncoder:
        """The encoder of patches, with the weights of `encoder`."""
        if not (self.fused and self.persistent):
            return PatchEncoder(single=encoder, batch=encoder)
        from voxcpm_grpc.models.voxcpm.persistent import persistent_encoder

        return PatchEncoder(single=persistent_encoder(encoder) or encoder, batch=encoder)

    def few_rows(self, stack: Transformer) -> FewRows | None:
        """The language model `stack` for a few rows in a single launch; None if the stack itself has to serve."""
        if not self._single_language:
            return None
        from voxcpm_grpc.models.voxcpm.few_rows import few_rows

        return few_rows(stack)

    @property
    def _single_language(self) -> bool:
        """True if a language model may be a single launch."""
        return self.fused and self.persistent and not isinstance(self.attention, ReferenceAttention)

    def maps(self, networks: PlainMaps) -> PlainMaps | FusedMaps:
        """The maps between the networks, with the weights of `networks`."""
        if not self.fused or not _is_hopper(self.device):
            return networks
        from voxcpm_grpc.models.voxcpm.fused_maps import fused_maps

        return fused_maps(networks) or networks

    def decoder(self, net: StreamingDecoder) -> Decoder:
        """The codec's decoder, with the weights of `net`."""
        return with_cpu_modules(net) if self.device.type == "cpu" else choose_decoder(net, self.codec_dtype)

    def encoder(self, net: StreamingNet) -> StreamingNet:
        """The codec's encoder, with the weights of `net`."""
        return with_cpu_modules(net) if self.device.type == "cpu" else net


FAST = (
    "voxcpm_grpc.attention.flash",
    "voxcpm_grpc.attention.paged_triton",
    "voxcpm_grpc.kernels.grouped_lora",
    "voxcpm_grpc.kernels.noise",
    "voxcpm_grpc.kernels.row_lora",
    "voxcpm_grpc.kernels.slot_state",
    "voxcpm_grpc.layers.fused",
    "voxcpm_grpc.models.voxcpm.compile_ahead",
    "voxcpm_grpc.models.voxcpm.few_rows",
    "voxcpm_grpc.models.voxcpm.fused_flow",
    "voxcpm_grpc.models.voxcpm.fused_maps",
    "voxcpm_grpc.models.voxcpm.fused_vae",
    "voxcpm_grpc.models.voxcpm.persistent",
    "cuda.bindings.driver",
    "cuda.bindings.nvrtc",
    "cuda.bindings.runtime",
)
"""The modules that fast implementations are in or import when they are used."""


def import_fast() -> None:
    """Import the fast implementations that are installed, which a model on a GPU would import, and hash their kernels.

    Uses no device.
    """
    for name in FAST:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError):
        from voxcpm_grpc.kernels.precompile import hash_kernels

        hash_kernels()


def choose_backend(options: LoadOptions, frames: int, channels: int) -> Backend:
    """The backend for these options, and for patches of `frames` latent frames with `channels` channels.

    Raises StartupError if the device does not support the options, or if the recorded noise has another shape.
    """
    device, dtype = options.device, options.dtype
    half_on_gpu = device.type == "cuda" and dtype.itemsize == 2
    fused = half_on_gpu if options.fused is None else options.fused
    quantize = _quantizes(options.quantization, device)
    fast_codec = device.type == "cuda" and dtype != torch.float32
    return Backend(
        device=device,
        dtype=dtype,
        attention=choose_attention(options.attention, device),
        ops=choose_ops(fused, device, packed=options.fused is None and dtype == torch.float32 and not quantize),
        quantize=quantize,
        noise=_choose_noise(options.recorded_noise, frames, channels, device),
        slots=_choose_slot_state(fused),
        fused=fused,
        persistent=options.persistent and device.type == "cuda",
        codec_dtype=options.codec_dtype or (torch.float16 if fast_codec else torch.float32),
    )


def choose_attention(name: str, device: torch.device) -> Attention:
    """The attention backend called `name`: reference, triton or flash.

    "auto" is the reference on a CPU and on a GPU without bfloat16; on other GPUs it is flash-attn if that is installed,
    else Triton. Raises StartupError.
    """
    if device.type == "cpu" and name not in ("auto", "reference"):
        raise StartupError(f"engine.attention {name} needs a GPU; on a CPU it may be auto or reference")
    if name == "auto" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        name = "flash" if find_spec("flash_attn") else "triton"
    try:
        match name:
            case "auto" | "reference":
                return ReferenceAttention()
            case "triton":
                from voxcpm_grpc.attention.paged_triton import TritonAttention

                return TritonAttention()
            case "flash":
                from voxcpm_grpc.attention.flash import FlashAttention

                return FlashAttention()
            case _:
                raise StartupError(f"engine.attention is {name!r}; it may be auto, reference, triton or flash")
    except ImportError as error:
        raise StartupError(
            f"engine.attention {name} cannot be loaded ({error}); install the missing package, or use auto"
        ) from error


def choose_ops(fused: bool, device: torch.device, *, packed: bool = False) -> Ops:
    """The operations of a transformer layer besides attention: fused kernels, or plain PyTorch.

    With `packed`, the products of plain operations on a CPU are oneDNN's, if it has them.
    """
    if not fused:
        return PackedOps() if packed and device.type == "cpu" and packing_serves() else TorchOps()
    from voxcpm_grpc.layers.fused import TritonOps

    # The tiles need the shared memory and the matrix unit of Hopper.
    return TritonOps(device, tiled=_is_hopper(device))


def choose_decoder(net: StreamingDecoder, dtype: torch.dtype) -> Decoder:
    """The decoder with the weights of `net` that computes in `dtype`: `net` itself in float32, else fused kernels.

    Kernels exist for the modules of the released decoders. Every other decoder is `net`, in float32.
    """
    if dtype == torch.float32 or not net.has_kernels:
        return net
    from voxcpm_grpc.models.voxcpm.fused_vae import FusedDecoder

    return FusedDecoder(net, dtype)


def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _quantizes(name: str, device: torch.device) -> bool:
    """True if weights are rounded to 8 bits. Raises StartupError."""
    if name not in ("none", "fp8"):
        raise StartupError(f"engine.quantization is {name!r}; it may be none or fp8")
    if name == "none" or device.type != "cuda":
        return name != "none"
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        raise StartupError(
            f"engine.quantization fp8 needs a Hopper GPU (compute capability 9.0) and {device} has {major}.{minor}; "
            "set it to none"
        )
    return True


def _choose_slot_state(fused: bool) -> ModuleType:
    if not fused:
        return reference
    from voxcpm_grpc.kernels import slot_state

    return slot_state


def _choose_noise(recorded: Tensor | None, frames: int, channels: int, device: torch.device) -> PatchNoise:
    if recorded is not None:
        if recorded.ndim != 3 or recorded.shape[1:] != (channels, frames) or not len(recorded):
            expected = f"[steps, {channels}, {frames}]"
            raise StartupError(f"the recorded noise has shape {list(recorded.shape)}, this model needs {expected}")
        return SlotNoise(RecordedNoise(recorded.to(device, torch.float32)), frames, channels)
    if device.type == "cuda" and find_spec("triton"):
        from voxcpm_grpc.kernels.noise import gaussian

        return partial(gaussian, frames=frames, channels=channels)
    return SlotNoise(GaussianNoise(frames * channels, device), frames, channels)
