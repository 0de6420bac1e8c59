"""The family seam: everything the engine knows of a model.

Letters: n slots, b sequences of a step, t rows of a prefill, a audio rows among them, P latent frames of a patch,
D latent channels, m patches a slot can hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.request import ModelInfo, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load a checkpoint.

    `dtype` is that of the arithmetic, whatever the files hold. `timesteps` are the counts that a request may ask for.
    None for `max_model_len` takes the checkpoint's own limit, for `name` that of its directory. `recorded_noise`
    float32 [steps, D, P], indexed by SlotState.step, replaces the generator: for comparisons with recorded runs.
    `fused` picks our kernels for the transformers, or plain operations; None: kernels on a GPU in half precision.
    `persistent` gives a stream alone the kernel that stays on the GPU for its whole diffusion, where GPU and model fit
    it and `fused` is on. `codec_dtype` None leaves the arithmetic of the codec's decoder to
    `decoder_dtype`; float16 needs a GPU.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str = "auto"
    fused: bool | None = None
    persistent: bool = True
    timesteps: tuple[int, ...] = (4, 6, 10)
    max_slots: int = 8
    max_model_len: int | None = None
    name: str | None = None
    recorded_noise: Tensor | None = None
    codec_dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The KV cache a model wants: K and V of [layers, pages, page_size, heads, head_dim]."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_position(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """A request laid out as positions, on the CPU.

    tokens [T] int64 (0 at audio positions); audio [T] bool; patches float32 [A, P, D], one per audio position in
    order. `cacheable` leading positions may be shared with other requests by content. `primer` trailing patches are
    continued by the generation and prime the codec (0: the generation starts from silence). `max_steps` is the cap.
    """

    tokens: np.ndarray
    audio: np.ndarray
    patches: np.ndarray
    cacheable: int
    primer: int
    max_steps: int

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class SlotState:
    """Everything a step needs of a stream, on the device, indexed by slot. The last slot is scratch, for padding."""

    seed: Tensor  # [n] int64
    turn: Tensor  # [n] int64
    segment: Tensor  # [n] int64
    step: Tensor  # [n] int64, patches made so far: the index of the next one
    cfg: Tensor  # [n] float32
    temperature: Tensor  # [n] float32
    position: Tensor  # [n] int64, filled KV positions: where the next patch goes
    patches: Tensor  # [n] int64, entries of `history` in use
    history: Tensor  # [n, m, P, D] model dtype: prompt patches, then generated ones
    block_table: Tensor  # [n, p] int32
    model: Any  # what the family adds: hidden states, condition, codec tails


@dataclass(frozen=True, slots=True)
class EmbedRows:
    """What stands at the rows of a prefill."""

    token: Tensor  # [t] int64, 0 at audio rows
    audio: Tensor  # [a] int64, the rows that are audio
    audio_slot: Tensor  # [a] int64
    audio_patch: Tensor  # [a] int64, index into the slot's history


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Where the rows of prompts (or of recomputed sequences) go in the KV cache."""

    position: Tensor  # [t] int64
    is_audio: Tensor  # [t] bool
    paged: PagedRows
    last: Tensor  # [f] int64, rows that end a prompt: their hidden states start the generation
    last_slot: Tensor  # [f] int64


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the patches just made for these slots go in the KV cache."""

    slot: Tensor  # [b] int64
    paged: PagedRows  # one row a sequence, at SlotState.position


@dataclass(frozen=True, slots=True)
class Frame:
    """What a step made, on the device."""

    audio: Tensor  # [b, samples_per_step] float32
    stop: Tensor  # [b] bool: the model's wish that this frame be the last, before the rule of min_steps
    finite: Tensor  # [b] bool: audio and latents are finite


class Codec(ABC):
    """Waveforms to latents and back, in bounded pieces so that an engine can step between them.

    The pieces are on the model's device, contiguous, and nothing waits for them. Once `capture` was called each is good
    until the next piece of whatever waveform is asked for, and all must be asked for on one stream.
    """

    @abstractmethod
    def encode(self, waveform: np.ndarray, *, pad_left: bool) -> Iterator[Tensor]:
        """Latents float32 [patches, P, D] of a mono waveform at the input rate, piece by piece in order.

        Zeros fill the first (`pad_left`, for prompts) or the last patch (for references).
        """

    @abstractmethod
    def decode(self, latents: np.ndarray) -> Iterator[Tensor]:
        """Audio float32 [samples] at the output rate of latents [patches, P, D], piece by piece in order."""

    @abstractmethod
    def capture(self) -> Codec:
        """The same codec with its pieces recorded as CUDA graphs, which may run beside the steps."""


class SpeechModel(ABC):
    """A family of models. Knows no scheduling; holds no state of a stream outside SlotState."""

    info: ModelInfo
    layout: KVLayout
    codec: Codec
    capturable: bool  # prefill and the parts of a step can be recorded as CUDA graphs: they never wait for the host

    @abstractmethod
    def prompt(self, request: Request) -> PromptRows:
        """Lay a request out as positions (CPU only). Raises InvalidRequest on blank text or unfit latents."""

    @abstractmethod
    def allocate(self, slots: int) -> Any:
        """The family's part of SlotState for `slots` slots."""

    @abstractmethod
    def open(self, slots: Tensor, state: SlotState) -> None:
        """Make slots [o] ready for new streams that start from silence."""

    @abstractmethod
    def prime(self, slot: int, state: SlotState, patches: int) -> None:
        """Let a slot just opened continue the last `patches` patches of its history."""

    @abstractmethod
    def embed(self, rows: EmbedRows, state: SlotState) -> tuple[Tensor, ...]:
        """What the language models read at prompt rows: tensors [t, ...], for `prefill`."""

    @abstractmethod
    def prefill(self, embedded: tuple[Tensor, ...], rows: PrefillRows, state: SlotState, kv: PagedKV) -> None:
        """Fill the KV cache; for rows that end a prompt, leave the hidden states in their slots."""

    @abstractmethod
    def generate_patch(self, slot: Tensor, timesteps: int, state: SlotState) -> None:
        """The first part of a step: make a patch for each slot [b] and append it to the history.

        Touches nothing of other slots and never synchronizes with the host; nor do the other parts.
        """

    @abstractmethod
    def decode_patch(self, slot: Tensor, state: SlotState) -> Frame:
        """Make the patches just composed audible. May run beside `advance`: neither reads what the other writes, and
        they share no scratch memory."""

    @abstractmethod
    def advance(self, rows: StepRows, state: SlotState, kv: PagedKV) -> None:
        """Feed the patches just composed to the language models; advance step, patches and position by one."""

    def step(self, rows: StepRows, timesteps: int, state: SlotState, kv: PagedKV) -> Frame:
        """One whole step."""
        self.generate_patch(rows.slot, timesteps, state)
        frame = self.decode_patch(rows.slot, state)
        self.advance(rows, state, kv)
        return frame
