"""Streaming resampling, effects and encoding of the model's audio.

Importing this package loads numpy only. PyAV and soxr are imported when a format or a rate needs them.
"""

from voxcpm_grpc.audio.effects import NO_EFFECTS, Effects
from voxcpm_grpc.audio.encode import OutputPipeline, encoder
from voxcpm_grpc.audio.encoder import Encoded, Encoder
from voxcpm_grpc.audio.formats import SAMPLE_RATES, AudioFormat, BadAudio, Encoding, usual_rate
from voxcpm_grpc.audio.resample import StreamResampler, resample
from voxcpm_grpc.audio.wav import WavWriter, wav_bytes

__all__ = [
    "NO_EFFECTS",
    "SAMPLE_RATES",
    "AudioFormat",
    "BadAudio",
    "Effects",
    "Encoded",
    "Encoder",
    "Encoding",
    "OutputPipeline",
    "StreamResampler",
    "WavWriter",
    "encoder",
    "resample",
    "usual_rate",
    "wav_bytes",
]
