"""Losses of the audio codec: mel spectrograms of its audio and of its latents, and discriminators."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tools.voice.dataset import RATE

MEL_WINDOWS = (64, 128, 256, 512, 1024, 2048)
DISCRIMINATOR_WINDOWS = (2048, 1024, 512, 256)
CHANNELS, TOY_CHANNELS = 32, 4  # of a discriminator of spectra
PERIODS = (2, 3, 5, 7, 11)
PERIOD_CHANNELS, TOY_PERIOD_CHANNELS = (16, 32, 64, 128, 128), (4, 4, 4, 4, 4)


def mel_filters(bands: int, window: int) -> Tensor:
    """Triangular filters, evenly spaced on the mel scale up to half the sample rate: [window / 2 + 1, bands]."""
    top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, window // 2 + 1)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rise, fall).clamp(min=0)
    return filters / filters.sum(0).clamp(min=1e-3)


class MelLoss(nn.Module):
    """Mean absolute difference of log mel spectra, over several window lengths, for each row of a batch."""

    def __init__(self) -> None:
        super().__init__()
        for window in MEL_WINDOWS:
            self.register_buffer(f"window{window}", torch.hann_window(window))
            self.register_buffer(f"filters{window}", mel_filters(min(5 * window // 32, 160), window))

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """The loss [batch] of made and real, [batch, samples]."""
        both = torch.cat((made, real))
        loss = both.new_zeros(len(made))
        for window in MEL_WINDOWS:
            shape = self.get_buffer(f"window{window}")
            spectrum = torch.stft(both, window, window // 4, window=shape, return_complex=True, pad_mode="constant")
            power = spectrum.real**2 + spectrum.imag**2
            size = (power + 1e-9).sqrt().transpose(1, 2) @ self.get_buffer(f"filters{window}")
            a, b = size.clamp(min=1e-4).log10().chunk(2)
            loss = loss + (a - b).abs().mean((1, 2))
        return loss / len(MEL_WINDOWS)


class ComponentLoss(nn.Module):
    """The distance of latents from principal components of the log mel spectrogram of their own time.

    The components have unit deviation; `fit` computes them. The loss trains the encoder alone. With the decoder's loss
    alone, the encoder learns the first few components and hardly any of the others, which distinguish words.
    """

    WINDOW, HOP, BANDS = 768, 240, 80
    LEAST = 1e-4  # least variance, over the first component's; smaller components are noise and not scaled up further

    def __init__(self, latent: int, samples: int) -> None:
        """latent: components. samples: of a latent frame, a multiple of HOP."""
        super().__init__()
        self.columns = samples // self.HOP
        size = self.columns * self.BANDS
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.register_buffer("filters", mel_filters(self.BANDS, self.WINDOW))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("basis", torch.zeros(size, latent))
        self.register_buffer(
            "share", torch.zeros(latent)
        )  # of each component in the loss: larger components count more

    def patches(self, audio: Tensor) -> Tensor:
        """The part of the spectrogram in each latent frame: [batch, samples] to [batch, frames, columns * BANDS]."""
        shape = self.get_buffer("window")
        spectrum = torch.stft(audio, self.WINDOW, self.HOP, window=shape, return_complex=True, pad_mode="constant")
        mel = (spectrum.abs().transpose(1, 2) @ self.get_buffer("filters")).clamp(min=1e-4).log10()
        frames = audio.shape[1] // (self.columns * self.HOP)
        return mel[:, : frames * self.columns].unflatten(1, (frames, self.columns)).flatten(2)

    def fit(self, patches: Tensor) -> None:
        """Compute the components. patches: [frames, columns * BANDS], with many more frames than components."""
        mean, basis, share = (self.get_buffer(name) for name in ("mean", "basis", "share"))
        mean.copy_(patches.mean(0))
        variance, directions = torch.linalg.eigh(torch.cov(patches.T.double().cpu()))
        variance, directions = variance.flip(0)[: len(share)], directions.flip(1)[:, : len(share)]
        variance = variance.clamp(min=self.LEAST * float(variance[0]))
        basis.copy_(directions / variance.sqrt())
        share.copy_(variance.sqrt() / variance.sqrt().sum())

    def forward(self, latents: Tensor, real: Tensor) -> Tensor:
        """The mean square distance. latents: [batch, latent, frames], real: [batch, samples]."""
        with torch.no_grad():
            wanted = (self.patches(real) - self.get_buffer("mean")) @ self.get_buffer("basis")
        distance = (latents.transpose(1, 2) - wanted) ** 2
        return (distance.mean((0, 1)) * self.get_buffer("share")).sum()


class SpectrumDiscriminator(nn.Module):
    """Rates patches of a complex spectrum. Returns the activations of every layer; the last one is the rating."""

    def __init__(self, window: int, channels: int) -> None:
        super().__init__()
        self.window, c = window, channels
        self.register_buffer("shape", torch.hann_window(window))
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
        """audio: [batch, samples]."""
        with torch.autocast(audio.device.type, enabled=False):
            spectrum = torch.stft(
                audio, self.window, self.window // 4, window=self.get_buffer("shape"), return_complex=True,
                pad_mode="constant", normalized=True,
            )  # fmt: skip
        x = torch.stack((spectrum.real, spectrum.imag), 1).transpose(2, 3)  # [batch, 2, frames, bins]
        x = x.contiguous(memory_format=torch.channels_last)
        layers = []
        for conv in self.convs[:-1]:
            x = F.leaky_relu(conv(x), 0.1)
            layers.append(x)
        layers.append(self.convs[-1](x))
        return layers


class PeriodDiscriminator(nn.Module):
    """Rates samples that are a multiple of a period apart, which shows a wrong fine structure of voiced sounds."""

    def __init__(self, period: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.period = period
        pairs = zip((1, *channels), channels, strict=False)
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in pairs)
        self.convs.append(weight_norm(nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0))))

    def forward(self, audio: Tensor) -> list[Tensor]:
        """audio: [batch, samples]."""
        x = F.pad(audio, (0, -audio.shape[1] % self.period)).unflatten(1, (-1, self.period))[:, None]
        layers = []
        for conv in self.convs[:-1]:
            x = F.leaky_relu(conv(x), 0.1)
            layers.append(x)
        layers.append(self.convs[-1](x))
        return layers


class Discriminators(nn.Module):
    """A discriminator for each window of DISCRIMINATOR_WINDOWS, and for each period of PERIODS.

    toy: few channels, for tests
    """

    def __init__(self, toy: bool = False) -> None:
        super().__init__()
        channels, period_channels = (TOY_CHANNELS, TOY_PERIOD_CHANNELS) if toy else (CHANNELS, PERIOD_CHANNELS)
        self.each = nn.ModuleList(
            [
                *(SpectrumDiscriminator(window, channels) for window in DISCRIMINATOR_WINDOWS),
                *(PeriodDiscriminator(period, period_channels) for period in PERIODS),
            ]
        )

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        return [one(audio) for one in self.each]

    def loss(self, made: Tensor, real: Tensor) -> Tensor:
        """The loss of the discriminators. made: detached audio of the codec."""
        total = made.new_zeros(())
        for layers in self(torch.cat((made, real))):
            fake, true = layers[-1].float().chunk(2)
            total = total + (fake**2).mean() + ((1 - true) ** 2).mean()
        return total / len(self.each)

    def generator_loss(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of the codec: of the ratings, and of the difference in activations to the real audio."""
        adversarial, features = made.new_zeros(()), made.new_zeros(())
        with torch.no_grad():
            wanted = self(real)
        for layers, true in zip(self(made), wanted, strict=True):
            adversarial = adversarial + ((1 - layers[-1].float()) ** 2).mean()
            for a, b in zip(layers[:-1], true[:-1], strict=True):
                features = features + (a.float() - b.float()).abs().mean() / b.float().abs().mean().clamp(min=1e-3)
        return adversarial / len(self.each), features / len(self.each)
