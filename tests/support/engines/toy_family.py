"""A model family of exact integers: an autoregressive model of discrete codes, whose audio `expected` computes.

A stream is a speaker, the codes of a prompt, a word of the text, and then steps that each sum four codes and the id of
a further word. Its KV cache is bfloat16, which keeps the integers by bytes but would round a code. A step that draws
the end has no audio. Options: the temperature, and the timesteps as the rounds in which codes are drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.cuda import Event

from voxcpm_grpc.abilities import Abilities, Ends, Option
from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.checkpoint import fingerprint
from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.models import base
from voxcpm_grpc.models.footprint import Footprint
from voxcpm_grpc.request import Arrays, Conditioning, ModelInfo, Request, Role, Sampling, VoicePart

PRIME, CODES, CARRIES, END = 65521, 1021, 509, 13
SAMPLES, RATE, MAX_LEN, PIECE = 8, 8000, 512, 4
SPEAKER, TEXT, STEP = 1, 2, 3  # the kinds of rows
WEIGHTS = (1, 3, 5, 7)
EXTRA_STEPS = 4
ARRAYS, NONE = (("codes", np.int16), ("speaker", np.int32)), np.zeros(0)
NO = {name: f"{{model}} has no {name}; leave it out" for name in ("style", "language", "latents", "lora")}
OPTIONS = (
    Option(name="inference_timesteps", default=1, low=1, high=9, rule="it must be from 1 to 9", choices=(1, 2)),
    Option(name="temperature", default=1.0, low=0, high=2, rule="it must be from 0 to 2"),
)


def text_behind(text: str, words: int) -> str:
    """The text behind the first words."""
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    return text[ends[words - 1] :] if words <= len(ends) else ""


def word_id(word: str) -> int:
    return sum(ord(letter) * position for position, letter in enumerate(word, 1)) % 4093 + 1


@dataclass(frozen=True, slots=True)
class Spoken:
    """A request as the model reads it, with the words that are whole so far."""

    request: Request
    words: list[str]
    heard: list[int]  # the ids of the words of the prompt
    codes: np.ndarray  # int16 [P, 4] of the prompt
    speaker: int

    @classmethod
    def of(cls, request: Request) -> Spoken:
        voice, words = request.conditioning, request.text.split()
        if request.open and request.text[-1:].strip():
            words.pop()  # its end may follow
        codes, speaker = np.zeros((0, 4), np.int16), 0
        for name, part, arrays in (("prompt", voice.prompt, ARRAYS), ("reference", voice.reference, ARRAYS[1:])):
            if part and any(part.content.get(array, NONE).dtype != dtype for array, dtype in arrays):
                raise InvalidRequest(f"the {name} is of another model; encode the recording with this one", field=name)
            if part:
                speaker = int(part.content["speaker"][0])
        if voice.prompt:
            codes = voice.prompt.content["codes"]
        heard = voice.prompt.text.split() if voice.prompt else []
        return cls(request, words, [word_id(word) for word in heard], codes, speaker)

    def row(self, position: int) -> tuple[int, int, int]:
        """The kind of a row, the id that it reads, and the entry of its codes."""
        count = len(self.codes)
        if position == 0:
            return SPEAKER, self.speaker, 0
        if position <= count:
            return STEP, self.heard[position - 1] if position <= len(self.heard) else 0, position - 1
        if position == count + 1:
            return TEXT, word_id(self.words[0]), 0
        read = position - count - 1
        return STEP, word_id(self.words[read]) if read < len(self.words) else 0, position - 2


@dataclass(frozen=True, slots=True)
class ToyState:
    first: Tensor  # [n] int64, codes of the prompt; a number of the stream as those up to `words`
    strength: Tensor
    least: Tensor  # the end is not drawn before this step
    speaker: Tensor
    carry: Tensor
    words: Tensor
    codes: Tensor  # [n, m, 4] int16
    text: Tensor  # [n, m] int32
    current: Tensor  # [n, 4] int64
    h: Tensor  # [n] int64
    good: Tensor  # [n] bool: all positions of the cache are where they belong
    stop: Tensor  # [n] bool
    finite: Tensor  # [n] bool


class ToyCodec(base.Codec):
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def encode(self, waveform: np.ndarray, role: Role) -> Iterator[tuple[str, Tensor]]:
        rows = np.pad(waveform, (0, -len(waveform) % SAMPLES)).reshape(-1, SAMPLES)
        whole = torch.from_numpy(np.rint(rows * 1000).astype(np.int64))
        if role is Role.PROMPT:
            for piece in (whole[:, :4] % CODES).to(torch.int16).split(PIECE):
                yield "codes", piece.to(self.device)
        yield "speaker", (whole.sum() % CODES).int()[None].to(self.device)

    def decode(self, content: Arrays) -> Iterator[Tensor]:
        carry = 0
        for row in content["codes"].astype(int):
            carry = (7 * carry + int(row.sum())) % CARRIES
            yield torch.from_numpy(samples_of(carry)).to(self.device)

    def capture(self) -> ToyCodec:
        return self


def samples_of(carry: int) -> np.ndarray:
    return (carry / 512 + np.arange(SAMPLES) / 4096).astype(np.float32)


class Toy(base.SpeechModel):
    numbers, columns, encodes, capturable, step_bytes = 6, 3, False, True, 8
    variants: tuple[Hashable, ...] = (1, 2)
    banks = 0

    def __init__(self, info: ModelInfo, device: torch.device) -> None:
        self.info, self.device, self.codec = info, device, ToyCodec(device)
        self.layout = base.KVLayout(layers=1, heads=1, head_dim=4, dtype=torch.bfloat16)

    def plan(self, request: Request) -> base.Plan:
        own, sampling = Spoken.of(request), request.sampling
        if not (own.words or request.open):
            raise InvalidRequest("the text is blank; send at least one word to speak", field="text")
        assert sampling.steps_per_token and sampling.temperature is not None and sampling.min_steps is not None
        usual = len(own.words) * sampling.steps_per_token
        limit = int(usual + EXTRA_STEPS)
        count, carry = len(own.codes), 0
        for row in own.codes.astype(int):
            carry = (7 * carry + int(row.sum())) % CARRIES
        strength = round(1000 * sampling.temperature)
        return base.Plan(
            positions=count + 2 if own.words else 0,
            cacheable=count + 2 if own.words else 0,
            max_steps=limit if sampling.max_steps is None else min(limit, sampling.max_steps),
            own=own,
            numbers=np.array([count, strength, sampling.min_steps, own.speaker, carry, len(own.words)], np.int64),
            ran_on_steps=usual,
            ready_steps=len(own.words) - 1 if request.open else math.inf,
            variant=sampling.inference_timesteps,
            waits_for_audio=count > 0,
            reads_slot=count > 0,
        )

    def append(self, plan: base.Plan, text: str, *, last: bool) -> base.Plan:
        request: Request = plan.own.request
        return self.plan(replace(request, text=request.text + text, open=not last))

    def rows(self, spans: Sequence[base.Span]) -> base.Rows:
        rows = [plan.own.row(position) for plan, start, stop in spans for position in range(start, stop)]
        none = np.zeros(0, np.int64)
        return base.Rows(np.array(rows, np.int64).reshape(-1, 3).T.copy(), none, none)

    def page_contents(self, plan: base.Plan, page_size: int) -> Iterator[bytes]:
        for start in range(0, plan.cacheable - page_size + 1, page_size):
            stop = start + page_size
            rows = [plan.own.row(position) for position in range(start, stop)]
            yield repr(rows).encode() + plan.own.codes[max(0, start - 1) : max(0, stop - 1)].tobytes()

    def allocate(self, slots: int, numbers: Tensor) -> ToyState:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=self.device)

        flags = [zeros(dtype=torch.bool) for _ in range(3)]
        codes, text = zeros(MAX_LEN, 4, dtype=torch.int16), zeros(MAX_LEN, dtype=torch.int32)
        columns = (*numbers.unbind(1), codes, text, zeros(4), zeros(), *flags)
        return ToyState(**dict(zip((field.name for field in fields(ToyState)), columns, strict=True)))

    def entries(self, plan: base.Plan, steps: int) -> Mapping[str, int]:
        return {"codes": len(plan.own.codes) + steps, "text": min(MAX_LEN, len(plan.own.words))}

    @torch.inference_mode()
    def open(self, slots: Tensor, opened: Sequence[base.Opened], state: base.SlotState) -> None:
        for slot, plan, _ in opened:
            codes = torch.from_numpy(plan.own.codes.copy()).to(self.device)
            state.model.codes[slot, : len(codes)] = codes
            self.feed(slot, plan, state)

    @torch.inference_mode()
    def resume(self, slot: int, plan: base.Plan, steps: bytes, state: base.SlotState) -> None:
        first, own = len(plan.own.codes), state.model
        codes = np.frombuffer(steps, np.int16).reshape(-1, 4)
        own.codes[slot, first : first + len(codes)] = torch.from_numpy(codes.copy()).to(self.device)
        for row in codes.astype(int):
            own.carry[slot] = (7 * own.carry[slot] + int(row.sum())) % CARRIES

    @torch.inference_mode()
    def feed(self, slot: int, plan: base.Plan, state: base.SlotState) -> None:
        ids = torch.tensor([word_id(word) for word in plan.own.words[:MAX_LEN]], dtype=torch.int32)
        state.model.text[slot, : len(ids)] = ids.to(self.device)
        state.model.words[slot] = len(ids)

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
        own: ToyState = state.model
        kind, read, entry = rows.columns
        value = torch.where(kind == STEP, _summed(own.codes[rows.slot, entry].long(), read), read)
        value = torch.where(kind == TEXT, 31 * read + 7, value) % PRIME
        _write(value, rows.position, rows.paged.write, kv)
        sequence = torch.searchsorted(rows.paged.cu_seqlens.long(), rows.last, right=True) - 1
        sequence = sequence.clamp(max=len(rows.paged.context) - 1)
        h, good = _read(rows.paged.block_table[sequence], rows.position[rows.last] + 1, kv)
        own.h.index_copy_(0, rows.last_slot, h)
        own.good.index_copy_(0, rows.last_slot, good)

    @torch.inference_mode()
    def generate(
        self, slot: Tensor, variant: Any, state: base.SlotState, *, adapted: bool = False, decoded: Event | None = None
    ) -> None:
        own: ToyState = state.model
        step, x = state.step[slot], own.h[slot]
        drawn = drawn_by(state.seed[slot] % PRIME, state.turn[slot], state.segment[slot], step)
        noise, codes = own.strength[slot] * drawn // 1000, []
        for _ in range(variant):
            code = (x + noise) % CODES
            codes = [torch.where((step < own.least[slot]) & (code % END == 0), code + 1, code)]
            for _ in range(3):
                codes.append((1 + 31 * codes[-1] + x) % CODES)
            x = x + codes[-1]
        made = torch.stack(codes, 1)
        entry = (own.first[slot] + step).clamp(max=MAX_LEN - 1)
        own.codes.view(-1, 4).index_copy_(0, slot * MAX_LEN + entry, made.to(torch.int16))
        if decoded is not None:
            decoded.wait()
        own.current.index_copy_(0, slot, made)
        own.stop.index_copy_(0, slot, codes[0] % END == 0)
        own.finite.index_copy_(0, slot, own.good[slot])

    def stop_flags(self, state: base.SlotState) -> Tensor:
        return state.model.stop

    @torch.inference_mode()
    def decode(self, slot: Tensor, state: base.SlotState) -> base.Frame:
        own: ToyState = state.model
        before, stop = own.carry[slot], own.stop[slot]
        carry = torch.where(stop, before, (7 * before + own.current[slot].sum(1)) % CARRIES)
        own.carry.index_copy_(0, slot, carry)
        audio = carry[:, None] / 512 + torch.arange(SAMPLES, device=carry.device) / 4096
        flags = torch.stack([stop, own.finite[slot], ~stop], 1)
        codes = own.current[slot].to(torch.int16).view(torch.float32)
        return base.Frame(torch.cat([audio, flags, codes], 1).float(), SAMPLES)

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
        read = state.step[slot] + 1
        word = torch.where(read < own.words[slot], own.text[slot, read.clamp(max=MAX_LEN - 1)].long(), 0)
        _write(_summed(own.current[slot], word) % PRIME, rows.position, rows.paged.write, kv)
        h, good = _read(rows.paged.block_table, rows.paged.context.long(), kv)
        own.h.index_copy_(0, slot, h)
        own.good.index_copy_(0, slot, good)
        for counter in (state.position, state.step):
            counter.index_copy_(0, slot, counter[slot] + (slot != len(own.h) - 1))

    @torch.inference_mode()
    def speech(self, slot: int, plan: base.Plan, steps: int, state: base.SlotState) -> Mapping[str, Tensor]:
        first, own = len(plan.own.codes), state.model
        return {"codes": own.codes[slot, first : first + steps].clone(), "speaker": own.speaker[slot : slot + 1].int()}

    def unread(self, plan: base.Plan, steps: int) -> str:
        return text_behind(plan.own.request.text, steps + 1)

    def warm_up(self, streams: int, steps: int) -> list[list[Request]]:
        content = {"codes": np.ones((min(steps, 9), 4), np.int16), "speaker": np.ones(1, np.int32)}
        first = Conditioning(prompt=VoicePart(content=content, tracks=("codes",), text="One"))
        voices = [first] + [Conditioning()] * (streams - 1)
        return [
            [
                Request(id=str(i), text="One two", sampling=Sampling(inference_timesteps=rounds), conditioning=voice)
                for i, voice in enumerate(voices)
            ]
            for rounds in (1, 2)
        ]

    def read_adapter(self, directory: Path) -> base.AdapterWeights:
        raise NotImplementedError

    def write_adapter(self, bank: int, adapter: base.AdapterWeights) -> None:
        raise NotImplementedError


def drawn_by(seed: Any, turn: Any, segment: Any, step: Any) -> Any:
    return (seed * 40503 + turn * 12345 + segment * 7919 + step * 30011 + 977) % CODES


def _summed(codes: Tensor, word: Tensor) -> Tensor:
    return sum(weight * code for weight, code in zip(WEIGHTS, codes.unbind(-1), strict=True)) + 11 * word + 1


def _write(value: Tensor, position: Tensor, write: Tensor, kv: PagedKV) -> None:
    row = torch.stack([value & 255, value >> 8, position & 255, position >> 8], -1)[:, None]
    for cache in (kv.k, kv.v):
        cache[0].flatten(0, 1).index_copy_(0, write, row.to(cache.dtype))


def _read(table: Tensor, context: Tensor, kv: PagedKV) -> tuple[Tensor, Tensor]:
    """The sum over all positions, [b], and whether each is where it belongs."""
    page = kv.page_size
    position = torch.arange(table.shape[1] * page, device=table.device)
    where = table[:, position // page].long() * page + position % page
    row, same = (cache[0].flatten(0, 1)[where][:, :, 0].nan_to_num().long() for cache in (kv.k, kv.v))
    seen = position < context[:, None]
    sums = ((position + 1) * (row[..., 0] + 256 * row[..., 1]) * seen).sum(1) % PRIME
    return sums, (~seen | ((row[..., 2] + 256 * row[..., 3] == position) & (row == same).all(-1))).all(1)


def load_toy(directory: Path, config: Mapping[str, Any], options: base.LoadOptions) -> Toy:
    known = options.fingerprint() if options.fingerprint else fingerprint(directory)
    info = ModelInfo(
        name=options.name or directory.name,
        architecture="toy",
        fingerprint=known,
        input_sample_rate=RATE,
        output_sample_rate=RATE,
        samples_per_step=SAMPLES,
        input_samples_per_step=SAMPLES,
        max_model_len=min(config["positions"], options.max_model_len or MAX_LEN),
        max_slots=options.max_slots,
        options=OPTIONS,
        ends=Ends(min_steps=0, steps_per_token=4.0),
        abilities=Abilities(**NO),
        tracks=("codes",),
        device=str(options.device),
        dtype="int64",
        codec_dtype="int64",
    )
    return Toy(info, options.device)


def toy_footprint(config: Mapping[str, Any], options: base.LoadOptions) -> Footprint:
    layout = base.KVLayout(layers=1, heads=1, head_dim=4, dtype=torch.bfloat16)
    sizes = {"weights": 0, "adapters": 0, "codec": 0, "single_stream": 0, "slot": 13 * MAX_LEN, "working": 1 << 20}
    return Footprint(**sizes, layout=layout, positions=config["positions"])


@dataclass(frozen=True)
class Expected:
    """The result of a request: the audio, the codes of its steps, whether it ended by itself, and the text not read."""

    audio: np.ndarray
    codes: np.ndarray
    stopped: bool
    unread: str


def expected(request: Request, completed: Callable[[Sampling], Sampling]) -> Expected:
    """The result of a request in plain Python. completed: `ModelInfo.completed`."""
    own, sampling = Spoken.of(replace(request, open=False)), completed(request.sampling)
    assert sampling.steps_per_token and sampling.temperature is not None and sampling.min_steps is not None
    limit = int(len(own.words) * sampling.steps_per_token + EXTRA_STEPS)
    most = limit if sampling.max_steps is None else min(limit, sampling.max_steps)
    rows, carry, made, audio = list[int](), 0, list[list[int]](), list[np.ndarray]()
    for position in range(len(own.codes) + 2):
        kind, read, entry = own.row(position)
        given = sum(w * int(code) for w, code in zip(WEIGHTS, own.codes[entry], strict=True)) if kind == STEP else 0
        rows.append({SPEAKER: read, TEXT: 31 * read + 7, STEP: given + 11 * read + 1}[kind] % PRIME)
    for row in own.codes.astype(int):
        carry = (7 * carry + int(row.sum())) % CARRIES
    while len(made) < most:
        x = sum((position + 1) * value for position, value in enumerate(rows)) % PRIME
        drawn = drawn_by(sampling.seed % PRIME, request.turn, request.segment, len(made))
        codes = list[int]()
        for _ in range(sampling.inference_timesteps or 0):
            code = (x + round(1000 * sampling.temperature) * drawn // 1000) % CODES
            codes = [code + 1 if len(made) < sampling.min_steps and code % END == 0 else code]
            for _ in range(3):
                codes.append((1 + 31 * codes[-1] + x) % CODES)
            x += codes[-1]
        if codes[0] % END == 0:
            break
        carry = (7 * carry + sum(codes)) % CARRIES
        made.append(codes)
        audio.append(samples_of(carry))
        read = word_id(own.words[len(made)]) if len(made) < len(own.words) else 0
        rows.append((sum(w * code for w, code in zip(WEIGHTS, codes, strict=True)) + 11 * read + 1) % PRIME)
    unread = text_behind(request.text, len(made) + 1)
    samples = np.concatenate(audio) if audio else np.zeros(0, np.float32)
    return Expected(samples, np.array(made, np.int16).reshape(-1, 4), len(made) < most, unread)
