"""Decoding of uploads, and streaming resampling and encoding of the model's audio.

Importing this package loads numpy only. PyAV and soxr are imported when a format or a rate needs them.
"""

from voxcpm_grpc.audio.cleaning import NO_CLEANING, Cleaning
from voxcpm_grpc.audio.decode import Decoded, decode
from voxcpm_grpc.audio.effects import NO_EFFECTS, Effects
from voxcpm_grpc.audio.encode import OutputPipeline, encoder
from voxcpm_grpc.audio.encoder import Encoded, Encoder
from voxcpm_grpc.audio.formats import SAMPLE_RATES, AudioFormat, BadAudio, Encoding, usual_rate
from voxcpm_grpc.audio.pool import DecodePool
from voxcpm_grpc.audio.resample import StreamResampler, resample
from voxcpm_grpc.audio.voice_check import Flaw, FlawKind, check_voice, short_flaw
from voxcpm_grpc.audio.wav import WavWriter, wav_bytes

__all__ = [
    "NO_CLEANING",
    "NO_EFFECTS",
    "SAMPLE_RATES",
    "AudioFormat",
    "BadAudio",
    "Cleaning",
    "DecodePool",
    "Decoded",
    "Effects",
    "Encoded",
    "Encoder",
    "Encoding",
    "Flaw",
    "FlawKind",
    "OutputPipeline",
    "StreamResampler",
    "WavWriter",
    "check_voice",
    "decode",
    "encoder",
    "resample",
    "short_flaw",
    "usual_rate",
    "wav_bytes",
]
