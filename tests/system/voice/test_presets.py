"""The presets of the bundled voice: the tool writes them, and a server reads them."""

import json

import numpy as np
import pytest
from support.checkpoints import VOICE

pytest.importorskip("av", reason="the presets are FLAC, which PyAV of the server extra writes")
from tools.voice import presets
from tools.voice.flite import Flite
from tools.voice.speak import speak
from tools.voice.voices import find
from voxcpm_grpc.audio import decode
from voxcpm_server.voices.presets import read


class Hummer(Flite):
    """A teacher whose voices are tones."""

    def __init__(self) -> None:
        pass  # flite need not be installed

    def speak(self, text: str, symbol: str) -> np.ndarray:
        return np.rint(9000 * np.sin(2 * np.pi * (100 + 10 * len(symbol)) * np.arange(16000) / 16000)).astype(np.int16)


def test_a_server_reads_the_presets_without_loss(tmp_path):
    presets.write(tmp_path, Hummer())
    found = read(tmp_path)
    assert [preset.name for preset, _ in found] == list(presets.SENTENCES)
    for preset, recording in found:
        voice = find(preset.name)
        assert preset.transcript == presets.SENTENCES[preset.name] + " "
        assert preset.labels == {"description": voice.description, "language": "en"}
        decoded = decode(recording, target_rate=16000, max_seconds=10, max_bytes=1 << 20)
        samples = speak(Hummer(), voice, preset.transcript).samples
        assert decoded.source_rate == 16000
        np.testing.assert_array_equal(decoded.waveform, samples / np.float32(32768))


def test_the_list_in_the_package_is_the_one_that_the_tool_writes(tmp_path):
    presets.write(tmp_path, Hummer())
    ours, written = ((folder / "presets" / "presets.json").read_text() for folder in (VOICE, tmp_path))
    assert json.loads(ours) == json.loads(written)
