"""Write the presets of the bundled voice: a sentence by each of the teacher's voices.

    python -m tools.voice.presets CHECKPOINT

It writes CHECKPOINT/presets: FLAC recordings and their list. Needs flite, and av, which the server needs too.
"""

import argparse
import json
from pathlib import Path

import av
import numpy as np

from tools.voice.dataset import RATE
from tools.voice.flite import Flite
from tools.voice.speak import speak
from tools.voice.voices import find

KIND = "prompt"  # no other kind gives measurably better speech
SENTENCES = {  # the clearest voice first; short, because the files of the checkpoint must not exceed 30 MB
    "rms": "Put the flowers by the window.",
    "slt": "We walked along the river.",
    "awb": "It rained in the city all day.",
}


DEFAULT = "rms"  # has the fewest word errors


def write_flac(path: Path, samples: np.ndarray) -> None:
    """Write a FLAC file. samples: int16 mono at RATE."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("flac", rate=RATE, layout="mono", options={"compression_level": "12"})
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            file.mux(packet)


def write(checkpoint: Path, teacher: Flite) -> None:
    folder = checkpoint / "presets"
    folder.mkdir(exist_ok=True)
    listed = []
    for name, sentence in SENTENCES.items():
        voice = find(name)
        utterance = speak(teacher, voice, sentence)
        write_flac(folder / f"{voice.name}.flac", utterance.samples)
        listed.append(
            {
                "name": voice.name,
                "kind": KIND,
                "recording": f"{voice.name}.flac",
                "transcript": f"{utterance.text} ",  # the text to speak follows without a separator
                "labels": {"description": voice.description, "language": "en"},
                **({"default": True} if name == DEFAULT else {}),
            }
        )
    (folder / "presets.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the model")
    parser.add_argument("--flite", type=Path, help="folder of flite's shared libraries; default: the system's")
    args = parser.parse_args()
    write(args.checkpoint, Flite(args.flite and args.flite.resolve()))


if __name__ == "__main__":
    main()
