"""Encode speech with the trained codec: what the model learns to predict.

    python -m tools.voice.encode SPEECH CODEC OUT

OUT/patches.npy holds float16 patches [n, 4, 32], patch 0 being zeros. Every utterance is there twice: padded with
silence on the right, as references and targets are, and on the left, as prompts are. The right-padded one is followed
by one patch of silence. OUT/index.npz says where, and holds the texts as tokens.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tools.voice import tokens, train_vae
from tools.voice.dataset import Speech
from tools.voice.shapes import LATENT, PATCH, patch_samples
from tools.voice.voices import VOICES

BATCH = 64


@dataclass(frozen=True, slots=True)
class Corpus:
    """Utterances as patches and tokens. One entry of each array for every utterance, but for `patches` and `ids`."""

    patches: np.ndarray  # float16 [n, PATCH, LATENT]
    voice: np.ndarray  # index in VOICES
    count: np.ndarray  # patches of the utterance
    right: np.ndarray  # index of the first right-padded patch; at right + count stands a patch of silence
    left: np.ndarray  # index of the first left-padded patch
    ids: np.ndarray  # tokens of all texts, one after another
    start: np.ndarray  # first token
    length: np.ndarray  # tokens

    def __len__(self) -> int:
        return len(self.voice)

    def text(self, i: int) -> np.ndarray:
        return self.ids[self.start[i] : self.start[i] + self.length[i]]


def load(folder: Path) -> Corpus:
    with np.load(folder / "index.npz") as index:
        return Corpus(patches=np.load(folder / "patches.npy", mmap_mode="r"), **index)


def load_codec(folder: Path, device: torch.device) -> tuple[nn.Module, dict[str, Any]]:
    """The codec that tools.voice.train_vae left in `folder`, and its configuration."""
    config = json.loads((folder / "codec.json").read_text())
    codec = train_vae.build(config)
    codec.load_state_dict(load_file(folder / "audiovae.safetensors"), strict=False)  # without its unused deviation
    return codec.to(device).eval(), config


def encode(codec: nn.Module, audio: Tensor) -> Tensor:
    """[batch, samples], whole patches, to float16 [batch, patches, PATCH, LATENT]."""
    latents = codec.encoder.fc_mu(codec.encoder.block(audio[:, None]))
    return latents.transpose(1, 2).reshape(len(audio), -1, PATCH, LATENT).half()


def encode_all(speech: Speech, codec: nn.Module, samples: int, device: torch.device) -> Corpus:
    """`samples` of one patch."""
    counts = np.array([-(-entry.samples // samples) for entry in speech.entries])
    right = 1 + np.concatenate(([0], np.cumsum(2 * counts + 1)[:-1]))
    left = right + counts + 1
    patches = torch.zeros(int(1 + (2 * counts + 1).sum()), PATCH, LATENT, dtype=torch.float16, device=device)
    order = np.argsort(counts, kind="stable")
    with torch.inference_mode():
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            width = int(counts[rows].max()) + 1
            audio = np.zeros((2, len(rows), width * samples), np.float32)
            for i, row in enumerate(rows):
                wave, size = speech[int(row)].samples, int(counts[row]) * samples
                audio[0, i, : len(wave)] = wave
                audio[1, i, size - len(wave) : size] = wave
            both = torch.from_numpy(audio).to(device) / 32768
            for first, part, extra in ((right, both[0], 1), (left, both[1], 0)):
                found = encode(codec, part)
                size = torch.from_numpy(counts[rows] + extra).to(device)
                offset = torch.arange(width, device=device)
                inside = offset < size[:, None]
                where = torch.from_numpy(first[rows]).to(device)[:, None] + offset
                patches[where[inside]] = found[inside]
    tokenizer = tokens.build()
    texts = [tokenizer.encode(entry.text, add_special_tokens=False).ids for entry in speech.entries]
    length = np.array([len(text) for text in texts])
    names = [voice.name for voice in VOICES]
    return Corpus(
        patches=patches.cpu().numpy(),
        voice=np.array([names.index(entry.voice) for entry in speech.entries]),
        count=counts,
        right=right,
        left=left,
        ids=np.concatenate(texts).astype(np.int32),
        start=np.concatenate(([0], np.cumsum(length)[:-1])),
        length=length,
    )


def save(corpus: Corpus, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "patches.npy", corpus.patches)
    fields = ("voice", "count", "right", "left", "ids", "start", "length")
    np.savez(folder / "index.npz", **{name: getattr(corpus, name) for name in fields})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder written by tools.voice.speak")
    parser.add_argument("codec", type=Path, help="folder written by tools.voice.train_vae")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = True
    codec, config = load_codec(args.codec, device)
    train_vae.use_lean_snake(compiled=False)
    corpus = encode_all(Speech(args.speech), codec, patch_samples(config), device)
    save(corpus, args.out)
    spread = corpus.patches[1 : 1 + 200_000].astype(np.float32).std()
    print(f"{len(corpus)} utterances, {len(corpus.patches)} patches of deviation {spread:.2f}", flush=True)


if __name__ == "__main__":
    main()
