"""Values of the admin service: registrations of LoRA adapters, and figures of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxcpm_grpc.request import Adapter


@dataclass(frozen=True, slots=True)
class Registration:
    """A request to register an adapter.

    sha256: of lora_weights.safetensors, not checked yet; None if any content will do
    model: name of the model; empty for the default one
    """

    name: str
    source: str
    sha256: str | None
    model: str


@dataclass(frozen=True, slots=True)
class RegisteredLora:
    """An adapter that requests may choose.

    streams: of this process, that speak with it
    engines: that have read it
    """

    adapter: Adapter
    model: str
    streams: int
    engines: int


@dataclass(frozen=True, slots=True)
class Recent:
    """Figures of the calls that ended during the last `seconds`.

    audio: seconds
    first_audio, queue: seconds of each call that has them
    """

    seconds: float
    calls: int
    failed: int
    audio: float
    first_audio: Sequence[float]
    queue: Sequence[float]
    underruns: int

    @classmethod
    def of_all(cls, fronts: Sequence[Recent]) -> Recent:
        """The figures of several fronts together."""
        return cls(
            seconds=max(one.seconds for one in fronts),
            calls=sum(one.calls for one in fronts),
            failed=sum(one.failed for one in fronts),
            audio=sum(one.audio for one in fronts),
            first_audio=[value for one in fronts for value in one.first_audio],
            queue=[value for one in fronts for value in one.queue],
            underruns=sum(one.underruns for one in fronts),
        )
