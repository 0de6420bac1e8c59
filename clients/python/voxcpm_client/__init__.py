"""Clients of a VoxCPM server: `AsyncClient`, and `Client` for code without asyncio. They do not need PyTorch.

from voxcpm_client import Client

with Client("127.0.0.1:50051") as client:
    client.say("Hello.").save("hello.wav")
"""

# ruff: noqa: E402
from voxcpm_client.transport.core_log import import_grpc

import_grpc()  # the modules below import gRPC, so this comes first

from voxcpm_client.admin import RegisteredLora
from voxcpm_client.client import DEFAULT_RETRY_SECONDS, DEFAULT_TARGET, DEFAULT_TIMEOUT, AsyncClient
from voxcpm_client.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SpeechError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    UnusableClient,
)
from voxcpm_client.messages.model_info import ModelInfo, ServedModel
from voxcpm_client.messages.server_stats import ServerStats
from voxcpm_client.stream import AsyncSession, AsyncStream
from voxcpm_client.sync import Client
from voxcpm_client.sync_stream import Session, Stream
from voxcpm_client.texts.text import Pause
from voxcpm_client.transport.security import tls_credentials
from voxcpm_client.values.options import Audition, Prompt, SpeechOptions, TurnOptions, VoiceOptions
from voxcpm_client.values.recordings import Recording
from voxcpm_client.values.results import (
    Chunk,
    Flushed,
    Header,
    Interrupted,
    SegmentEvent,
    Speech,
    SpeechWarning,
    Summary,
    WordTime,
)
from voxcpm_client.values.voices import Latents, Voice, VoiceName
from voxcpm_grpc import __version__
from voxcpm_grpc.audio import AudioFormat, Encoding

__all__ = [
    "DEFAULT_RETRY_SECONDS",
    "DEFAULT_TARGET",
    "DEFAULT_TIMEOUT",
    "Aborted",
    "AlreadyExists",
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "AudioFormat",
    "Audition",
    "Cancelled",
    "Chunk",
    "Client",
    "DeadlineExceeded",
    "Encoding",
    "Exhausted",
    "FailedPrecondition",
    "Flushed",
    "Header",
    "InternalError",
    "Interrupted",
    "InvalidArgument",
    "Latents",
    "ModelInfo",
    "NotFound",
    "Pause",
    "PermissionDenied",
    "Prompt",
    "Recording",
    "RegisteredLora",
    "SegmentEvent",
    "ServedModel",
    "ServerStats",
    "Session",
    "Speech",
    "SpeechError",
    "SpeechOptions",
    "SpeechWarning",
    "Stream",
    "Summary",
    "TurnOptions",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UnusableClient",
    "Voice",
    "VoiceName",
    "VoiceOptions",
    "WordTime",
    "__version__",
    "tls_credentials",
]
