"""Lays requests out in positions: each sums a row of the text and a row of codes, as the model was trained with them.

A prompt is an optional instruction, three rows of the speaker of the text, tags for language and voice, and then the
text beside the codes that come before the speech. In the streaming layout both run side by side, and the steps of the
speech read the text that is left, a token each. In the other layout all of the text comes first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.models.base import Plan, Rows, Span
from voxcpm_grpc.models.qwen3_tts.codec.codec import CODES, SPEAKER
from voxcpm_grpc.models.qwen3_tts.config.abilities import LANGUAGES, limit_of
from voxcpm_grpc.models.qwen3_tts.config.config import Qwen3Config
from voxcpm_grpc.models.qwen3_tts.tokenizer import ArrivingText, TextTokenizer
from voxcpm_grpc.request import Request, Sampling, VoicePart

COLUMNS = 3
"""A row has the id of its text, the id of its codec row or one of the following, and the entry of its codes."""
# They stand for no codec row, the speaker vector of the slot, and the sum of all codes of an entry.
NO_CODE, VOICE, STEP = -1, -2, -3

INTEGERS = ("first", "read", "least", "top_k", "code_top_k")
FLOATS = ("temperature", "cut", "penalty", "code_temperature", "code_cut")
NUMBERS = len(INTEGERS) + (len(FLOATS) + 1) // 2
"""The numbers of a stream: INTEGERS, then FLOATS as two float32 in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request as positions, on the CPU. T positions, of which the last ones may be codes of the voice, n of them."""

    request: Request
    streams: bool  # the text runs beside the speech
    text: ArrivingText  # more of it may follow
    is_whole: bool
    head: np.ndarray  # int64 [COLUMNS, h]: the rows before the text
    transcript: tuple[int, ...]  # ids of the text of the voice
    columns: np.ndarray  # int64 [COLUMNS, T]; none while the text does not suffice
    trail: np.ndarray  # int32 [t], ids of the text that the steps read; then the pad
    codes: np.ndarray  # int16 [n, groups] of the voice
    speaker: np.ndarray | None  # float32 [hidden] of the voice
    digest: bytes  # the speaker has this digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Lays out requests for the model of a configuration."""

    config: Qwen3Config
    tokenizer: TextTokenizer
    role: tuple[int, ...]  # the ids stand before the text of the assistant
    user: tuple[int, ...]  # the ids stand before the text of the user
    user_end: tuple[int, ...]  # the ids stand behind the text of the user

    @classmethod
    def of(cls, config: Qwen3Config, tokenizer: TextTokenizer, faults: list[str]) -> Layout:
        """The layout with this tokenizer. Faults are appended."""
        marks, singles = config.text_marks, dict[str, int]()
        for piece in ("assistant", "user", "\n"):
            id = tokenizer.single(piece)
            if id is None:
                faults.append(f"the tokenizer has no token {piece!r}, which all prompts need")
            singles[piece] = id or 0
        if tokenizer.top >= config.text.text_vocab_size:
            size = config.text.text_vocab_size
            faults.append(f"vocab.json has the token {tokenizer.top}, and text_vocab_size is {size}")
        start, line = marks.im_start_token_id, singles["\n"]
        return cls(
            config=config,
            tokenizer=tokenizer,
            role=(start, singles["assistant"], line),
            user=(start, singles["user"], line),
            user_end=(marks.im_end_token_id, line),
        )

    def __call__(self, request: Request, *, streams: bool | None = None) -> Plan:
        """The plan of a request. streams: the layout; None: that of the model, streaming for a text that arrives.

        Raises InvalidRequest.
        """
        if streams is None:
            streams = self.config.kind == "base" or request.open or request.arrives
        codes, speaker, transcript = self._voice(request)
        digest = b"" if speaker is None else hashlib.sha256(speaker.tobytes()).digest()
        prompt = Prompt(
            request=replace(request, text=""),
            streams=streams,
            text=ArrivingText(),
            is_whole=False,
            head=self._head(request, speaker),
            transcript=transcript,
            columns=np.zeros((COLUMNS, 0), np.int64),
            trail=np.zeros(0, np.int32),
            codes=codes,
            speaker=speaker,
            digest=digest,
        )
        return self.extended(prompt, request.text, last=not request.open)

    def extended(self, prompt: Prompt, text: str, *, last: bool) -> Plan:
        """The plan of a prompt with more text."""
        arriving = self.tokenizer.extend(prompt.text, text, last=last)
        ids = arriving.ids
        if last and not ids:
            raise InvalidRequest("the text is blank; send at least one word to speak", field="text")
        marks, codec = self.config.text_marks, self.config.marks
        spoken = [*prompt.transcript, *ids, *((marks.tts_eos_token_id,) if last else ())]
        beside = [(codec.codec_bos_id, 0), *((STEP, entry) for entry in range(len(prompt.codes)))]
        enough = bool(ids) and (last or (prompt.streams and len(spoken) >= len(beside)))
        trail: list[int] = []
        rows = np.zeros((COLUMNS, 0), np.int64)
        if enough and prompt.streams:
            trail = spoken[len(beside) :]
            spoken = spoken[: len(beside)]
            spoken += [marks.tts_pad_token_id] * (len(beside) - len(spoken))
            rows = _rows((id, *code) for id, code in zip(spoken, beside, strict=True))
        elif enough:
            first = ((id, codec.codec_pad_id, 0) for id in spoken)
            rows = _rows([*first, *((marks.tts_pad_token_id, *code) for code in beside)])
        columns = np.concatenate([prompt.head, rows], axis=1) if enough else rows
        grown = replace(
            prompt,
            text=arriving,
            is_whole=last,
            columns=columns,
            trail=np.array(trail, np.int32),
        )
        return self._plan(grown, len(ids))

    def _plan(self, prompt: Prompt, tokens: int) -> Plan:
        sampling, size = prompt.request.sampling, prompt.columns.shape[1]
        assert sampling.steps_per_token is not None
        usual = limit_of(tokens, sampling.steps_per_token)
        stored = len(prompt.codes) > 0
        return Plan(
            positions=size,
            cacheable=size,
            max_steps=usual if sampling.max_steps is None else min(usual, sampling.max_steps),
            own=prompt,
            numbers=_numbers(prompt, sampling),
            ran_on_steps=usual,
            ready_steps=math.inf if prompt.is_whole else len(prompt.trail),
            waits_for_audio=stored,
            reads_slot=stored or prompt.speaker is not None,
        )

    def unread(self, prompt: Prompt, steps: int) -> str:
        """The text that so many steps have not read."""
        if not prompt.streams:
            return ""
        return self.tokenizer.unread(prompt.text, max(0, 1 + len(prompt.codes) - len(prompt.transcript) + steps))

    def _head(self, request: Request, speaker: np.ndarray | None) -> np.ndarray:
        """The rows of the instruction, of the role and of the tags."""
        marks, codec = self.config.text_marks, self.config.marks
        instruction = [*self.user, *self.tokenizer(request.style), *self.user_end] if request.style.strip() else []
        name = self._speaker_name(request)
        language = LANGUAGES[request.language] if request.language else ""
        if name and language in ("", "chinese"):
            language = self.config.dialects.get(name, language)
        tags = [codec.codec_nothink_id, codec.codec_think_bos_id, codec.codec_think_eos_id]
        if language:
            tags = [codec.codec_think_id, codec.codec_think_bos_id, self.config.languages[language]]
            tags.append(codec.codec_think_eos_id)
        if name:
            tags.append(self.config.speakers[name])
        elif speaker is not None:
            tags.append(VOICE)
        beside = [marks.tts_pad_token_id] * len(tags) + [marks.tts_bos_token_id]
        rows = [(id, NO_CODE, 0) for id in (*instruction, *self.role)]
        rows += ((id, code, 0) for id, code in zip(beside, [*tags, codec.codec_pad_id], strict=True))
        return _rows(rows)

    def _speaker_name(self, request: Request) -> str:
        """The built-in voice of a request; empty for models without them."""
        speakers = self.config.speakers
        if self.config.kind != "custom_voice":
            return ""
        return request.conditioning.speaker.lower() or min(speakers)

    def _voice(self, request: Request) -> tuple[np.ndarray, np.ndarray | None, tuple[int, ...]]:
        """Codes, speaker vector and token ids of the transcript of the voice."""
        prompt, reference = request.conditioning.prompt, request.conditioning.reference
        codes, speaker, transcript = np.zeros((0, self.config.groups), np.int16), None, ()
        if prompt is not None:
            codes = self._codes(prompt)
            transcript = tuple(self.tokenizer(prompt.text))
            if not transcript:
                raise InvalidRequest("the prompt has no text; send the transcript of its recording", field="prompt")
        for name, part in (("reference", reference), ("prompt", prompt)):
            if part is not None and speaker is None:
                speaker = self._vector(part, name)
        return codes, speaker, transcript

    def _codes(self, part: VoicePart) -> np.ndarray:
        codes, groups = part.content.get(CODES), self.config.groups
        if codes is None or codes.ndim != 2 or codes.shape[1] != groups or codes.dtype.kind not in "iu":
            raise _foreign("prompt", f"codes of shape [steps, {groups}]")
        if not len(codes):
            raise InvalidRequest("the prompt has no audio; send a recording that is not empty", field="prompt")
        if codes.min() < 0 or codes.max() >= self.config.codes:
            raise _foreign("prompt", f"codes from 0 to {self.config.codes - 1}")
        return codes.astype(np.int16, copy=False)

    def _vector(self, part: VoicePart, name: str) -> np.ndarray:
        vector, size = part.content.get(SPEAKER), self.config.talker.hidden_size
        if vector is None or vector.shape != (size,) or vector.dtype.kind != "f" or not np.isfinite(vector).all():
            raise _foreign(name, f"a speaker vector of {size} finite numbers")
        return vector.astype(np.float32, copy=False)


def _foreign(name: str, needed: str) -> InvalidRequest:
    return InvalidRequest(
        f"the {name} is of another model, this one needs {needed}; encode the recording with this model", field=name
    )


def _rows(rows: Iterable[tuple[int, int, int]]) -> np.ndarray:
    return np.array([*rows], np.int64).reshape(-1, COLUMNS).T.copy()


def _numbers(prompt: Prompt, sampling: Sampling) -> np.ndarray:
    assert sampling.min_steps is not None and sampling.top_k is not None and sampling.code_top_k is not None
    assert sampling.top_p is not None and sampling.code_top_p is not None
    numbers = np.zeros(NUMBERS, np.int64)
    numbers[: len(INTEGERS)] = (
        len(prompt.codes),
        len(prompt.trail),
        sampling.min_steps,
        sampling.top_k,
        sampling.code_top_k,
    )
    numbers[len(INTEGERS) :].view(np.float32)[: len(FLOATS)] = (
        sampling.temperature,
        1 - sampling.top_p,
        sampling.repetition_penalty,
        sampling.code_temperature,
        1 - sampling.code_top_p,
    )
    return numbers


def lay_rows(spans: Sequence[Span], pad: int) -> Rows:
    """The rows of positions of prompts, and of generated steps behind them. pad: the id of text that has ended."""
    parts: list[np.ndarray] = []
    for plan, start, stop in spans:
        prompt: Prompt = plan.own
        parts.append(prompt.columns[:, start:stop])
        if (made := max(start, plan.positions)) < stop:
            steps = np.arange(made - plan.positions, stop - plan.positions)
            columns = np.full((COLUMNS, len(steps)), STEP, np.int64)
            columns[0] = pad
            known = steps < len(prompt.trail)
            columns[0, known] = prompt.trail[steps[known]]
            columns[2] = len(prompt.codes) + steps
            parts.append(columns)
    none = np.zeros(0, np.int64)
    columns = np.concatenate(parts, axis=1) if parts else np.zeros((COLUMNS, 0), np.int64)
    return Rows(columns, none, none)


def page_content(prompt: Prompt, start: int, stop: int) -> bytes:
    """All that positions start..stop sum: ids, the voice, and codes."""
    columns = prompt.columns[:, start:stop]
    content = columns[:2].tobytes()
    if (columns[1] == VOICE).any():
        content += prompt.digest
    return content + prompt.codes[columns[2, columns[1] == STEP]].tobytes()
