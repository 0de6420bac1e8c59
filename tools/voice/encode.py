"""Encode speech with the trained codec, as training data of the model.

    python -m tools.voice.encode SPEECH CODEC OUT

OUT/patches.npy holds float16 patches [n, 4, 32]; patch 0 is zeros. Every utterance occurs twice: padded with silence on
the right, as references and targets are, and on the left, as prompts are. One patch of silence follows the first.
OUT/index.npz holds the places of the utterances, their texts as tokens, and the token that sounds in each patch.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.voice import quick_codec, tokens
from tools.voice.dataset import Speech
from tools.voice.quick_codec import CONFIG
from tools.voice.shapes import LATENT, PATCH, patch_samples
from tools.voice.start import codec_of
from tools.voice.voices import VOICES

BATCH = 64
INDEX = "index.npz"  # written last


@dataclass(frozen=True, slots=True)
class Corpus:
    """Utterances as patches and tokens. All arrays but `patches`, `letter` and `ids` have one entry each utterance."""

    patches: np.ndarray  # float16 [n, PATCH, LATENT]
    voice: np.ndarray  # index in VOICES
    count: np.ndarray  # patches of the utterance
    right: np.ndarray  # index of the first right-padded patch; index right + count is a patch of silence
    left: np.ndarray  # index of the first left-padded patch
    letter: np.ndarray  # int16 [n]: the token of its text that sounds in a right-padded patch; -1 if unknown
    ids: np.ndarray  # tokens of all texts, one after another
    start: np.ndarray  # first token
    length: np.ndarray  # tokens

    def __len__(self) -> int:
        return len(self.voice)

    def text(self, i: int) -> np.ndarray:
        """The tokens of utterance i."""
        return self.ids[self.start[i] : self.start[i] + self.length[i]]


def load(folder: Path) -> Corpus:
    with np.load(folder / INDEX) as index:
        return Corpus(patches=np.load(folder / "patches.npy", mmap_mode="r"), **index)


def load_codec(folder: Path, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """The codec in a folder of tools.voice.train_vae, or of a checkpoint, and its configuration."""
    config, tensors = codec_of(folder)
    codec = quick_codec.build(config, tensors)
    return codec.to(device).eval(), config


def encode(codec: Any, audio: Tensor) -> Tensor:
    """Audio of whole patches as latents: [batch, samples] to float16 [batch, patches, PATCH, LATENT]."""
    latents = codec.encoder.fc_mu(codec.encoder.block(audio[:, None]))
    return latents.transpose(1, 2).reshape(len(audio), -1, PATCH, LATENT).half()


def upload(speech: Speech, device: torch.device) -> tuple[Tensor, np.ndarray]:
    """All samples one after another, int16, and the start of each utterance."""
    shards = [np.load(speech.folder / f"speech-{shard:04d}.npy") for shard in speech.shards]
    sizes = np.array([entry.samples for entry in speech.entries])
    return torch.from_numpy(np.concatenate(shards)).to(device), np.concatenate(([0], np.cumsum(sizes)[:-1]))


def encode_all(speech: Speech, audio: Tensor, starts: np.ndarray, codec: Any, samples: int) -> Corpus:
    """Encode all speech. audio, starts: as `upload` returns them. samples: of one patch."""
    device = audio.device
    sizes = np.array([entry.samples for entry in speech.entries])
    counts = -(-sizes // samples)
    right = 1 + np.concatenate(([0], np.cumsum(2 * counts + 1)[:-1]))
    left = right + counts + 1
    patches = torch.zeros(int(1 + (2 * counts + 1).sum()), PATCH, LATENT, dtype=torch.float16, device=device)
    order = np.argsort(counts, kind="stable")

    def column(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device)[:, None]

    with torch.inference_mode():
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            width = int(counts[rows].max()) + 1
            sample, patch = torch.arange(width * samples, device=device), torch.arange(width, device=device)
            for first, pad, extra in ((right, 0 * sizes, 1), (left, counts * samples - sizes, 0)):
                offset = sample - column(pad[rows])
                inside = (offset >= 0) & (offset < column(sizes[rows]))
                wave = audio[(column(starts[rows]) + offset).clamp(0, len(audio) - 1)] * inside
                found = encode(codec, wave.float() / 32768)
                wanted = patch < column(counts[rows] + extra)
                patches[(column(first[rows]) + patch)[wanted]] = found[wanted]
    tokenizer = tokens.build()
    encodings = [tokenizer.encode(entry.text, add_special_tokens=False) for entry in speech.entries]
    texts = [encoding.ids for encoding in encodings]
    length = np.array([len(text) for text in texts])
    letter = np.full(len(patches), -1, np.int16)
    for entry, encoding, first, count in zip(speech.entries, encodings, right, counts, strict=True):
        if entry.letters:
            middle = np.asarray(entry.letters)[(np.arange(count) * PATCH + PATCH // 2).clip(max=len(entry.letters) - 1)]
            begins = [begin for begin, _ in encoding.offsets]
            letter[first : first + count] = (np.searchsorted(begins, middle, side="right") - 1).clip(min=0)
    names = [voice.name for voice in VOICES]
    return Corpus(
        patches=patches.cpu().numpy(),
        voice=np.array([names.index(entry.voice) for entry in speech.entries]),
        count=counts,
        right=right,
        left=left,
        letter=letter,
        ids=np.concatenate(texts).astype(np.int32),
        start=np.concatenate(([0], np.cumsum(length)[:-1])),
        length=length,
    )


def save(corpus: Corpus, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "patches.npy", corpus.patches)
    fields = ("voice", "count", "right", "left", "letter", "ids", "start", "length")
    np.savez(folder / "index.tmp.npz", **{name: getattr(corpus, name) for name in fields})
    (folder / "index.tmp.npz").replace(folder / INDEX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder written by tools.voice.speak")
    parser.add_argument("codec", type=Path, help="folder written by tools.voice.train_vae, or a checkpoint")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--wait", action="store_true", help="wait until the speech and the codec are complete")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = True
    while args.wait and not (args.speech / "speech.json").exists():
        time.sleep(0.5)
    speech = Speech(args.speech)
    while args.wait and not speech.refresh():
        time.sleep(0.5)
    audio, starts = upload(speech, device)
    while args.wait and not any((args.codec / name).exists() for name in (CONFIG, "config.json")):
        time.sleep(0.1)
    begun = time.monotonic()
    codec, config = load_codec(args.codec, device)
    corpus = encode_all(speech, audio, starts, codec, patch_samples(config))
    save(corpus, args.out)
    spread = corpus.patches[1 : 1 + 200_000].astype(np.float32).std()
    took = time.monotonic() - begun
    print(f"{len(corpus)} utterances, {len(corpus.patches)} patches, deviation {spread:.2f}, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
