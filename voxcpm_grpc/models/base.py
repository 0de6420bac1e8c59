"""The interface of a model family: everything that the engine knows about a model.

Dimensions: n slots, b sequences of a step, t rows of a prefill, m of them encoded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.request import ModelInfo, Request, Role

Part = Literal["generate", "advance"]
"""A part of a model that adapters change: `generate`, or `advance` with `prefill` and `encode`."""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Memory for LoRA adapters by request."""

    banks: int  # adapters on the device at the same time
    rank: int  # no adapter has a larger rank
    targets: frozenset[str]  # adapters may change these kinds of maps: attention, mlp, projections


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """A LoRA adapter that was read and fits the model, on the host."""

    updates: Any  # the family gives it its type
    parts: frozenset[Part]  # the adapter changes these parts


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options for loading a checkpoint.

    `fused` and `persistent` have an effect only where GPU and model support these kernels.
    """

    device: torch.device
    dtype: torch.dtype  # the computation has this dtype, whatever that of the files is
    quantization: str = "none"  # the weights of the networks' layers are plain (none) or fp8
    attention: str = "auto"  # auto, reference, triton and flash are the backends
    # The transformers run kernels or plain operations. None: kernels on a GPU in 16 bits, oneDNN's products on a CPU.
    fused: bool | None = None
    # With `fused`, the diffusion and the patch encoder of a single stream take one launch each, and so does each
    # language model of a few streams.
    persistent: bool = True
    timesteps: tuple[int, ...] = (4, 6, 10)  # a request may use these counts
    max_slots: int = 8
    max_model_len: int | None = None  # positions of a sequence; None: the limit of the checkpoint
    name: str | None = None  # None: the directory gives the name
    # The call waits for that of the checkpoint; None: the model computes it.
    fingerprint: Callable[[], str] | None = None
    recorded_noise: Tensor | None = None  # float32 [steps, D, P], by SlotState.step: replaces the noise generator
    merge_lora: Path | None = None  # the adapter in this directory is merged into the weights
    adapters: AdapterOptions | None = None  # requests may name adapters
    # The folder has parts that earlier starts have compiled for a CPU; None: none are used.
    compiled: Path | None = None
    # The codec's decoder has it; None: float16 on a GPU in 16 bits, else float32.
    codec_dtype: torch.dtype | None = None
    reference_silence: float = 0.5  # seconds of zeros behind a recording whose speech is continued


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The KV cache that a model needs: K and V of [layers, pages, page_size, heads, head_dim]."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_position(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request as the engine schedules it. All sizes are positions of the KV cache, one of which a step takes."""

    positions: int  # positions of the prompt; 0: the text so far does not suffice for one
    cacheable: int  # leading positions that requests with the same content may share
    max_steps: int  # steps for the text so far, at most
    own: Any  # the family gives it its type
    numbers: np.ndarray  # int64 [SpeechModel.numbers]: what the state of the family has of a stream from its start
    least_steps: int = 0  # the model can end the speech with a later step than the one of this number, from 1 on
    ran_on_steps: float = math.inf  # a generation of this many steps ran on
    ready_steps: float = math.inf  # steps that the text so far allows
    variant: Hashable = None  # SpeechModel.variants has it; streams of the same one generate together
    waits_for_audio: bool = False  # `open` uses memory that `decode` uses, too
    reads_slot: bool = False  # the prefill reads what `open` writes
    primes: bool = False  # `prime` follows the prefill, and uses that memory


class Opened(NamedTuple):
    """A new stream with its slot."""

    slot: int
    plan: Plan
    content: Tensor  # int64, `SpeechModel.content` on the device


class Span(NamedTuple):
    """Positions start..stop of a request. Those behind its prompt are steps that it has generated."""

    plan: Plan
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of spans in a prefill, one after another, on the CPU. All arrays are int64."""

    columns: np.ndarray  # [SpeechModel.columns, t]
    encoded: np.ndarray  # [m], the rows whose input `encode` computes
    entries: np.ndarray  # [m], the entry of the state of the slot that it reads for each of them


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of all streams on the device, indexed by slot. The last slot is scratch, for padding rows."""

    seed: Tensor  # [n] int64
    turn: Tensor  # [n] int64
    segment: Tensor  # [n] int64
    step: Tensor  # [n] int64, steps so far: the index of the next one
    adapter: Tensor  # [n] int64, the bank of the LoRA adapter, or negative
    position: Tensor  # [n] int64, filled KV positions: the position of the next step
    block_table: Tensor  # [n, p] int32
    model: Any  # tensors [n, ...] of any dtype, in a dataclass of the family


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The rows of a prefill and their destination in the KV cache: prompts, or sequences that are computed again."""

    columns: Tensor  # [SpeechModel.columns, t] int64, of `Rows`; 0 at padding rows
    position: Tensor  # [t] int64
    paged: PagedRows
    last: Tensor  # [f] int64, last rows of prompts: their hidden states start the generation
    last_slot: Tensor  # [f] int64
    slot: Tensor  # [t] int64, of the sequence of each row


@dataclass(frozen=True, slots=True)
class StepRows:
    """The destination of what these slots have just generated in the KV cache."""

    slot: Tensor  # [b] int64
    position: Tensor  # [b] int64, SlotState.position of these slots
    paged: PagedRows  # each sequence has one row, at its position


@dataclass(frozen=True, slots=True)
class Frame:
    """The result of a step, on the device, in one tensor for the host.

    Its float32 columns are the audio, then stop, finite and spoken as 0 or 1, and then the bytes of the step.
    """

    packed: Tensor  # [b, samples + 3 + SpeechModel.step_bytes / 4] float32
    samples: int  # samples of the audio

    @property
    def audio(self) -> Tensor:
        """[b, samples] float32."""
        return self.packed[:, : self.samples]

    @property
    def stop(self) -> Tensor:
        """[b] bool: the model ends the speech with this step; `Plan.least_steps` is not applied yet."""
        return self.packed[:, self.samples] != 0

    @property
    def finite(self) -> Tensor:
        """[b] bool: all that the step has made is finite."""
        return self.packed[:, self.samples + 1] != 0

    @property
    def spoken(self) -> Tensor:
        """[b] bool: the step has audio. Others count for no limit, and nothing is sent."""
        return self.packed[:, self.samples + 2] != 0


class Codec(ABC):
    """Converts waveforms to the content of voices and back, in bounded chunks so that an engine can step between them.

    Chunks are contiguous tensors on the model's device, and no call waits for the device.
    """

    @abstractmethod
    def encode(self, waveform: np.ndarray, role: Role) -> Iterator[tuple[str, Tensor]]:
        """The content of a voice, of a mono waveform at the input rate: chunks of named arrays, in order."""

    @abstractmethod
    def decode(self, content: Mapping[str, np.ndarray]) -> Iterator[Tensor]:
        """Chunks of the audio, float32 [samples] at the output rate, of the content of a voice, in order."""

    @abstractmethod
    def capture(self) -> Codec:
        """The same codec, recorded as CUDA graphs that may run beside the steps.

        A chunk of it is valid until the next chunk of any waveform is requested. All chunks must be requested on the
        same stream.
        """


class SpeechModel(ABC):
    """A model. It knows nothing about scheduling, and its streams have no state outside of SlotState.

    With `adapted`, a part of a step or of a prefill applies the adapter of each stream; otherwise no stream has one
    that changes this part.
    """

    info: ModelInfo
    variants: tuple[Hashable, ...]  # a plan has one of them; the last one takes the most time and memory
    layout: KVLayout
    codec: Codec
    banks: int  # adapters have so many, see `write_adapter`
    numbers: int  # numbers of the family, which the engine uploads for a new stream with its own
    columns: int  # columns of the family, for each row of a prefill
    step_bytes: int  # bytes that `resume` needs of each step, a multiple of 4; a Frame has them
    encodes: bool  # `encode` computes the inputs of some rows
    primed_at_once: int = 0  # streams that `prime` prepares in one call; 0: no plan of the model primes
    late_audio: bool = False  # `decode` of a step may still run while the next one is generated
    separate_beside: float = math.inf  # more streams than so many always share their step with new ones
    # Python compiles with these arguments what LoadOptions.compiled lacks; or empty.
    compile_command: tuple[str, ...] = ()
    capturable: bool  # `prefill` and the parts of a step never wait for the host: they can be recorded in CUDA graphs

    @abstractmethod
    def plan(self, request: Request) -> Plan:
        """The plan of a request, on the CPU. `ModelInfo.checked` has returned the request.

        Raises InvalidRequest for blank text or an unfit voice.
        """

    def append(self, plan: Plan, text: str, *, last: bool) -> Plan:
        """The plan with more text. That of a whole text does not depend on its parts. Raises InvalidRequest.

        Steps within `ready_steps` stay as they are.
        """
        raise NotImplementedError("a model that can stream texts implements this")

    @abstractmethod
    def rows(self, spans: Sequence[Span]) -> Rows:
        """The rows of these spans for a prefill."""

    @abstractmethod
    def page_contents(self, plan: Plan, page_size: int) -> Iterable[bytes]:
        """One entry for each full page of cacheable positions, in order.

        It is all that decides what the KV cache has in the page, besides the positions before.
        """

    @abstractmethod
    def allocate(self, slots: int, numbers: Tensor) -> Any:
        """The state of the family in SlotState, for `slots` slots: a dataclass of tensors [slots, ...] of any dtype.

        Some of them may be views of `numbers`, int64 [slots, SpeechModel.numbers], where the engine writes those of a
        stream that opens. The engine copies rows of the others to the host, and back to another slot.
        """

    def entries(self, plan: Plan, steps: int) -> Mapping[str, int]:
        """The entries of dimension 1 that a stream uses after so many steps, of tensors of the state that have some.

        Only these are copied to the host.
        """
        return {}

    def content(self, plan: Plan) -> np.ndarray:
        """The numbers that `open` reads on the device, int64 of any length. Those of all plans take one copy."""
        return np.zeros(0, np.int64)

    @abstractmethod
    def open(self, slots: Tensor, opened: Sequence[Opened], state: SlotState) -> None:
        """Reset slots [o] for new streams, whose numbers are written. The content is valid during this call."""

    def prime(self, slot: Tensor, state: SlotState) -> None:
        """Prepare slots [b] to continue the speech of their prompts, after `open` and the prefill.

        Uses memory that `decode` uses, too, and never waits for the host.
        """
        raise NotImplementedError("a model whose plans prime implements this")

    @abstractmethod
    def resume(self, slot: int, plan: Plan, steps: bytes, state: SlotState) -> None:
        """Let a slot that was just opened continue behind these steps, which another engine has made.

        A prefill of their rows follows, as after a preemption.
        """

    @abstractmethod
    def speech(self, slot: int, plan: Plan, steps: int, state: SlotState) -> Mapping[str, Tensor]:
        """Copies of the content of a voice that the first `steps` steps with audio have made, on the device."""

    @abstractmethod
    def warm_up(self, streams: int, steps: int) -> Sequence[Sequence[Request]]:
        """Requests of so many streams for each variant, the first one with a voice of `steps` steps."""

    @abstractmethod
    def read_adapter(self, directory: Path) -> AdapterWeights:
        """Read an adapter in the official format. Raises InvalidRequest, for an operator, with all that does not fit.

        The only method that another thread may call meanwhile.
        """

    @abstractmethod
    def write_adapter(self, bank: int, adapter: AdapterWeights) -> None:
        """Write an adapter to a bank, for all work that is launched later. No stream may use the bank's old one."""

    def feed(self, slot: int, plan: Plan, state: SlotState) -> None:
        """Write the text of a plan that has grown to the slot of its stream."""
        raise NotImplementedError("a model that can stream texts implements this")

    def unread(self, plan: Plan, steps: int) -> str:
        """The end of the text that a stream has not read in so many steps with audio."""
        return ""

    def encode(self, slot: Tensor, entry: Tensor, state: SlotState, *, adapted: bool = False) -> Tensor:
        """The inputs of rows, [m, ...], from entries of the state of slots. slot and entry int64 [m]."""
        raise NotImplementedError("a model that encodes rows implements this")

    @abstractmethod
    def prefill(
        self,
        rows: PrefillRows,
        encoded: Tensor | None,
        state: SlotState,
        kv: PagedKV,
        *,
        adapted: bool = False,
    ) -> None:
        """Fill the KV cache, and write the hidden states of last rows to their slots.

        encoded: the results of `encode` at the rows that are encoded, and anything at other rows, [t, ...]; None if no
        row is.

        A last row may also be what a stream has just generated. The engine then advances step and position,
        and does not call `advance`.
        """

    @abstractmethod
    def generate(
        self, slot: Tensor, variant: Any, state: SlotState, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        """The first part of a step: generate the next piece of speech for each slot [b], and keep it in the state.

        No part of a step accesses other slots or waits for the host. `decoded` follows the audio of the step before. A
        model with late audio waits for it before it overwrites what `decode` reads.
        """

    def stop_flags(self, state: SlotState) -> Tensor:
        """Bool [slots]: `Frame.stop` of the step of each slot that was generated last."""
        raise NotImplementedError("a model with late audio implements this")

    @abstractmethod
    def decode(self, slot: Tensor, state: SlotState) -> Frame:
        """Decode what was just generated to audio.

        May run at the same time as `advance`: neither reads what the other writes, and they share no scratch memory.
        """

    @abstractmethod
    def advance(
        self, rows: StepRows, state: SlotState, kv: PagedKV, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        """Run the language models on what was just generated, and advance step and position by one.

        `decoded` follows the audio that is decoded at the same time. Kernels that fill the device wait for it: the
        decoder's blocks would otherwise have to wait until such a kernel ends.
        """

    def step(self, rows: StepRows, variant: Any, state: SlotState, kv: PagedKV, *, adapted: bool = False) -> Frame:
        """All three parts of a step."""
        self.generate(rows.slot, variant, state, adapted=adapted)
        frame = self.decode(rows.slot, state)
        self.advance(rows, state, kv, adapted=adapted)
        return frame


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, copied without a wait for it. A tensor that is there already is returned as it is."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
