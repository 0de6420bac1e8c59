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
from voxcpm_grpc.layers.choice import choose_attention, choose_ops, is_hopper
from voxcpm_grpc.layers.cpu_streaming import Net, with_cpu_modules
from voxcpm_grpc.layers.noise import GaussianNoise, PatchNoise, RecordedNoise, SlotNoise
from voxcpm_grpc.layers.ops import Ops
from voxcpm_grpc.layers.packed import PackedOps
from voxcpm_grpc.layers.streaming import StreamingNet
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm.codec.vae import Decoder, StreamingDecoder
from voxcpm_grpc.models.voxcpm.config.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import CpuFlow, Evaluation, cpu_network
from voxcpm_grpc.models.voxcpm.flow.flow import FlowSchedule, PatchFlow, PlainFlow
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT, LocEnc, PatchEncoder
from voxcpm_grpc.models.voxcpm.kernels import reference

if TYPE_CHECKING:
    from voxcpm_grpc.models.voxcpm.few_rows import FewRows
    from voxcpm_grpc.models.voxcpm.flow.projections import FusedProjections, PlainProjections


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The device, the dtypes and the implementations of a model, for its constructors."""

    device: torch.device
    dtype: torch.dtype
    attention: Attention
    ops: Ops
    quantize: bool  # the layers of the language models have weights of 8 bits
    noise: PatchNoise
    # `kernels.reference` or `kernels.slot_state` keeps the state of slots between the parts of a step.
    slots: ModuleType
    fused: bool  # the flow loop uses kernels
    persistent: bool  # with `fused`, the networks of few streams take one launch each, where kernels serve
    codec_dtype: torch.dtype  # the codec's decoder has this dtype

    def compile_ahead(self, config: VoxCPMConfig) -> None:
        """Start to compile kernels that a model with this configuration needs and no earlier start has compiled."""
        if self.fused and self.dtype == torch.bfloat16 and is_hopper(self.device):
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
            plain, network = PlainFlow(dit), cpu_network(dit)
            loop = CpuFlow(plain, network, evaluations) if network or evaluations else plain
            return PatchFlow(schedules, single=loop, batch=loop)
        from voxcpm_grpc.models.voxcpm.flow.fused_flow import FusedFlow
        from voxcpm_grpc.models.voxcpm.flow.persistent import persistent_flow

        fused = FusedFlow(dit)
        single = persistent_flow(dit) if self.persistent else None
        return PatchFlow(schedules, single=single or fused, batch=fused)

    def patch_encoder(self, encoder: LocEnc) -> PatchEncoder:
        """The encoder of patches, with the weights of `encoder`."""
        if not (self.fused and self.persistent):
            return PatchEncoder(single=encoder, batch=encoder)
        from voxcpm_grpc.models.voxcpm.flow.persistent import persistent_encoder

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

    def projections(self, networks: PlainProjections) -> PlainProjections | FusedProjections:
        """The projections between the networks, with the weights of `networks`."""
        if not self.fused or not is_hopper(self.device):
            return networks
        from voxcpm_grpc.models.voxcpm.flow.projections import fused_projections

        return fused_projections(networks) or networks

    def decoder(self, net: StreamingDecoder) -> Decoder:
        """The codec's decoder, with the weights of `net`."""
        return self._for_cpu(net) if self.device.type == "cpu" else choose_decoder(net, self.codec_dtype)

    def encoder(self, net: StreamingNet) -> StreamingNet:
        """The codec's encoder, with the weights of `net`."""
        return self._for_cpu(net) if self.device.type == "cpu" else net

    def _for_cpu(self, net: Net) -> Net:
        return with_cpu_modules(net, packed=isinstance(self.ops, PackedOps))


FAST = (
    "voxcpm_grpc.attention.flash",
    "voxcpm_grpc.attention.paged_triton",
    "voxcpm_grpc.kernels.lora.grouped_lora",
    "voxcpm_grpc.kernels.rows.noise",
    "voxcpm_grpc.kernels.lora.row_lora",
    "voxcpm_grpc.models.voxcpm.kernels.slot_state",
    "voxcpm_grpc.layers.fused",
    "voxcpm_grpc.models.voxcpm.compile_ahead",
    "voxcpm_grpc.models.voxcpm.few_rows",
    "voxcpm_grpc.models.voxcpm.flow.fused_flow",
    "voxcpm_grpc.models.voxcpm.flow.projections",
    "voxcpm_grpc.models.voxcpm.codec.fused_vae",
    "voxcpm_grpc.models.voxcpm.flow.persistent",
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
        from voxcpm_grpc.kernels.launch.precompile import hash_kernels

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


def choose_decoder(net: StreamingDecoder, dtype: torch.dtype) -> Decoder:
    """The decoder with the weights of `net` that computes in `dtype`: `net` itself in float32, else fused kernels.

    Kernels exist for the modules of the released decoders. Every other decoder is `net`, in float32.
    """
    if dtype == torch.float32 or not net.has_kernels:
        return net
    from voxcpm_grpc.models.voxcpm.codec.fused_vae import FusedDecoder

    return FusedDecoder(net, dtype)


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
    from voxcpm_grpc.models.voxcpm.kernels import slot_state

    return slot_state


def _choose_noise(recorded: Tensor | None, frames: int, channels: int, device: torch.device) -> PatchNoise:
    if recorded is not None:
        if recorded.ndim != 3 or recorded.shape[1:] != (channels, frames) or not len(recorded):
            expected = f"[steps, {channels}, {frames}]"
            raise StartupError(f"the recorded noise has shape {list(recorded.shape)}, this model needs {expected}")
        return SlotNoise(RecordedNoise(recorded.to(device, torch.float32)), frames, channels)
    if device.type == "cuda" and find_spec("triton"):
        from voxcpm_grpc.kernels.rows.noise import gaussian

        return partial(gaussian, frames=frames, channels=channels)
    return SlotNoise(GaussianNoise(frames * channels, device), frames, channels)
