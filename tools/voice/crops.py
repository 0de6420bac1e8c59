"""What the codec is trained on: random crops of all speech there is, while more is being made."""

import time

import numpy as np
import torch

from tools.voice.dataset import Speech


class Crops:
    """Random stretches of all speech there is so far, on the device."""

    def __init__(self, speech: Speech, batch: int, samples: int, device: torch.device, seed: int) -> None:
        self.speech, self.samples, self.device = speech, samples, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.batch = torch.zeros(batch, 1, samples, device=device)
        self.offsets = torch.arange(samples, device=device)
        self.known = 0
        self.audio = torch.zeros(0, dtype=torch.int16, device=device)
        while not self.refresh():
            time.sleep(0.5)

    def refresh(self) -> bool:
        """Take in the shards completed since; says whether there is anything at all."""
        self.speech.refresh()
        shards = self.speech.shards
        if len(shards) > self.known:
            parts = [np.load(self.speech.folder / f"speech-{shard:04d}.npy") for shard in shards[self.known :]]
            self.known = len(shards)
            self.audio = torch.cat((self.audio, torch.from_numpy(np.concatenate(parts)).to(self.device)))
        return len(self.audio) > self.samples

    def draw(self) -> None:
        """Fill `batch`, some of it quieter, as users' recordings are."""
        rows = len(self.batch)
        start = torch.randint(len(self.audio) - self.samples, (rows, 1), device=self.device, generator=self.random)
        gain = 10 ** (-0.6 * torch.rand(rows, 1, device=self.device, generator=self.random))
        gain[rows // 4 :] = 1
        self.batch[:, 0] = self.audio[start + self.offsets].float() * (gain / 32768)
