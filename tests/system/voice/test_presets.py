"""The presets of the bundled voice: the tool writes them, and a server reads them."""

import json

import numpy as np
import pytest

pytest.importorskip("av", reason="the presets are FLAC, which PyAV of the server extra writes")
from tools.voice import presets
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.voices import VOICES
from voxcpm_grpc.audio.uploads import decode
from voxcpm_server.voices.presets import read


def tone(hertz: int) -> np.ndarray:
    return np.rint(9000 * np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE)).astype(np.int16)


def test_a_server_reads_the_presets_without_loss(tmp_path):
    """The first recording of each voice becomes its preset, and the first voice the default."""
    spoken = [Utterance(voice.name, f"Sentence {i}.", tone(100 + 10 * i)) for i, voice in enumerate(VOICES * 2)]
    write_plan(tmp_path / "speech", Plan(len(spoken), 1, "tones"))
    write_shard(tmp_path / "speech", 0, spoken)
    presets.write(tmp_path, Speech(tmp_path / "speech"))
    found = read(tmp_path)
    assert [preset.name for preset, _ in found] == [voice.name for voice in VOICES]
    listed = json.loads((tmp_path / "presets" / "presets.json").read_text())
    assert [one.get("default", False) for one in listed] == [True] + [False] * (len(VOICES) - 1)
    for (preset, recording), voice, utterance in zip(found, VOICES, spoken, strict=False):
        assert preset.transcript == utterance.text + " "
        assert preset.labels == {"description": voice.description, "about": voice.about, "language": "en"}
        decoded = decode(recording, target_rate=RATE, max_seconds=10, max_bytes=1 << 20)
        assert decoded.source_rate == RATE
        np.testing.assert_array_equal(decoded.waveform, utterance.samples / np.float32(32768))
