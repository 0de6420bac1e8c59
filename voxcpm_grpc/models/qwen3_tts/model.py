"""Qwen3-TTS: text and codes summed in one sequence, with the codes of one frame for each step.

Dimensions as in models/base.py, and h the width of the talker, v its vocabulary, q the codes of a step, m positions of
a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event

from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.models import base
from voxcpm_grpc.models.base import upload
from voxcpm_grpc.models.qwen3_tts.codec.codec import CODES, SPEAKER, Qwen3Codec
from voxcpm_grpc.models.qwen3_tts.codec.decoder import DecoderState
from voxcpm_grpc.models.qwen3_tts.config.config import Qwen3Config
from voxcpm_grpc.models.qwen3_tts.layouts import (
    COLUMNS,
    FLOATS,
    INTEGERS,
    NO_CODE,
    NUMBERS,
    STEP,
    VOICE,
    Layout,
    Prompt,
    lay_rows,
    page_content,
)
from voxcpm_grpc.models.qwen3_tts.predictor import Predictor
from voxcpm_grpc.models.qwen3_tts.sampling import FirstCodes, Options, Points, Sampler
from voxcpm_grpc.models.qwen3_tts.talker import CodeEmbedding, Talker, TextRows
from voxcpm_grpc.request import Conditioning, ModelInfo, Request, VoicePart

CPU_WARM_UP_STEPS = 25  # steps of the voice


@dataclass(frozen=True, slots=True)
class Qwen3State:
    """The state of streams that is specific to this family. The first ones are the numbers of `layouts`."""

    first: Tensor  # [n] int64, the codes of the voice
    read: Tensor  # [n] int64, ids of `text`
    least: Tensor  # [n] int64, the end is not drawn before this step
    top_k: Tensor  # [n] int64
    code_top_k: Tensor
    temperature: Tensor  # [n] float32
    cut: Tensor
    penalty: Tensor
    code_temperature: Tensor
    code_cut: Tensor
    codes: Tensor  # [n, m, q] int16: those of the voice, then generated ones
    text: Tensor  # [n, m] int32: ids that the steps read
    speaker: Tensor  # [n, h]: the vector of the voice
    hidden: Tensor  # [n, h]: the last hidden state
    seen: Tensor  # [n, v] bool: first codes that were drawn
    current: Tensor  # [n, q] int64: the codes of the last step
    stop: Tensor  # [n] bool: that step is the end
    finite: Tensor  # [n] bool: all that it was drawn from was finite
    codec_kv: Tensor  # the codec keeps this memory, see DecoderState
    codec_rings: Tensor
    codec_position: Tensor

    @property
    def codec(self) -> DecoderState:
        return DecoderState(self.codec_kv, self.codec_rings, self.codec_position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """The networks of a checkpoint, without the codec, and the sampler of its codes."""

    text: TextRows
    codes: CodeEmbedding
    inputs: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # `StepInputs`
    talker: Talker
    predictor: Predictor
    sampler: Sampler
    slots: ModuleType  # `kernels.reference` or `kernels.slot_state` stores the results of a step


class Qwen3TTS(base.SpeechModel):
    numbers, columns, encodes, banks = NUMBERS, COLUMNS, False, 0
    variants: tuple[Hashable, ...] = (None,)
    late_audio = True
    separate_beside = 24  # a step of 24 streams takes little more than one of few, measured on an H200

    def __init__(
        self,
        config: Qwen3Config,
        info: ModelInfo,
        layout: Layout,
        networks: Networks,
        codec: Qwen3Codec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        capturable: bool,
    ) -> None:
        self.config, self.info, self.prompt_layout, self.networks = config, info, layout, networks
        self.codec = self._codec = codec
        self.device, self.dtype, self.capturable = device, dtype, capturable
        self.step_bytes = 2 * config.groups
        talker = config.talker
        self.layout = base.KVLayout(
            layers=talker.num_hidden_layers, heads=talker.num_key_value_heads, head_dim=talker.head_dim, dtype=dtype
        )
        self._pad = config.text_marks.tts_pad_token_id
        self._end = config.marks.codec_eos_token_id

    # ---- on the CPU

    def plan(self, request: Request) -> base.Plan:
        return self.prompt_layout(request)

    def append(self, plan: base.Plan, text: str, *, last: bool) -> base.Plan:
        return self.prompt_layout.extended(plan.own, text, last=last)

    def rows(self, spans: Sequence[base.Span]) -> base.Rows:
        return lay_rows(spans, self._pad)

    def page_contents(self, plan: base.Plan, page_size: int) -> Iterator[bytes]:
        for start in range(0, plan.cacheable - page_size + 1, page_size):
            yield page_content(plan.own, start, start + page_size)

    def unread(self, plan: base.Plan, steps: int) -> str:
        return self.prompt_layout.unread(plan.own, steps)

    def entries(self, plan: base.Plan, steps: int) -> Mapping[str, int]:
        prompt: Prompt = plan.own
        return {"codes": len(prompt.codes) + steps, "text": min(self.info.max_model_len, len(prompt.trail))}

    def warm_up(self, streams: int, steps: int) -> list[list[Request]]:
        first = others = Conditioning()
        if self.info.can("prompt"):
            if self.device.type == "cpu":  # a CPU compiles nothing, and decodes slowly
                steps = min(steps, CPU_WARM_UP_STEPS)
            speaker = {SPEAKER: np.zeros(self.config.talker.hidden_size, np.float32)}
            codes = {CODES: np.zeros((steps, self.config.groups), np.int16)}
            first = Conditioning(prompt=VoicePart(content=codes | speaker, tracks=(CODES,), text="Zero."))
            others = Conditioning(reference=VoicePart(content=speaker, tracks=()))
        voices = [first] + [others] * (streams - 1)
        return [[Request(id=str(n), text="One, two.", conditioning=voice) for n, voice in enumerate(voices)]]

    def read_adapter(self, directory: Path) -> base.AdapterWeights:
        raise NotImplementedError("Qwen3-TTS takes no adapters, and has no banks for them")

    def write_adapter(self, bank: int, adapter: base.AdapterWeights) -> None:
        raise NotImplementedError("Qwen3-TTS takes no adapters, and has no banks for them")

    # ---- the state of slots

    def allocate(self, slots: int, numbers: Tensor) -> Qwen3State:
        hidden, groups, positions = self.config.talker.hidden_size, self.config.groups, self.info.max_model_len

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=self.device)

        integers = zip(INTEGERS, numbers.unbind(1), strict=False)
        floats = zip(FLOATS, numbers[:, len(INTEGERS) :].view(torch.float32).unbind(1), strict=False)
        codec = self._codec.decoder.allocate(slots)
        return Qwen3State(
            **dict(integers),
            **dict(floats),
            codes=zeros(positions, groups, dtype=torch.int16),
            text=zeros(positions, dtype=torch.int32),
            speaker=zeros(hidden, dtype=self.dtype),
            hidden=zeros(hidden, dtype=self.dtype),
            seen=zeros(self.config.talker.vocab_size, dtype=torch.bool),
            current=zeros(groups, dtype=torch.int64),
            stop=zeros(dtype=torch.bool),
            finite=zeros(dtype=torch.bool),
            codec_kv=codec.kv,
            codec_rings=codec.rings,
            codec_position=codec.position,
        )

    @torch.inference_mode()
    def open(self, slots: Tensor, opened: Sequence[base.Opened], state: base.SlotState) -> None:
        own: Qwen3State = state.model
        own.codec.reset(slots)
        own.seen.index_fill_(0, slots, False)
        for slot, plan, _ in opened:
            prompt: Prompt = plan.own
            self.feed(slot, plan, state)
            if prompt.speaker is not None:
                own.speaker[slot] = self._uploaded(prompt.speaker).to(self.dtype)
            if len(prompt.codes):
                codes = self._uploaded(prompt.codes)
                own.codes[slot, : len(codes)] = codes
                self._codec.decoder.prime(slot, codes, own.codec)

    @torch.inference_mode()
    def feed(self, slot: int, plan: base.Plan, state: base.SlotState) -> None:
        own: Qwen3State = state.model
        trail = plan.own.trail[: own.text.shape[1]]
        if len(trail):
            own.text[slot, : len(trail)] = self._uploaded(trail)
        own.read[slot : slot + 1].fill_(len(trail))  # `[slot] = ` would wait for the device

    @torch.inference_mode()
    def resume(self, slot: int, plan: base.Plan, steps: bytes, state: base.SlotState) -> None:
        own: Qwen3State = state.model
        prompt: Prompt = plan.own
        made = np.frombuffer(steps, np.int16).reshape(-1, self.config.groups)
        codes = self._uploaded(made)
        first = len(prompt.codes)
        own.codes[slot, first : first + len(made)] = codes
        own.seen[slot].index_fill_(0, codes[:, 0].long(), True)
        spoken = made[made[:, 0] < self.config.codes]
        self._codec.decoder.prime(slot, self._uploaded(np.concatenate([prompt.codes, spoken])), own.codec)

    @torch.inference_mode()
    def speech(self, slot: int, plan: base.Plan, steps: int, state: base.SlotState) -> Mapping[str, Tensor]:
        own: Qwen3State = state.model
        prompt: Prompt = plan.own
        start = len(prompt.codes)
        made = {CODES: own.codes[slot, start : start + steps].clone()}
        return made if prompt.speaker is None else made | {SPEAKER: own.speaker[slot].float().clone()}

    def _uploaded(self, array: np.ndarray) -> Tensor:
        return upload(torch.from_numpy(np.array(array)), self.device)

    # ---- a prefill and the parts of a step

    @torch.inference_mode()
    def prefill(
        self,
        rows: base.PrefillRows,
        encoded: Tensor | None,
        state: base.SlotState,
        kv: PagedKV,
        *,
        adapted: bool = False,
    ) -> None:
        assert encoded is None and not adapted
        own: Qwen3State = state.model
        hidden = self.networks.talker(self.inputs(rows, own), rows.position, kv, rows.paged)
        own.hidden.index_copy_(0, rows.last_slot, hidden[rows.last])

    def inputs(self, rows: base.PrefillRows, own: Qwen3State) -> Tensor:
        """The inputs [t, h] of rows."""
        text, code, entry = rows.columns
        kind = code[:, None]
        beside = self.networks.codes(code.clamp(min=0), 0)
        steps = self.networks.codes.summed(own.codes[rows.slot, entry])
        beside = torch.where(kind == STEP, steps, torch.where(kind == VOICE, own.speaker[rows.slot], beside))
        return self.networks.text(text) + torch.where(kind == NO_CODE, 0, beside)

    @torch.inference_mode()
    def generate(
        self, slot: Tensor, variant: Any, state: base.SlotState, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        own: Qwen3State = state.model
        hidden, sampler = own.hidden[slot], self.networks.sampler
        points = Points(state.seed, state.turn, state.segment, state.step)
        options = Options(own.temperature, own.top_k, own.cut)
        logits = self.networks.talker.head(hidden)
        first = sampler.first(logits, slot, points, options, FirstCodes(own.penalty, own.seen, own.least))
        options = Options(own.code_temperature, own.code_top_k, own.code_cut)
        codes = self.networks.predictor(hidden, first, sampler.others(slot, points, options))
        if decoded is not None:
            decoded.wait()
        self.networks.slots.store_codes(
            slot,
            codes,
            hidden,
            self._end,
            first=own.first,
            step=state.step,
            kept=own.codes,
            current=own.current,
            stop=own.stop,
            finite=own.finite,
        )

    def stop_flags(self, state: base.SlotState) -> Tensor:
        return state.model.stop

    @torch.inference_mode()
    def decode(self, slot: Tensor, state: base.SlotState) -> base.Frame:
        own: Qwen3State = state.model
        codes, stop = own.current[slot], own.stop[slot]
        audio = self._codec.decoder.step(codes, slot, own.codec, ~stop)
        finite = own.finite[slot] & audio.isfinite().all(-1)
        flags = torch.stack([stop, finite, ~stop], dim=1)
        content = codes.to(torch.int16).view(torch.float32)
        return base.Frame(torch.cat([audio, flags, content], dim=1), audio.shape[1])

    @torch.inference_mode()
    def advance(
        self,
        rows: base.StepRows,
        state: base.SlotState,
        kv: PagedKV,
        *,
        adapted: bool = False,
        decoded: Event | None = None,
    ) -> None:
        own, slot = state.model, rows.slot
        x = self.networks.inputs(slot, state.step, own.read, own.text, own.current)
        hidden = self.networks.talker(x, rows.position, kv, rows.paged)
        self.networks.slots.store_hidden(slot, hidden, own.hidden, state.position, state.step)
