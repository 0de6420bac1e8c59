"""Predicted patches on disk, and random crops of them with the speech to which they belong.

A folder holds a file predicted-K-of-N.npy for each share K of N: float16 patches [n, PATCH, LATENT]. One after another
they have the indices of patches.npy of tools.voice.encode; a patch that is not predicted is zeros.
"""

from pathlib import Path

import numpy as np
import torch

from tools.voice.crops import Crops
from tools.voice.encode import Corpus
from tools.voice.shapes import LATENT, PATCH
from tools.voice.voices import VOICES


def save_predicted(folder: Path, share: tuple[int, int], patches: np.ndarray) -> None:
    """Write a share, completely or not at all, and remove those of other numbers of shares."""
    folder.mkdir(parents=True, exist_ok=True)
    number, count = share
    temporary = folder / f"{number}-of-{count}.tmp.npy"
    np.save(temporary, patches)
    for old in folder.glob("predicted-*.npy"):
        if not old.stem.endswith(f"-of-{count}"):
            old.unlink(missing_ok=True)  # another process may do the same
    temporary.replace(folder / f"predicted-{number}-of-{count}.npy")


def load_predicted(folder: Path) -> np.ndarray:
    """The patches of all shares. Raises ValueError if one is missing."""
    there = sorted(folder.glob("predicted-*-of-*.npy"))
    if not there:
        raise ValueError(f"{folder} holds no predicted latents; run tools.voice.predict first")
    count = int(there[0].stem.rpartition("-")[2])
    paths = [folder / f"predicted-{number}-of-{count}.npy" for number in range(1, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; run tools.voice.predict with these shares")
    return np.concatenate([np.load(path) for path in paths])


class PredictedCrops:
    """Random stretches of predicted latents and of the speech to which they belong, on the device.

    Each begins with a latent, and its judged part lies within an utterance. crops: complete speech, whose lengths these
    crops share. corpus: the speech as patches. patches: those predicted, with the indices of the corpus. rows: crops of
    a draw. latent: samples of a latent. context: latents of a crop before its judged part; fewer at the beginning of an
    utterance, where the decoder has heard nothing before. Raises ValueError if they do not belong together, or if no
    utterance is long enough.
    """

    def __init__(
        self, crops: Crops, corpus: Corpus, patches: np.ndarray, rows: int, latent: int, context: int = 0
    ) -> None:
        self.crops, device = crops, crops.device
        frames = crops.samples // latent - context  # that are judged
        sizes = np.array([entry.samples for entry in crops.speech.entries])
        voices = np.array([[voice.name for voice in VOICES].index(entry.voice) for entry in crops.speech.entries])
        if not crops.speech.complete:
            raise ValueError(f"the speech is not complete: {len(sizes)} of {crops.speech.plan.sentences} utterances")
        counts = -(-sizes // (PATCH * latent))
        if not (np.array_equal(counts, corpus.count) and np.array_equal(voices, corpus.voice)):
            raise ValueError("the latents are not those of this speech; encode it again")
        if patches.shape != corpus.patches.shape:
            raise ValueError(
                f"there are {len(corpus.patches)} patches and {len(patches)} predicted ones; predict again"
            )
        fits = np.maximum(sizes // latent - frames + 1, 0) * patches[corpus.right].any((1, 2))  # crops of an utterance
        if not fits.any():
            raise ValueError(f"no predicted utterance has the {frames} latents of a crop; give a shorter --crop")
        judged = np.arange(fits.sum()) - np.repeat(np.cumsum(fits) - fits, fits)  # first judged latent of each crop
        within = np.maximum(judged - context, 0)  # first latent
        starts = np.cumsum(sizes) - sizes  # first sample of an utterance
        self.first_latent = torch.from_numpy(np.repeat(corpus.right * PATCH, fits) + within).to(device)
        self.first_sample = torch.from_numpy(np.repeat(starts, fits) + within * latent).to(device)
        self.before = torch.from_numpy((judged - within) * latent).to(device)  # samples before it
        self.table = torch.from_numpy(patches.reshape(-1, LATENT)).to(device)
        self.steps = torch.arange(frames + context, device=device)
        self.latents = torch.zeros(rows, LATENT, frames + context, device=device)
        self.audio = torch.zeros(rows, crops.samples, device=device)
        self.first_judged = torch.zeros(rows, dtype=torch.long, device=device)

    def draw(self) -> None:
        """Fill `latents`, `audio` and `first_judged` with new crops. What follows a judged part may be anything."""
        crops = self.crops
        chosen = torch.randint(
            len(self.first_latent), (len(self.audio), 1), device=crops.device, generator=crops.random
        )
        latents = (self.first_latent[chosen] + self.steps).clamp(max=len(self.table) - 1)
        self.latents.copy_(self.table[latents].transpose(1, 2))
        samples = (self.first_sample[chosen] + crops.offsets).clamp(max=len(crops.audio) - 1)
        self.audio.copy_(crops.audio[samples].float() / 32768)
        self.first_judged.copy_(self.before[chosen[:, 0]])
