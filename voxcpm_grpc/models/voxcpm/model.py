"""VoxCPM, of any generation: text and speech in one sequence, with one patch of latents for each step.

Dimensions as in models/base.py, and c the hidden size of the language models, m patches that a slot can hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event
from torch.nn import functional as F

from voxcpm_grpc.attention import PagedKV, PagedRows, Rotation
from voxcpm_grpc.layers.low_rank import AdapterBanks
from voxcpm_grpc.models.base import (
    AdapterWeights,
    Frame,
    KVLayout,
    Opened,
    Plan,
    PrefillRows,
    Rows,
    SlotState,
    Span,
    SpeechModel,
    StepRows,
    upload,
)
from voxcpm_grpc.models.voxcpm.backend import Backend
from voxcpm_grpc.models.voxcpm.codec.codec import VoxCPMCodec
from voxcpm_grpc.models.voxcpm.config.abilities import LATENTS
from voxcpm_grpc.models.voxcpm.config.config import VoxCPMConfig
from voxcpm_grpc.models.voxcpm.flow.flow import PatchFlow
from voxcpm_grpc.models.voxcpm.flow.local import PatchEncoder
from voxcpm_grpc.models.voxcpm.lora import read_adapter
from voxcpm_grpc.models.voxcpm.networks import Networks
from voxcpm_grpc.models.voxcpm.prompt import COLUMNS, NUMBERS, Prompt, PromptLayout, lay_rows, page_contents
from voxcpm_grpc.request import Conditioning, ModelInfo, Request, Sampling, VoicePart

PRIMED_AT_ONCE = {"cuda": 8, "cpu": 1}  # a CPU takes as long for each of several streams as for one
MAX_LATENT = 65504.0  # float16 ends here, in which the codec may compute


@dataclass(frozen=True, slots=True)
class VoxCPMState:
    """The state of streams that is specific to this family."""

    patches: Tensor  # [n] int64, those of the prompt
    cfg: Tensor  # [n] float32
    temperature: Tensor  # [n] float32
    history: Tensor  # [n, m, P, D] model dtype: prompt patches, then generated ones
    semantic: Tensor  # [n, c] last hidden state of the base LM, quantized after audio
    acoustic: Tensor  # [n, c] last hidden state of the residual LM
    condition: Tensor  # [n, P, D] the previous patch; zeros if the generation starts from text
    stop: Tensor  # [n] bool: the speech ends with that patch
    finite: Tensor  # [n] bool: that patch was finite and below MAX_LATENT; otherwise it was replaced by zeros
    codec: Tensor  # [n, m] memory of the codec's decoder, in its dtype


class VoxCPM(SpeechModel):
    numbers, columns, encodes = NUMBERS, COLUMNS, True

    def __init__(
        self,
        config: VoxCPMConfig,
        info: ModelInfo,
        prompt_layout: PromptLayout,
        networks: Networks,
        flow: PatchFlow,
        encode_patch: PatchEncoder,
        codec: VoxCPMCodec,
        backend: Backend,
        banks: AdapterBanks | None = None,
        compile_command: tuple[str, ...] = (),
        timesteps: tuple[int, ...] = (),
    ) -> None:
        self.config, self.info, self.prompt_layout = config, info, prompt_layout
        self.variants = self._timesteps = tuple(sorted(timesteps))
        self.networks, self.flow, self.encode_patch, self.backend = networks, flow, encode_patch, backend
        self.codec = self._codec = codec
        self.primed_at_once = PRIMED_AT_ONCE.get(backend.device.type, 0)
        self._banks = banks
        self.projections = backend.projections(networks)
        self._few_base = backend.few_rows(networks.base)
        self._few_residual = backend.few_rows(networks.residual)
        self.compile_command = compile_command
        self.banks = banks.count if banks else 0
        self.capturable = backend.attention.capturable
        # The state has the same dtype.
        self._patch = torch.zeros(config.patch_size, config.feat_dim, dtype=backend.dtype)
        self.step_bytes = -(-self._patch.nbytes // 4) * 4
        self.layout = KVLayout(
            layers=config.base.layers + config.residual.layers,
            heads=config.base.kv_heads,
            head_dim=config.base.head_dim,
            dtype=backend.dtype,
        )
        rope = config.lm_config.rope(config.base.head_dim, info.max_model_len, dtype=config.table_dtype)
        self.rope = rope.to(backend.device)

    def plan(self, request: Request) -> Plan:
        return self.prompt_layout(request)

    def rows(self, spans: Sequence[Span]) -> Rows:
        return lay_rows(spans)

    def page_contents(self, plan: Plan, page_size: int) -> Iterable[bytes]:
        return page_contents(plan.own, plan.cacheable, page_size)

    def allocate(self, slots: int, numbers: Tensor) -> VoxCPMState:
        cfg, temperature = numbers[:, 1:].view(torch.float32).unbind(1)
        hidden, patch = self.config.lm_config.hidden_size, (self.config.patch_size, self.config.feat_dim)
        zeros = partial(torch.zeros, device=self.backend.device, dtype=self.backend.dtype)
        flags = partial(zeros, slots, dtype=torch.bool)
        return VoxCPMState(
            patches=numbers[:, 0],
            cfg=cfg,
            temperature=temperature,
            history=zeros(slots, self.info.max_model_len, *patch),
            semantic=zeros(slots, hidden),
            acoustic=zeros(slots, hidden),
            condition=zeros(slots, *patch),
            stop=flags(),
            finite=flags(),
            codec=self._codec.allocate(slots),
        )

    def entries(self, plan: Plan, steps: int) -> Mapping[str, int]:
        return {"history": len(plan.own.patches) + steps}

    def content(self, plan: Plan) -> np.ndarray:
        """The patches of the prompt, float32 [A, P, D], with a zero behind an odd number of values."""
        values: np.ndarray = plan.own.patches.reshape(-1)
        if values.size % 2:
            values = np.append(values, np.float32(0))
        return values.view(np.int64)

    @torch.inference_mode()
    def open(self, slots: Tensor, opened: Sequence[Opened], state: SlotState) -> None:
        own: VoxCPMState = state.model
        own.codec.index_fill_(0, slots, 0)
        own.condition.index_fill_(0, slots, 0)
        for row, (slot, plan, content) in enumerate(opened):
            prompt: Prompt = plan.own
            if not (count := len(prompt.patches)):
                continue
            patches = content.view(torch.float32)[: prompt.patches.size].view(prompt.patches.shape)
            own.history[slot, :count].copy_(patches)
            if (primer := prompt.primer) and not plan.primes:
                self._prime(slots[row : row + 1], own.patches[slot], primer, own)

    @torch.inference_mode()
    def resume(self, slot: int, plan: Plan, steps: bytes, state: SlotState) -> None:
        own: VoxCPMState = state.model
        prompt: Prompt = plan.own
        known, content = len(prompt.patches), torch.frombuffer(bytearray(steps), dtype=torch.uint8)
        content = content.view(-1, self.step_bytes)[:, : self._patch.nbytes].contiguous().view(self._patch.dtype)
        patches = upload(content.view(-1, *self._patch.shape), self.backend.device)
        own.history[slot, known : known + len(patches)] = patches
        own.codec[slot].zero_()
        primer = min(prompt.primer + len(patches), self.prompt_layout.context)
        only = upload(torch.tensor([slot]), self.backend.device)
        self._prime(only, own.patches[slot] + len(patches), primer, own)

    @torch.inference_mode()
    def prime(self, slot: Tensor, state: SlotState) -> None:
        self._prime(slot, state.model.patches[slot], self.prompt_layout.context, state.model)

    def _prime(self, slot: Tensor, made: Tensor, patches: int, own: VoxCPMState) -> None:
        """Prepare slots [b] that were just opened to continue the last `patches` of the patches that they have.

        made: the number of these, int64 [b]
        """
        first = (made - patches).clamp(min=0)  # the scratch slot has none
        recent = first.view(-1, 1) + torch.arange(patches, device=slot.device)
        primer = own.history[slot[:, None], recent]  # [b, patches, P, D]
        self._codec.decoder.decode(primer, own.codec, slot)
        own.condition.index_copy_(0, slot, primer[:, -1])

    @torch.inference_mode()
    def speech(self, slot: int, plan: Plan, steps: int, state: SlotState) -> Mapping[str, Tensor]:
        own: VoxCPMState = state.model
        start = len(plan.own.patches)
        return {LATENTS: own.history[slot, start : start + steps].float().clone()}

    def warm_up(self, streams: int, steps: int) -> list[list[Request]]:
        part = VoicePart(
            content={LATENTS: np.zeros((steps, *self.prompt_layout.patch_shape), np.float32)}, tracks=(LATENTS,)
        )
        prompt = Conditioning(prompt=replace(part, text="Zero. "))
        first = Conditioning(reference=part) if self.info.can("reference") else prompt
        return [
            [
                Request(
                    id=str(number),
                    text="One, two.",
                    sampling=Sampling(inference_timesteps=timesteps),
                    conditioning=voice,
                )
                for number, voice in enumerate([first] + [Conditioning()] * (streams - 1))
            ]
            for timesteps in self._timesteps
        ]

    def read_adapter(self, directory: Path) -> AdapterWeights:
        assert self._banks
        return read_adapter(directory, self._banks)

    def write_adapter(self, bank: int, adapter: AdapterWeights) -> None:
        assert self._banks
        self._banks.write(bank, adapter.updates)

    @torch.inference_mode()
    def encode(self, slot: Tensor, entry: Tensor, state: SlotState, *, adapted: bool = False) -> Tensor:
        adapter = state.adapter[slot] if adapted else None
        own: VoxCPMState = state.model
        patches = own.history[slot, entry].to(self.networks.embedding.dtype)
        return self.networks.enc_to_lm(self.encode_patch(patches), adapter)

    @torch.inference_mode()
    def prefill(
        self,
        rows: PrefillRows,
        encoded: Tensor | None,
        state: SlotState,
        kv: PagedKV,
        *,
        adapted: bool = False,
    ) -> None:
        own: VoxCPMState = state.model
        token, is_audio = rows.columns[0], rows.columns[1].bool()[:, None]
        x = F.embedding(token, self.networks.embedding)  # [t, c]
        if encoded is None:
            audio = torch.zeros_like(x)
        else:
            audio, x = torch.where(is_audio, encoded, 0), torch.where(is_audio, encoded, x)
        adapter = state.adapter[rows.slot] if adapted else None
        rotate = self.rope.at(rows.position)
        semantic = self._base(x, rotate, kv, rows.paged, adapter)
        semantic = torch.where(is_audio, self.projections.quantize(semantic), semantic)
        acoustic = self._residual(semantic, audio, rotate, kv, rows.paged, adapter)
        own.semantic.index_copy_(0, rows.last_slot, semantic[rows.last])
        own.acoustic.index_copy_(0, rows.last_slot, acoustic[rows.last])

    @torch.inference_mode()
    def generate(
        self, slot: Tensor, variant: int, state: SlotState, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        own: VoxCPMState = state.model
        adapter = state.adapter[slot] if adapted else None
        points = state.seed, state.turn, state.segment, state.step
        noise = self.backend.noise(slot, *points, own.temperature)  # float32 [b, P, D]
        condition, cfg = self.backend.slots.read_patch(slot, own.condition, own.cfg)
        mu, stopping = self.projections.conditioning(slot, own.semantic, own.acoustic, adapter)  # [b, m, e] and [b, c]
        latents = self.flow(noise, mu, condition, cfg, variant, adapter)  # [b, P, D]
        # A stream with a broken patch ends. The patch becomes zeros, because broken values in the KV cache could reach
        # the next owner of its pages.
        kept = own.condition, own.stop, own.finite, own.history
        ends = stopping, self.networks.stop_head.weight
        self.backend.slots.store_patch(latents.contiguous(), *ends, slot, own.patches, state.step, *kept, MAX_LATENT)

    @torch.inference_mode()
    def decode(self, slot: Tensor, state: SlotState) -> Frame:
        own: VoxCPMState = state.model
        audio = self._codec.decoder.decode(own.condition[slot][:, None], own.codec, slot)  # [b, samples]
        packed = self.backend.slots.pack_frame(audio, slot, own.stop, own.finite, own.condition)
        return Frame(packed, audio.shape[1])

    @torch.inference_mode()
    def advance(
        self, rows: StepRows, state: SlotState, kv: PagedKV, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        own: VoxCPMState = state.model
        slot = rows.slot
        adapter = state.adapter[slot] if adapted else None
        position = rows.position
        patch, cos, sin = self.backend.slots.read_step(slot, position, own.condition, self.rope.cos, self.rope.sin)
        audio = self.networks.enc_to_lm(self.encode_patch(patch), adapter)
        if decoded is not None and self._few_base is not None and self._few_base.serves(rows.paged, adapter):
            decoded.wait()
        rotate = Rotation(cos, sin)
        semantic = self.projections.quantize(self._base(audio, rotate, kv, rows.paged, adapter))
        acoustic = self._residual(semantic, audio, rotate, kv, rows.paged, adapter)
        kept, counters = (own.semantic, own.acoustic), (state.position, state.step)
        self.backend.slots.store_hidden(slot, (semantic, acoustic), kept, counters)

    def _base(self, x: Tensor, rotation: Rotation, kv: PagedKV, rows: PagedRows, adapter: Tensor | None) -> Tensor:
        rotate = None if self.config.lm_config.no_rope else rotation
        layers = kv.layers(0, self.config.base.layers)
        if self._few_base is not None and self._few_base.serves(rows, adapter):
            return self._few_base(x, layers, rows, rotate)
        attend = partial(self.backend.attention.attend, kv=layers, rows=rows, rotate=rotate)
        return self.networks.base(x, attend, adapter=adapter)

    def _residual(
        self,
        semantic: Tensor,
        audio: Tensor,
        rotation: Rotation,
        kv: PagedKV,
        rows: PagedRows,
        adapter: Tensor | None,
    ) -> Tensor:
        rotate = rotation if self.config.residual_rotates else None
        layers = kv.layers(self.config.base.layers, self.layout.layers)
        x = self.networks.residual_input(semantic, audio, adapter)
        if self._few_residual is not None and self._few_residual.serves(rows, adapter):
            return self._few_residual(x, layers, rows, rotate)
        attend = partial(self.backend.attention.attend, kv=layers, rows=rows, rotate=rotate)
        return self.networks.residual(x, attend, adapter=adapter)
