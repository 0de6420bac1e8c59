"""Settings of the contracts of other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen


class ContractSettings(Frozen):
    """The services that speak as clients of other servers expect it."""

    enabled: tuple[Literal["google", "localai", "riva"], ...] = Field(
        default=(),
        description="services beside VoxCPMService on the same port, for clients of other servers: google "
        "(google.cloud.texttospeech.v1.TextToSpeech), localai (backend.Backend), riva "
        "(nvidia.riva.tts.RivaSpeechSynthesis); several with commas between them; default: none",
    )
    localai_folder: Path | None = Field(
        default=None,
        description="folder of LocalAI's generated content, below which its callers may have new WAV files written; "
        "default: none, so that the server writes no files and LocalAI gets audio as streams alone",
    )
