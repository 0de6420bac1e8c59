"""A loaded model for code with asyncio."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

import numpy as np

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.audio.uploads import check_voice, decode
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.errors import InvalidRequest, StartupError
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import LocalEngines
from voxcpm_grpc.request import Conditioning, ModelInfo, Priority, Request, Role, Sampling, VoicePart
from voxcpm_grpc.settings.deprecated import deprecations
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import from_values

log = logging.getLogger(__name__)

Device = int | str
PriorityName = Literal["interactive", "batch"]
MAX_RECORDING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A recording in memory."""

    samples: np.ndarray
    """float32 [n], mono, from -1 to 1."""

    sample_rate: int
    """Samples per second."""


Recording = str | Path | bytes | Samples


class AsyncModel:
    """A model on one or several devices. Each device has an engine in a process of its own.

    Use it on one event loop, and close it: `async with await voxcpm_grpc.load_async(...) as model`. Any number of calls
    can run at the same time; engines batch them. Errors are those of `voxcpm_grpc.errors`. If an engine dies, calls
    without audio so far move to another engine and keep their seed, the others raise Aborted, and the engine restarts.
    """

    def __init__(self, pool: EnginePool, limits_seconds: Mapping[str, float]) -> None:
        self.pool = pool
        self._limits_seconds = limits_seconds

    @classmethod
    async def load(
        cls,
        model: str | Path,
        devices: Sequence[Device],
        *,
        revision: str | None,
        cache_dir: Path | None,
        settings: Mapping[str, object],
    ) -> AsyncModel:
        """Start an engine on each device. See `voxcpm_grpc.load_async`."""
        _check_main_module()
        values = {"model": str(model), "devices": [str(device) for device in devices], "revision": revision}
        checked = from_values({**settings, **values, "cache_dir": cache_dir})
        for deprecation in deprecations(checked):
            log.warning("%s", deprecation)
        directory = await asyncio.to_thread(resolve, checked.model, revision, cache_dir, progress=False)
        pool = _pool(checked, directory)
        await pool.start()  # a start that fails closes the pool
        limits = checked.limits
        return cls(pool, {"prompt": limits.max_prompt_seconds, "reference": limits.max_reference_seconds})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the engines. Calls that still run raise Unavailable, or Aborted if they have sent audio."""
        await self.pool.close()

    @property
    def info(self) -> ModelInfo:
        """The model and its sizes; `info.output_sample_rate` is the rate of all audio from `generate`."""
        return self.pool.info

    @property
    def loras(self) -> tuple[str, ...]:
        """The names of the LoRA adapters that `generate` may choose, which the setting `lora` gives."""
        return tuple(adapter.name for adapter in self.pool.adapters.registered)

    async def generate(
        self,
        text: str,
        *,
        voice: Conditioning | None = None,
        style: str = "",
        language: str = "",
        sampling: Sampling | None = None,
        priority: PriorityName = "interactive",
        lora: str = "",
    ) -> AsyncGenerator[np.ndarray]:
        """Generate speech for one segment of text, float32 [samples] a step, as the engine makes it.

        Closing the generator (`contextlib.aclosing`), dropping it and cancelling its task all free the slot. The same
        text, voice and sampling give the same audio, up to rounding, whatever else the engine runs.

        Args:
            text: The text, best one sentence. The model's positions limit its length.
            voice: From `encode_voice`, or a `Conditioning` with a `speaker`. Default: the model chooses a voice.
            style: Description of the voice, such as "a calm old man", for voices without a prompt.
            language: Language to speak, one of `info.speech_languages`. Default: the model finds it in the text.
            sampling: Seed, guidance and limits. Default: `Sampling()`.
            priority: `batch` lets interactive calls go first, also in the middle of the speech, which goes on later
                with the same audio. Default: `interactive`.
            lora: LoRA adapter, one of `loras`. Default: the model alone.

        Raises:
            InvalidRequest: The text is empty, text and voice need more positions than the engine has, a style goes
                with a prompt, the model does not speak the language, or there is no such priority.
            FailedPrecondition: The model takes no style, no language, or no reference, or needs a voice.
            NotFound: There is no such adapter, or no such speaker.
            Exhausted: All slots are in use and the queue is full.
        """
        voice = voice or Conditioning()
        if not (voice.prompt or voice.reference or voice.speaker):
            self.info.require("no_voice", "voice")
        if style:
            self.info.require("style", "style")
        if priority not in get_args(PriorityName):
            raise InvalidRequest(f"priority is {priority!r}; it must be interactive or batch", field="priority")
        if not text.strip():
            raise InvalidRequest("the text is empty; give it a letter or a digit", field="text")
        if style and voice.prompt is not None and not self.info.can("style_with_prompt"):
            raise InvalidRequest(
                "a style cannot go with a prompt: the model would read it aloud; give a reference instead",
                field="style",
            )
        request = Request(
            id=uuid.uuid4().hex,
            text=text,
            style=style,
            language=language,
            sampling=sampling or Sampling(),
            conditioning=replace(voice, adapter=self.pool.adapters.find(lora) if lora else None),
            priority=Priority(priority),
        )
        async with aclosing(self.pool.generate(self.info.checked(request))) as call:
            async for event in call:
                for samples in np.split(event.samples, event.chunks) if isinstance(event, AudioChunk) else ():
                    yield samples

    async def encode_voice(
        self, *, reference: Recording | None = None, prompt: Recording | None = None, transcript: str = ""
    ) -> Conditioning:
        """Encode recordings as a voice for `generate`.

        Args:
            reference: A recording whose timbre the speech takes.
            prompt: A recording that the speech continues.
            transcript: The words of the prompt, exactly as spoken. The text of `generate` follows it without a
                separator, so end it with a space if the language uses spaces.

        Raises:
            InvalidRequest: No recording was given, or the transcript is missing or has no prompt.
            BadAudio: A recording cannot be decoded, is silent, is shorter than 0.1 s, or is longer than the limits of
                the settings.
            FailedPrecondition: The model takes no such recording, or not both.
        """
        if reference is not None:
            self.info.require("hifi" if prompt is not None else "reference", "reference")
        if prompt is not None:
            self.info.require("prompt", "prompt")
        if reference is None and prompt is None:
            raise InvalidRequest("a voice needs a recording; give reference, prompt or both")
        if (prompt is None) != (not transcript):
            raise InvalidRequest("prompt and transcript go together; give both or neither", field="transcript")
        return Conditioning(
            prompt=None if prompt is None else replace(await self._encode(prompt, Role.PROMPT), text=transcript),
            reference=None if reference is None else await self._encode(reference, Role.REFERENCE),
        )

    async def _encode(self, recording: Recording, role: Role) -> VoicePart:
        waveform = await asyncio.to_thread(
            _waveform, recording, self.info.input_sample_rate, self._limits_seconds[role]
        )
        return await self.pool.encode(waveform, role)


def _check_main_module() -> None:
    """An engine's process imports the main module. A model loaded by that import would load the next one, and so on."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise StartupError(
            "the main module loads a model when an engine imports it; put the call under `if __name__ == '__main__':`"
        )


def _pool(settings: Settings, directory: Path) -> EnginePool:
    name = settings.model if settings.model == "demo" else directory.name
    [one] = models(settings)
    engines = LocalEngines.of_checkpoint(directory, name, one.engines, settings.supervision, log=settings.log)
    return EnginePool(engines)


def _waveform(recording: Recording, rate: int, max_seconds: float) -> np.ndarray:
    """float32 [samples], mono, at `rate`."""
    source: AudioFormat | None = None
    match recording:
        case bytes():
            data = recording
        case Samples():
            data = np.ascontiguousarray(recording.samples, "<f4").tobytes()
            source = AudioFormat(Encoding.PCM_F32LE, recording.sample_rate)
        case _:
            data = Path(recording).read_bytes()
    waveform = decode(
        data, format_hint=source, target_rate=rate, max_seconds=max_seconds, max_bytes=MAX_RECORDING_BYTES
    ).waveform
    check_voice(waveform, rate)
    return waveform
