"""Settings of the contracts of other servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen


class ContractSettings(Frozen):
    """The services that speak as clients of other servers expect it."""

    enabled: tuple[Literal["google", "riva"], ...] = Field(
        default=(),
        description="services beside VoxCPMService on the same port, for clients of other servers: google "
        "(google.cloud.texttospeech.v1.TextToSpeech), riva (nvidia.riva.tts.RivaSpeechSynthesis); several with commas "
        "between them; default: none",
    )
