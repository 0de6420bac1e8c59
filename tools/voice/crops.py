"""The codec's training data: random crops of all speech in a folder, while other processes still add to it."""

import time

import numpy as np
import torch

from tools.voice.dataset import Speech


class Crops:
    """Random stretches of the speech that is complete so far, on the device.

    Waits for enough speech. Raises ValueError if no more will come.
    """

    def __init__(self, speech: Speech, batch: int, samples: int, device: torch.device, seed: int) -> None:
        self.speech, self.samples, self.device = speech, samples, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.batch = torch.zeros(batch, 1, samples, device=device)
        self.offsets = torch.arange(samples, device=device)
        self.known = set[int]()  # shards
        self.audio = torch.zeros(0, dtype=torch.int16, device=device)
        while not self.refresh():
            if speech.complete:
                raise ValueError(f"{speech.folder} has {speech.seconds:.1f} s of speech, fewer than a crop")
            time.sleep(0.5)

    def refresh(self) -> bool:
        """Load the shards completed since the last call. Returns True if there is enough for a crop."""
        self.speech.refresh()
        new = [shard for shard in self.speech.shards if shard not in self.known]
        if new:
            parts = [np.load(self.speech.folder / f"speech-{shard:04d}.npy") for shard in new]
            self.known.update(new)
            self.audio = torch.cat((self.audio, torch.from_numpy(np.concatenate(parts)).to(self.device)))
        return len(self.audio) > self.samples

    def draw(self) -> None:
        """Fill `batch` with new crops. A quarter of them is quieter, as recordings of users may be."""
        rows = len(self.batch)
        start = torch.randint(len(self.audio) - self.samples, (rows, 1), device=self.device, generator=self.random)
        gain = 10 ** (-0.6 * torch.rand(rows, 1, device=self.device, generator=self.random))
        gain[rows // 4 :] = 1
        self.batch[:, 0] = self.audio[start + self.offsets].float() * (gain / 32768)
