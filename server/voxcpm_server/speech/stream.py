"""The parts of a Generate stream that its three tasks share."""

from __future__ import annotations

from voxcpm_grpc.aio.peekable_queue import PeekableQueue
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_server.speech.output import OutputQueue, Work
from voxcpm_server.speech.timing import IdleTimeout
from voxcpm_server.speech.window import Window
from voxcpm_server.speech.writer import ChunkWriter
from voxcpm_server.values.inputs import Continuity, GenerateConfig, SegmentationMode

TASKS = 3  # the reader, the speaker and the writer
MERGED_SECONDS = 1.0  # seconds of audio in one message, at most


class Stream:
    """Made for each session.

    limits: of the text that waits, and of the time without work
    summary, playback: those of the reply
    idle: the timeout of the stream, which ends in the task of the reader
    window: the limit on the audio that was made and not sent
    work: the queue from the reader to the speaker
    output: the queue from the speaker to the writer
    """

    def __init__(self, config: GenerateConfig, info: ModelInfo, limits: LimitSettings, chunks: ChunkWriter) -> None:
        rate = info.output_sample_rate
        size = max(1, int(config.max_lead * rate / info.samples_per_step))
        arrives = config.segmentation.mode is SegmentationMode.TOKENS  # no segment is generated ahead of another one
        self.config = config
        self.info = info
        self.limits = limits
        self.summary, self.playback = chunks.summary, chunks.playback
        self.idle = IdleTimeout(tasks=TASKS, seconds=limits.stream_idle_seconds)
        self.window = Window(size, ahead=config.continuity is Continuity.INDEPENDENT and not arrives)
        self.work: PeekableQueue[Work] = PeekableQueue()
        self.output = OutputQueue(max_merged=MERGED_SECONDS * rate)
