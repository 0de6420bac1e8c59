"""Write the presets of the bundled voice: a sentence by each of the teacher's voices.

    python -m tools.voice.phonemes tools/voice/presets.txt build/voice/presets.jsonl
    python -m tools.voice.speak build/voice/presets.jsonl build/voice/presets --styles kokoro-js/voices
    python -m tools.voice.presets build/voice/presets CHECKPOINT

It writes CHECKPOINT/presets: FLAC recordings and their list. Needs av, which the server needs too.
"""

import argparse
import json
from pathlib import Path

import av
import numpy as np

from tools.voice.dataset import RATE, Speech
from tools.voice.voices import VOICES

KIND = "prompt"  # no other kind gives measurably better speech


def write_flac(path: Path, samples: np.ndarray) -> None:
    """Write a FLAC file. samples: int16 mono at RATE."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("flac", rate=RATE, layout="mono", options={"compression_level": "12"})
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            file.mux(packet)


def write(checkpoint: Path, speech: Speech) -> None:
    """Write the presets. speech: the first recording of each voice becomes its preset."""
    folder = checkpoint / "presets"
    folder.mkdir(exist_ok=True)
    listed = []
    for voice in VOICES:
        utterance = next(one for one in speech if one.voice == voice.name)
        write_flac(folder / f"{voice.name}.flac", utterance.samples)
        listed.append(
            {
                "name": voice.name,
                "kind": KIND,
                "recording": f"{voice.name}.flac",
                "transcript": f"{utterance.text} ",  # the text to speak follows without a separator
                "labels": {"description": voice.description, "about": voice.about, "language": "en"},
                **({"default": True} if voice == VOICES[0] else {}),
            }
        )
    (folder / "presets.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder of the teacher's recordings of presets.txt")
    parser.add_argument("checkpoint", type=Path, help="folder of the model")
    args = parser.parse_args()
    write(args.checkpoint, Speech(args.speech))


if __name__ == "__main__":
    main()
