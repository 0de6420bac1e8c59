"""What the audio codec is trained against: mel spectrograms, of its audio and of its latents, and discriminators."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tools.voice.dataset import RATE

MEL_WINDOWS = (64, 128, 256, 512, 1024, 2048)
DISCRIMINATOR_WINDOWS = (1024, 512, 256)
CHANNELS = 32  # of a discriminator


def mel_filters(bands: int, window: int) -> Tensor:
    """[window / 2 + 1, bands] triangles, evenly spaced on the mel scale up to half the sample rate."""
    top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, window // 2 + 1)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rise, fall).clamp(min=0)
    return filters / filters.sum(0).clamp(min=1e-3)


class MelLoss(nn.Module):
    """Mean absolute difference of log mel spectra, over several window lengths."""

    def __init__(self) -> None:
        super().__init__()
        for window in MEL_WINDOWS:
            self.register_buffer(f"window{window}", torch.hann_window(window))
            self.register_buffer(f"filters{window}", mel_filters(min(5 * window // 32, 160), window))

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """Both [batch, samples]."""
        both = torch.cat((made, real))
        loss = both.new_zeros(())
        for window in MEL_WINDOWS:
            shape = self.get_buffer(f"window{window}")
            spectrum = torch.stft(both, window, window // 4, window=shape, return_complex=True, pad_mode="constant")
            power = spectrum.real**2 + spectrum.imag**2
            size = (power + 1e-9).sqrt().transpose(1, 2) @ self.get_buffer(f"filters{window}")
            a, b = size.clamp(min=1e-4).log10().chunk(2)
            loss = loss + (a - b).abs().mean()
        return loss / len(MEL_WINDOWS)


class Sketch(nn.Module):
    """What latents are to be: principal components of the log mel spectrogram of their own time, of unit deviation.

    It is there for the encoder alone. What tells words apart reaches it on this straight way at once; left to the
    decoder, the encoder learns the first few components and hardly any of the others. `fit` chooses the components.
    """

    WINDOW, HOP, BANDS = 512, 160, 80
    LEAST = 1e-4  # of the first component's variance: below that a component is noise, not to be made any larger

    def __init__(self, latent: int, samples: int) -> None:
        """`samples`: of a latent frame, a multiple of HOP."""
        super().__init__()
        self.columns = samples // self.HOP
        size = self.columns * self.BANDS
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.register_buffer("filters", mel_filters(self.BANDS, self.WINDOW))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("basis", torch.zeros(size, latent))
        self.register_buffer("share", torch.zeros(latent))  # of the loss: large components count more, but not all

    def patches(self, audio: Tensor) -> Tensor:
        """[batch, samples] -> [batch, frames, columns * BANDS], the part of the spectrogram under each latent frame."""
        shape = self.get_buffer("window")
        spectrum = torch.stft(audio, self.WINDOW, self.HOP, window=shape, return_complex=True, pad_mode="constant")
        mel = (spectrum.abs().transpose(1, 2) @ self.get_buffer("filters")).clamp(min=1e-4).log10()
        frames = audio.shape[1] // (self.columns * self.HOP)
        return mel[:, : frames * self.columns].unflatten(1, (frames, self.columns)).flatten(2)

    def fit(self, patches: Tensor) -> None:
        """Choose the components of [frames, columns * BANDS], of many times as many frames as components."""
        mean, basis, share = (self.get_buffer(name) for name in ("mean", "basis", "share"))
        mean.copy_(patches.mean(0))
        variance, directions = torch.linalg.eigh(torch.cov(patches.T.double().cpu()))
        variance, directions = variance.flip(0)[: len(share)], directions.flip(1)[:, : len(share)]
        variance = variance.clamp(min=self.LEAST * float(variance[0]))
        basis.copy_(directions / variance.sqrt())
        share.copy_(variance.sqrt() / variance.sqrt().sum())

    def forward(self, latents: Tensor, real: Tensor) -> Tensor:
        """Mean square by which latents, [batch, latent, frames], miss the components of real, [batch, samples]."""
        with torch.no_grad():
            wanted = (self.patches(real) - self.get_buffer("mean")) @ self.get_buffer("basis")
        missed = (latents.transpose(1, 2) - wanted) ** 2
        return (missed.mean((0, 1)) * self.get_buffer("share")).sum()


class SpectrumDiscriminator(nn.Module):
    """Judges patches of a complex spectrum. Returns the activations of every layer, the judgement last."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("shape", torch.hann_window(window))
        c = CHANNELS
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(2, c, (3, 9), padding=(1, 4))),
                weight_norm(nn.Conv2d(c, c, (3, 9), stride=(1, 2), padding=(1, 4))),
                weight_norm(nn.Conv2d(c, c, (3, 9), stride=(1, 2), dilation=(2, 1), padding=(2, 4))),
                weight_norm(nn.Conv2d(c, c, (3, 9), stride=(1, 2), dilation=(4, 1), padding=(4, 4))),
                weight_norm(nn.Conv2d(c, c, (3, 3), padding=(1, 1))),
                weight_norm(nn.Conv2d(c, 1, (3, 3), padding=(1, 1))),
            ]
        )

    def forward(self, audio: Tensor) -> list[Tensor]:
        """audio: [batch, samples]"""
        with torch.autocast(audio.device.type, enabled=False):
            spectrum = torch.stft(
                audio, self.window, self.window // 4, window=self.get_buffer("shape"), return_complex=True,
                pad_mode="constant", normalized=True,
            )  # fmt: skip
        x = torch.stack((spectrum.real, spectrum.imag), 1).transpose(2, 3)  # [batch, 2, frames, bins]
        x = x.contiguous(memory_format=torch.channels_last)
        seen = []
        for conv in self.convs[:-1]:
            x = F.leaky_relu(conv(x), 0.1)
            seen.append(x)
        seen.append(self.convs[-1](x))
        return seen


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(SpectrumDiscriminator(window) for window in DISCRIMINATOR_WINDOWS)

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        return [one(audio) for one in self.each]

    def loss(self, made: Tensor, real: Tensor) -> Tensor:
        """What the discriminators minimize; `made` is detached audio."""
        total = made.new_zeros(())
        for seen in self(torch.cat((made, real))):
            fake, true = seen[-1].float().chunk(2)
            total = total + (fake**2).mean() + ((1 - true) ** 2).mean()
        return total / len(self.each)

    def generator_loss(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """What the codec minimizes: to be judged real, and to excite the layers as the real audio does."""
        fooled, features = made.new_zeros(()), made.new_zeros(())
        with torch.no_grad():
            wanted = self(real)
        for seen, true in zip(self(made), wanted, strict=True):
            fooled = fooled + ((1 - seen[-1].float()) ** 2).mean()
            for a, b in zip(seen[:-1], true[:-1], strict=True):
                features = features + (a.float() - b.float()).abs().mean() / b.float().abs().mean().clamp(min=1e-3)
        return fooled / len(self.each), features / len(self.each)
