"""Converts a request to positions: text tokens and audio patches in the order that the model was trained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.models.base import Plan, Rows, Span
from voxcpm_grpc.models.voxcpm.config.abilities import LATENTS
from voxcpm_grpc.models.voxcpm.text.tokenizer import AUDIO_START, REFERENCE_END, REFERENCE_START
from voxcpm_grpc.request import Request, VoicePart

EXTRA_STEPS = 10  # steps of the limit by text length in the released code, beyond those of the tokens
SPACES = re.compile(r"\s+")

NUMBERS = 2
"""The numbers of a stream: how many patches its prompt has, and cfg and temperature, float32 each, as another one."""
PACKED = Struct("=qff")
"""These numbers in memory."""


COLUMNS = 2
"""A row has its token, 0 for audio, and whether it is audio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The positions of a prompt, T of them with A audio positions, on the CPU."""

    tokens: np.ndarray  # [T] int64, 0 at audio positions
    audio: np.ndarray  # [T] bool
    patches: np.ndarray  # float32 [A, P, D], one for each audio position in order
    primer: int  # patches at the end that the generation continues and that prime the codec; 0: it starts from silence


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLayout:
    """Lays out requests for a model with patches of `patch_shape`, whose codec depends on `context` past patches."""

    tokenize: Callable[[str], list[int]]
    patch_shape: tuple[int, int]  # P and D
    context: int

    def __call__(self, request: Request) -> Plan:
        if not request.text.strip():
            raise InvalidRequest("the text is blank; send at least one word to speak", field="text")
        style = f"({request.style})" if request.style else ""
        target = SPACES.sub(" ", style + request.text)
        prompt, reference = request.conditioning.prompt, request.conditioning.reference
        none = patches = np.zeros((0, *self.patch_shape), np.float32)
        reference = none if reference is None else self._latents(reference, "reference")
        continued = none if prompt is None else self._latents(prompt, "prompt")
        if prompt is not None and not prompt.text.strip():
            raise InvalidRequest("the prompt has no text; send the transcript of its recording", field="prompt")

        head = [REFERENCE_START, *[0] * len(reference), REFERENCE_END] if len(reference) else []
        tokens = self.tokenize(target)
        sampling = request.sampling
        assert sampling.steps_per_token is not None and sampling.min_steps is not None
        usual = len(tokens) * sampling.steps_per_token
        limit = int(usual + EXTRA_STEPS)
        text = tokens if prompt is None else self.tokenize(prompt.text + target)
        tokens = [*head, *text, AUDIO_START, *[0] * len(continued)]
        audio = np.zeros(len(tokens), bool)
        if len(reference) or len(continued):
            audio[1 : 1 + len(reference)] = True
            audio[len(tokens) - len(continued) :] = True
            patches = np.concatenate([reference, continued])
        primer = min(len(continued), self.context)
        return Plan(
            positions=len(tokens),
            cacheable=len(tokens) - len(continued),
            max_steps=limit if sampling.max_steps is None else min(limit, sampling.max_steps),
            own=Prompt(tokens=np.array(tokens, np.int64), audio=audio, patches=patches, primer=primer),
            numbers=np.frombuffer(
                bytearray(PACKED.pack(len(patches), sampling.cfg_value, sampling.temperature)), np.int64
            ),
            least_steps=sampling.min_steps + 1,
            ran_on_steps=usual,
            variant=sampling.inference_timesteps,
            waits_for_audio=primer > 0,
            reads_slot=len(patches) > 0,
            primes=primer == self.context,
        )

    def _latents(self, part: VoicePart, name: str) -> np.ndarray:
        """Latents of the request's field `name` as float32 [patches, P, D]. Raises InvalidRequest."""
        p, d = self.patch_shape
        if part.content.keys() != {LATENTS}:
            raise InvalidRequest(
                f"the {name} consists of {', '.join(sorted(part.content))}, this model needs {LATENTS}; "
                "encode the recording with this model",
                field=name,
            )
        latents = part.content[LATENTS]
        if latents.ndim != 3 or latents.shape[1:] != (p, d):
            raise InvalidRequest(
                f"the {name} latents have shape {list(latents.shape)}, this model needs [patches, {p}, {d}]; "
                "encode the recording with this model",
                field=name,
            )
        if not len(latents):
            raise InvalidRequest(f"the {name} has no audio; send a recording that is not empty", field=name)
        if not np.isfinite(latents).all():
            raise InvalidRequest(
                f"the {name} latents are not all finite numbers; encode the recording again", field=name
            )
        return latents.astype(np.float32, copy=False)


def lay_rows(spans: Sequence[Span]) -> Rows:
    """The rows of positions of prompts, and of generated patches behind them."""
    columns = np.zeros((COLUMNS, sum(stop - start for _, start, stop in spans)), np.int64)
    encoded: list[int] = []
    entries: list[int] = []
    first = 0
    for plan, start, stop in spans:
        prompt: Prompt = plan.own
        known, made = min(stop, plan.positions), max(start, plan.positions)
        if start < known:
            columns[0, first : first + known - start] = prompt.tokens[start:known]
            if len(prompt.patches):
                of_prompt, before = np.flatnonzero(prompt.audio[start:known]), np.count_nonzero(prompt.audio[:start])
                encoded += (first + of_prompt).tolist()
                entries += range(before, before + len(of_prompt))
        if made < stop:
            encoded += range(first + made - start, first + stop - start)
            entries += (len(prompt.patches) + step for step in range(made - plan.positions, stop - plan.positions))
        first += stop - start
    rows = np.array(encoded, np.int64)
    columns[1, rows] = 1
    return Rows(columns, rows, np.array(entries, np.int64))


def page_contents(prompt: Prompt, positions: int, page_size: int) -> Iterator[bytes]:
    """The tokens, the kinds and the patches of each full page of the first positions."""
    tokens, audio, size = prompt.tokens.tobytes(), prompt.audio.tobytes(), prompt.tokens.itemsize
    first = 0
    for start in range(0, positions - page_size + 1, page_size):
        stop = start + page_size
        content = tokens[start * size : stop * size] + audio[start:stop]
        if patches := audio.count(1, start, stop):
            content += prompt.patches[first : first + patches].tobytes()
            first += patches
        yield content
