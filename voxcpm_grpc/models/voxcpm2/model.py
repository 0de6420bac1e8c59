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
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.noise import select_noise
from voxcpm_grpc.layers.ops import select_ops
from voxcpm_grpc.layers.transformer import Transformer
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.base import (
    EmbedRows,
    Frame,
    KVLayout,
    LoadOptions,
    PrefillRows,
    PromptRows,
    SlotState,
    SpeechModel,
    StepRows,
)
from voxcpm_grpc.models.voxcpm2.codec import VoxCPM2Codec
from voxcpm_grpc.models.voxcpm2.config import VoxCPM2Config
from voxcpm_grpc.models.voxcpm2.local import MU_TOKENS, TIME_TOKENS, LocDiT, LocEnc, PatchFlow
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


class ScalarQuantizer:
    """Rounds hidden states to a grid in a narrow space."""

    def __init__(self, hidden: int, latent: int, scale: int, weights: Weights) -> None:
        self.scale = scale
        self.in_proj = Linear.load(weights, "in_proj", latent, hidden)
        self.out_proj = Linear.load(weights, "out_proj", hidden, latent)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out_proj(torch.round(torch.tanh(self.in_proj(x)) * self.scale) / self.scale)


class VoxCPM2(SpeechModel):
    def __init__(
        self,
        config: VoxCPM2Config,
        options: LoadOptions,
        info: ModelInfo,
        layout: PromptLayout,
        codec: VoxCPM2Codec,
        weights: Weights,
    ) -> None:
        lm, c, dit = config.lm_config, config.lm_config.hidden_size, config.dit
        self.config, self.options, self.info, self.prompt_layout = config, options, info, layout
        self.codec = self._codec = codec
        self.layout = KVLayout(
            layers=config.base.layers + config.residual.layers,
            heads=config.base.kv_heads,
            head_dim=config.base.head_dim,
            dtype=options.dtype,
        )
        table, d = config.table_dtype, config.feat_dim
        rope = partial(lm.rope, dtype=table)
        self.rope = rope(config.base.head_dim, info.max_model_len).to(options.device)
        lengths = 1 + config.patch_size, MU_TOKENS + TIME_TOKENS + 2 * config.patch_size
        local = [
            rope(shape.head_dim, n).to(options.device) for shape, n in zip((config.encoder, dit), lengths, strict=True)
        ]

        self.embedding = weights.take("base_lm.embed_tokens.weight", lm.vocab_size, c) * lm.embedding_scale
        ops, attention = select_ops(options.fused, options.device, options.dtype), options.attention
        self.base = Transformer(config.base, weights.scope("base_lm"), ops)
        self.residual = Transformer(config.residual, weights.scope("residual_lm"), ops)
        self.encode_patch = LocEnc(config.encoder, d, local[0], attention, ops, weights.scope("feat_encoder"))
        estimator = LocDiT(dit, d, local[1], attention, ops, weights.scope("feat_decoder.estimator"))
        self.flow = PatchFlow(estimator, options.timesteps, table)
        self.quantize = ScalarQuantizer(
            c, config.scalar_quantization_latent_dim, config.scalar_quantization_scale, weights.scope("fsq_layer")
        )
        self.enc_to_lm = Linear.load(weights, "enc_to_lm_proj", c, config.encoder.hidden)
        self.lm_to_dit = Linear.load(weights, "lm_to_dit_proj", dit.hidden, c)
        self.res_to_dit = Linear.load(weights, "res_to_dit_proj", dit.hidden, c)
        self.fusion = Linear.load(weights, "fusion_concat_proj", c, 2 * c)
        self.stop_proj = Linear.load(weights, "stop_proj", c, c)
        self.stop_head = Linear.load(weights, "stop_head", 2, c, bias=False)
        self.gaussian = select_noise(config.patch_size * d, options.device)

    def prompt(self, request: Request) -> PromptRows:
        return self.prompt_layout(request)

    def allocate(self, slots: int) -> VoxCPM2State:
        hidden, patch = (
            (slots, self.config.lm_config.hidden_size),
            (slots, self.config.patch_size, self.config.feat_dim),
        )
        zeros = partial(torch.zeros, device=self.options.device, dtype=self.options.dtype)
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
        recent = state.patches[slot] - patches + torch.arange(patches, device=self.options.device)
        primer = state.history[slot].index_select(0, recent)  # [patches, P, D]
        self._codec.decode_one(primer, own.codec[slot : slot + 1])
        own.condition[slot] = primer[-1]

    @torch.inference_mode()
    def embed(self, rows: EmbedRows, state: SlotState) -> tuple[Tensor, Tensor]:
        """Inputs of the base LM, and the part of them that was heard (zeros at text): both [t, c]."""
        x = F.embedding(rows.token, self.embedding)
        heard = torch.zeros_like(x)
        if rows.audio.shape[0]:
            patches = state.history[rows.audio_slot, rows.audio_patch].to(x.dtype)
            heard.index_copy_(0, rows.audio, self.enc_to_lm(self.encode_patch(patches)))
            x.index_copy_(0, rows.audio, heard[rows.audio])
        return x, heard

    @torch.inference_mode()
    def prefill(self, embedded: tuple[Tensor, ...], rows: PrefillRows, state: SlotState, kv: PagedKV) -> None:
        own: VoxCPM2State = state.model
        x, heard = embedded
        rotate = None if self.config.lm_config.no_rope else self.rope.at(rows.position)
        semantic = self._base(x, rotate, kv, rows.paged)
        semantic = torch.where(rows.is_audio[:, None], self.quantize(semantic), semantic)
        acoustic = self._residual(semantic, heard, rows.position, kv, rows.paged)
        own.semantic.index_copy_(0, rows.last_slot, semantic[rows.last])
        own.acoustic.index_copy_(0, rows.last_slot, acoustic[rows.last])

    @torch.inference_mode()
    def compose(self, slot: Tensor, timesteps: int, state: SlotState) -> None:
        own: VoxCPM2State = state.model
        semantic, acoustic = own.semantic[slot], own.acoustic[slot]  # [b, c]
        choice = self.stop_logits(semantic)
        mu = torch.stack([self.lm_to_dit(semantic), self.res_to_dit(acoustic)], dim=1)  # [b, 2, e]
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
    def speak(self, slot: Tensor, state: SlotState) -> Frame:
        own: VoxCPM2State = state.model
        audio = self._codec.decoder.decode(own.condition[slot][:, None], own.codec, slot)  # [b, samples]
        return Frame(audio=audio, stop=own.stop[slot], finite=audio.isfinite().all(1) & own.finite[slot])

    @torch.inference_mode()
    def listen(self, rows: StepRows, state: SlotState, kv: PagedKV) -> None:
        own: VoxCPM2State = state.model
        slot = rows.slot
        position = state.position[slot]
        heard = self.enc_to_lm(self.encode_patch(own.condition[slot]))
        rotate = None if self.config.lm_config.no_rope else self.rope.at(position)
        semantic = self.quantize(self._base(heard, rotate, kv, rows.paged))
        acoustic = self._residual(semantic, heard, position, kv, rows.paged)
        for whole, part in (
            (own.semantic, semantic),
            (own.acoustic, acoustic),
            (state.position, position + 1),
            (state.patches, state.patches[slot] + 1),
            (state.step, state.step[slot] + 1),
        ):
            whole.index_copy_(0, slot, part)

    def stop_logits(self, semantic: Tensor) -> Tensor:
        """[b, 2] of hidden states [b, c]: to go on, and to end with the patch that they make."""
        return self.stop_head(F.silu(self.stop_proj(semantic)))

    def _noise(self, slot: Tensor, state: SlotState) -> Tensor:
        """Float32 [b, P, D]: where each stream starts from; the coordinates run channel by channel."""
        step, recorded = state.step[slot], self.options.recorded_noise
        if recorded is not None:
            noise = recorded[step.clamp(max=len(recorded) - 1)]  # [b, D, P]
        else:
            flat = self.gaussian(state.seed[slot], state.turn[slot], state.segment[slot], step)
            noise = flat.unflatten(1, (self.config.feat_dim, self.config.patch_size))
        return noise.transpose(1, 2) * state.temperature[slot][:, None, None]

    def _base(self, x: Tensor, rotate: Rotation | None, kv: PagedKV, rows: PagedRows) -> Tensor:
        layers = kv.layers(0, self.config.base.layers)
        return self.base(x, partial(self.options.attention.attend, kv=layers, rows=rows, rotate=rotate))

    def _residual(self, semantic: Tensor, heard: Tensor, position: Tensor, kv: PagedKV, rows: PagedRows) -> Tensor:
        rotate = None if self.config.residual_lm_no_rope else self.rope.at(position)
        layers = kv.layers(self.config.base.layers, self.layout.layers)
        x = self.fusion(torch.cat([semantic, heard], dim=-1))
        return self.residual(x, partial(self.options.attention.attend, kv=layers, rows=rows, rotate=rotate))
