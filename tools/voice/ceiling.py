"""Pass the teacher's recordings through the codec, the ceiling of what a model with this codec can reach.

    python -m tools.voice.ceiling HELD_OUT CODEC RECORDINGS

HELD_OUT is a folder of tools.voice.speak, CODEC one of tools.voice.train_vae or a checkpoint. It writes recordings of
the mode `codec` into RECORDINGS, which tools.voice.evaluate reads.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tools.voice import quick_codec
from tools.voice.dataset import RATE, Speech
from tools.voice.quick_codec import WEIGHTS
from tools.voice.recordings import CODEC, Case, recordings, store
from tools.voice.start import codec_of


def passed(codec: Any, samples: np.ndarray) -> np.ndarray:
    """The samples after the codec, int16."""
    audio = F.pad(torch.from_numpy(samples.astype(np.float32) / 32768), (0, -len(samples) % codec.chunk_size))
    with torch.inference_mode():
        made = codec.decode(codec.encode(audio[None, None], RATE))[0, 0, : len(samples)]
    return np.rint(made.clamp(-1, 1).numpy() * 32767).astype(np.int16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="folder of the teacher's recordings")
    parser.add_argument("codec", type=Path, help="folder of the codec")
    parser.add_argument("recordings", type=Path, help="folder for the recordings")
    args = parser.parse_args()
    config, _ = codec_of(args.codec)
    codec = quick_codec.build(config, load_file(args.codec / WEIGHTS)).eval()
    there = {one.case for one in recordings(args.recordings)}
    for one in Speech(args.teacher):
        case = Case(CODEC, one.voice, one.text)
        if case not in there:
            store(args.recordings, case, passed(codec, one.samples), "complete")


if __name__ == "__main__":
    main()
