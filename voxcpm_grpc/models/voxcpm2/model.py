"""VoxCPM2: text and speech in one sequence, one patch of latents a step.

Letters as in models/base.py, and c the hidden size of the language models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import PagedKV, PagedRows, Rotation
from voxcpm_grpc.models.base import (
    EmbedRows,
    Frame,
    KVLayout,
    PrefillRows,
    PromptRows,
    SlotState,
    SpeechModel,
    StepRows,
)
from voxcpm_grpc.models.voxcpm2.backend import Backend
from voxcpm_grpc.models.voxcpm2.codec import VoxCPM2Codec
from voxcpm_grpc.models.voxcpm2.config import VoxCPM2Config
from voxcpm_grpc.models.voxcpm2.flow import PatchFlow
from voxcpm_grpc.models.voxcpm2.networks import Networks
from voxcpm_grpc.models.voxcpm2.prompt import PromptLayout
from voxcpm_grpc.request import ModelInfo, Request

LARGEST = 65504.0  # of a latent: half precision, in which the codec may compute, has nothing above


@dataclass(frozen=True, slots=True)
class VoxCPM2State:
    """What a stream adds to its slot: the language models' last word, the patch before and what is to be said of it,
    the codec's past."""

    semantic: Tensor  # [n, c] of the base LM, quantized after audio
    acoustic: Tensor  # [n, c] of the residual LM
    condition: Tensor  # [n, P, D]; zeros when the generation starts from text
    stop: Tensor  # [n] bool: that patch wishes to be the last
    finite: Tensor  # [n] bool: it was finite and below LARGEST; a patch that was not is zeros now
    codec: Tensor  # [n, m] of the decoder's type


class VoxCPM2(SpeechModel):
    def __init__(
        self,
        config: VoxCPM2Config,
        info: ModelInfo,
        prompt_layout: PromptLayout,
        networks: Networks,
        flow: PatchFlow,
        codec: VoxCPM2Codec,
        backend: Backend,
    ) -> None:
        self.config, self.info, self.prompt_layout = config, info, prompt_layout
        self.networks, self.flow, self.backend = networks, flow, backend
        self.codec = self._codec = codec
        self.capturable = backend.attention.capturable
        self.layout = KVLayout(
            layers=config.base.layers + config.residual.layers,
            heads=config.base.kv_heads,
            head_dim=config.base.head_dim,
            dtype=backend.dtype,
        )
        rope = config.lm_config.rope(config.base.head_dim, info.max_model_len, dtype=config.table_dtype)
        self.rope = rope.to(backend.device)

    def prompt(self, request: Request) -> PromptRows:
        return self.prompt_layout(request)

    def allocate(self, slots: int) -> VoxCPM2State:
        hidden, patch = (
            (slots, self.config.lm_config.hidden_size),
            (slots, self.config.patch_size, self.config.feat_dim),
        )
        zeros = partial(torch.zeros, device=self.backend.device, dtype=self.backend.dtype)
        mark = partial(zeros, slots, dtype=torch.bool)
        return VoxCPM2State(zeros(hidden), zeros(hidden), zeros(patch), mark(), mark(), self._codec.allocate(slots))

    @torch.inference_mode()
    def open(self, slots: Tensor, state: SlotState) -> None:
        own: VoxCPM2State = state.model
        own.codec.index_fill_(0, slots, 0)
        own.condition.index_fill_(0, slots, 0)

    @torch.inference_mode()
    def prime(self, slot: int, state: SlotState, patches: int) -> None:
        own: VoxCPM2State = state.model
        recent = state.patches[slot] - patches + torch.arange(patches, device=self.backend.device)
        primer = state.history[slot].index_select(0, recent)  # [patches, P, D]
        self._codec.decode_one(primer, own.codec[slot : slot + 1])
        own.condition[slot] = primer[-1]

    @torch.inference_mode()
    def embed(self, rows: EmbedRows, state: SlotState) -> tuple[Tensor, Tensor]:
        """Inputs of the base LM, and the part of them that was heard (zeros at text): both [t, c]."""
        x = F.embedding(rows.token, self.networks.embedding)
        heard = torch.zeros_like(x)
        if rows.audio.shape[0]:
            patches = state.history[rows.audio_slot, rows.audio_patch].to(x.dtype)
            heard.index_copy_(0, rows.audio, self.networks.enc_to_lm(self.networks.encode_patch(patches)))
            x.index_copy_(0, rows.audio, heard[rows.audio])
        return x, heard

    @torch.inference_mode()
    def prefill(self, embedded: tuple[Tensor, ...], rows: PrefillRows, state: SlotState, kv: PagedKV) -> None:
        own: VoxCPM2State = state.model
        x, heard = embedded
        rotate = None if self.config.lm_config.no_rope else self.rope.at(rows.position)
        semantic = self._base(x, rotate, kv, rows.paged)
        semantic = torch.where(rows.is_audio[:, None], self.networks.quantize(semantic), semantic)
        acoustic = self._residual(semantic, heard, rows.position, kv, rows.paged)
        own.semantic.index_copy_(0, rows.last_slot, semantic[rows.last])
        own.acoustic.index_copy_(0, rows.last_slot, acoustic[rows.last])

    @torch.inference_mode()
    def generate_patch(self, slot: Tensor, timesteps: int, state: SlotState) -> None:
        own: VoxCPM2State = state.model
        semantic, acoustic = own.semantic[slot], own.acoustic[slot]  # [b, c]
        choice = self.networks.stop_logits(semantic)
        mu = torch.stack([self.networks.lm_to_dit(semantic), self.networks.res_to_dit(acoustic)], dim=1)  # [b, 2, e]
        noise = self._noise(slot, state)
        latents = self.flow(noise, mu, own.condition[slot], state.cfg[slot], timesteps)  # [b, P, D]
        # A broken stream ends here; its neighbours must not inherit what it would leave in the pages of the KV cache.
        finite = latents.abs().flatten(1).amax(1) < LARGEST
        patch = torch.where(finite[:, None, None], latents, 0).to(own.condition.dtype)
        for whole, part in (
            (own.condition, patch),
            (own.stop, choice[:, 1] > choice[:, 0]),
            (own.finite, finite),
        ):
            whole.index_copy_(0, slot, part)
        # Padding rows share the scratch slot, whose counters nobody resets.
        made = state.patches[slot].clamp(max=state.history.shape[1] - 1)
        state.history[slot, made] = patch.to(state.history.dtype)

    @torch.inference_mode()
    def decode_patch(self, slot: Tensor, state: SlotState) -> Frame:
        own: VoxCPM2State = state.model
        audio = self._codec.decoder.decode(own.condition[slot][:, None], own.codec, slot)  # [b, samples]
        return Frame(audio=audio, stop=own.stop[slot], finite=audio.isfinite().all(1) & own.finite[slot])

    @torch.inference_mode()
    def advance(self, rows: StepRows, state: SlotState, kv: PagedKV) -> None:
        own: VoxCPM2State = state.model
        slot = rows.slot
        position = state.position[slot]
        heard = self.networks.enc_to_lm(self.networks.encode_patch(own.condition[slot]))
        rotate = None if self.config.lm_config.no_rope else self.rope.at(position)
        semantic = self.networks.quantize(self._base(heard, rotate, kv, rows.paged))
        acoustic = self._residual(semantic, heard, position, kv, rows.paged)
        for whole, part in (
            (own.semantic, semantic),
            (own.acoustic, acoustic),
            (state.position, position + 1),
            (state.patches, state.patches[slot] + 1),
            (state.step, state.step[slot] + 1),
        ):
            whole.index_copy_(0, slot, part)

    def _noise(self, slot: Tensor, state: SlotState) -> Tensor:
        """Float32 [b, P, D]: where each stream starts from; the coordinates run channel by channel."""
        flat = self.backend.noise(state.seed[slot], state.turn[slot], state.segment[slot], state.step[slot])
        noise = flat.unflatten(1, (self.config.feat_dim, self.config.patch_size))
        return noise.transpose(1, 2) * state.temperature[slot][:, None, None]

    def _base(self, x: Tensor, rotate: Rotation | None, kv: PagedKV, rows: PagedRows) -> Tensor:
        layers = kv.layers(0, self.config.base.layers)
        return self.networks.base(x, partial(self.backend.attention.attend, kv=layers, rows=rows, rotate=rotate))

    def _residual(self, semantic: Tensor, heard: Tensor, position: Tensor, kv: PagedKV, rows: PagedRows) -> Tensor:
        rotate = None if self.config.residual_lm_no_rope else self.rope.at(position)
        layers = kv.layers(self.config.base.layers, self.layout.layers)
        x = self.networks.fusion(torch.cat([semantic, heard], dim=-1))
        return self.networks.residual(x, partial(self.backend.attention.attend, kv=layers, rows=rows, rotate=rotate))
