"""The training of the audio codec of the bundled voice, step by step: losses, discriminators, optimizers and state."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tools.voice import quick_codec
from tools.voice.codec_losses import ComponentLoss, Discriminators, MelLoss
from tools.voice.crops import Crops
from tools.voice.dataset import RATE
from tools.voice.muon import Muon
from tools.voice.pace import Graphed, rate
from tools.voice.predicted import PredictedCrops
from tools.voice.start import DISCRIMINATORS, halved

NOISE = 0.25  # highest noise of latents, over the deviation of a channel
MEL, COMPONENTS, ADVERSARIAL, FEATURES, SPREAD = 15.0, 15.0, 1.0, 2.0, 0.05  # weights of the losses
PREDICTED_MEL = 0.3  # weight of the mel loss of audio from predicted latents, over MEL: its details differ
FIT_BATCHES = 64  # batches of speech from which the principal components are computed
EMA = 0.999
WARMUP, DECAY_FROM = 100, 0.4
DECAY = 0.01  # of weights, per unit of learning rate


class Trainer:
    """The codec, its discriminators, its averaged weights and its optimizers.

    start: the tensors of a finished codec, of which only the decoder is trained unless `whole` is set. predicted: crops
    whose latents the decoder gets besides those of the encoder. context: samples of a crop before the part that losses
    judge. peak: highest learning rate. alone: share of the time before the discriminators join. lead: steps after it in
    which they learn and the codec does not. half: bfloat16 in the convolutions. lean: for a CPU: compiled, and only
    matrices are trained, which have 99 % of the parameters and need a fifth of the time for gradients. toy: small
    discriminators.
    """

    def __init__(
        self, config: dict[str, Any], crops: Crops, device: torch.device, *, start: dict[str, Tensor] | None = None,
        whole: bool = False, predicted: PredictedCrops | None = None, context: int = 0, peak: float, alone: float,
        lead: int = 0, half: bool = False, adamw: bool = False, lean: bool = False, toy: bool = False,
    ) -> None:  # fmt: skip
        self.config, self.crops, self.predicted, self.device = config, crops, predicted, device
        self.kept = None if whole else start  # tensors whose encoder does not change
        self.peak, self.alone, self.lead, self.half = peak, alone, lead, half
        self.codec = quick_codec.build(config, start).to(device)
        self.discriminators = Discriminators(toy).to(device)
        self.discriminators.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.mel = MelLoss().to(device)
        rows = 0 if predicted is None else len(predicted.audio)
        self.first_judged = torch.full((len(crops.batch),), context, device=device)  # sample of each row
        self.judged_samples = torch.arange(crops.samples - context, device=device)
        self.mel_weight = torch.ones(len(crops.batch) + rows, device=device)  # of each row
        self.mel_weight[len(crops.batch) :] = PREDICTED_MEL
        self.components = ComponentLoss(config["latent_dim"], math.prod(config["encoder_rates"])).to(device)
        if self.kept is None:
            drawn = [self.components.patches(audio).flatten(0, 1) for audio in self.draws(FIT_BATCHES)]
            self.components.fit(torch.cat(drawn))
        self.mean = {name: p.detach().clone() for name, p in self.codec.named_parameters()}
        for name, p in self.codec.named_parameters():
            fixed = self.kept is not None and not name.startswith("decoder.")
            p.requires_grad_(not (fixed or quick_codec.UNUSED in name or (lean and not is_matrix(p))))
        self.weights = [p for p in self.codec.parameters() if p.requires_grad]
        matrices = [p for p in self.codec.parameters() if p.requires_grad and is_matrix(p) and not adamw]
        mine = {id(p) for p in matrices}
        others = [p for p in self.weights if id(p) not in mine]
        self.rate = torch.tensor(0.0, device=device)
        self.muon = Muon(matrices, self.rate, decay=DECAY)
        self.adam, self.discriminator_adam = self.adamw(others), self.adamw(list(self.discriminators.parameters()))
        # Losses of the last step: mel, components, adversarial, features, discriminators, mel of predicted latents.
        self.last = torch.zeros(6, device=device)
        self.lead_step = Graphed(self.discriminate, self.reset, device)
        self.plain_step = Graphed(lambda: self.step(False), self.reset, device)
        self.adversarial_step = Graphed(lambda: self.step(True), self.reset, device)
        if lean:
            self.encode = torch.compile(self.encode, dynamic=False)
            self.decode = torch.compile(self.decode, dynamic=False)
        self.steps = self.warmed_up_from = 0

    def adamw(self, weights: list[nn.Parameter]) -> torch.optim.AdamW:
        fast = {"fused": True, "capturable": True} if self.device.type == "cuda" else {}
        groups = [{"params": weights}]  # a group, because the list may be empty
        return torch.optim.AdamW(groups, lr=self.rate, betas=(0.8, 0.99), weight_decay=DECAY, **fast)

    def draws(self, batches: int) -> Iterator[Tensor]:
        """Yield batches of speech, [batch, samples]. Each overwrites the one before."""
        for _ in range(batches):
            self.crops.draw()
            yield self.crops.batch[:, 0]

    def reset(self) -> None:
        for p in (*self.weights, *self.discriminators.parameters()):
            p.grad = None

    def encode(self, audio: Tensor) -> Tensor:
        return self.codec.encoder.fc_mu(self.codec.encoder.block(audio))

    def decode(self, latents: Tensor) -> Tensor:
        layers, x = list(self.codec.decoder.model), latents
        for layer in layers[:-2]:
            x = layer(x)
        with torch.autocast(self.device.type, enabled=False):
            return layers[-1](layers[-2](x.float()))  # full precision, because the last convolution makes the samples

    def reconstruct(self, audio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The audio from noisy latents, the latents without noise, and the loss for mean 0 and deviation 1 of these.

        Audio from predicted latents follows in the batch.
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            with torch.set_grad_enabled(self.kept is None):
                latents = self.encode(audio).float()
            deviation, mean = torch.std_mean(latents, dim=(0, 2), keepdim=True)
            spread = (mean**2 + (deviation - 1) ** 2).mean()
            amount = NOISE * torch.rand(len(latents), 1, 1, device=self.device)
            noisy = latents + amount * deviation.detach() * torch.randn_like(latents)
            if self.predicted is not None:
                noisy = torch.cat((noisy, self.predicted.latents))
            return self.decode(noisy), latents, spread

    def real(self) -> Tensor:
        """The audio that `reconstruct` is to make, [batch, samples]."""
        encoded = self.crops.batch[:, 0]
        return encoded if self.predicted is None else torch.cat((encoded, self.predicted.audio))

    def judged(self, audio: Tensor) -> Tensor:
        """The part of each row that losses judge. audio: [batch, samples]."""
        if len(self.judged_samples) == audio.shape[1]:
            return audio
        first = self.first_judged
        if self.predicted is not None:
            first = torch.cat((first, self.predicted.first_judged))
        return audio.gather(1, first[:, None] + self.judged_samples)

    def judge(self, made: Tensor, real: Tensor) -> Tensor:
        """Train the discriminators, and return their loss. made: detached."""
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.discriminators.loss(made, real)
        loss.backward()
        nn.utils.clip_grad_norm_(self.discriminators.parameters(), 10.0, foreach=True)
        self.discriminator_adam.step()
        return loss.detach()

    def discriminate(self) -> None:
        """A step of the discriminators alone."""
        with torch.no_grad():
            made, _, _ = self.reconstruct(self.crops.batch)
        self.last[4].copy_(self.judge(self.judged(made[:, 0]), self.judged(self.real())))

    def step(self, adversarial_losses: bool) -> None:
        made, latents, spread = self.reconstruct(self.crops.batch)
        made, real = self.judged(made[:, 0]), self.judged(self.real())
        mel = self.mel(made, real)
        loss = MEL * (mel * self.mel_weight).mean() + SPREAD * spread
        if self.kept is None:
            components = self.components(latents, self.real())
            loss = loss + COMPONENTS * components
            self.last[1].copy_(components.detach())
        if adversarial_losses:
            discriminator_loss = self.judge(made.detach(), real)
            self.discriminators.requires_grad_(False)
            with torch.autocast(self.device.type, torch.bfloat16):
                adversarial, features = self.discriminators.generator_loss(made, real)
            self.discriminators.requires_grad_(True)
            loss = loss + ADVERSARIAL * adversarial + FEATURES * features
            self.last[2:5].copy_(torch.stack((adversarial, features, discriminator_loss)).detach())
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.adam.step()
        self.muon.step()
        with torch.no_grad():
            means, mine = list(self.mean.values()), list[Tensor](self.codec.parameters())
            torch._foreach_lerp_(means, mine, 1 - EMA)  # pyright: ignore[reportPrivateImportUsage]
        encoded = len(self.crops.batch)
        self.last[0].copy_(mel[:encoded].detach().mean())
        if self.predicted is not None:
            self.last[5].copy_(mel[encoded:].detach().mean())

    def train(self, progress: float) -> None:
        """One step. progress: share of the budget that is used."""
        self.crops.draw()
        if self.predicted is not None:
            self.predicted.draw()
        steps = self.steps - self.warmed_up_from
        self.rate.fill_(rate(progress, steps, peak=self.peak, warmup=WARMUP, decay_from=DECAY_FROM))
        if progress < self.alone:
            self.plain_step()
        elif self.lead:
            self.lead_step()
            self.lead -= 1
            self.warmed_up_from = self.steps + 1  # the codec's own first step is the next one
        else:
            self.adversarial_step()
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "lead": self.lead,
            "codec": self.codec.state_dict(),
            "mean": self.mean,
            DISCRIMINATORS: self.discriminators.state_dict(),
            "components": self.components.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.state_dict(),
            "discriminator_adam": self.discriminator_adam.state_dict(),
        }

    def brief(self) -> dict[str, Any]:
        """The state without the optimizers, in half precision. They start again when a run continues from it."""
        state = self.state()
        whole = {name: state[name] for name in ("steps", "lead", "components")}
        return whole | {name: halved(state[name]) for name in ("codec", "mean", DISCRIMINATORS)}

    def load(self, state: dict[str, Any]) -> None:
        self.steps, self.lead = state["steps"], state.get("lead", 0)
        self.codec.load_state_dict(state["codec"])
        self.mean = {k: v.to(self.device, torch.float32) for k, v in state["mean"].items()}
        self.discriminators.load_state_dict(state[DISCRIMINATORS])
        self.components.load_state_dict(state["components"])
        if "muon" not in state:
            self.warmed_up_from = self.steps
            return
        self.muon.load_state_dict(state["muon"])
        for optimizer, key in ((self.adam, "adam"), (self.discriminator_adam, "discriminator_adam")):
            optimizer.load_state_dict(state[key])
            for group in optimizer.param_groups:
                group["lr"] = self.rate

    def finished(self) -> dict[str, Tensor]:
        """The tensors of a file, from the averaged weights.

        An encoder that is not trained keeps its tensors exactly. A trained one is scaled so that the latents of speech
        have unit deviation in every channel.
        """
        if self.kept is not None:
            made = quick_codec.file_tensors(self.mean)
            return made | {name: self.kept[name] for name in made if name.startswith("encoder.")}
        weights = {name: weight.clone() for name, weight in self.mean.items()}
        deviation = self.deviation()
        weights["encoder.fc_mu.weight"] /= deviation[:, None, None]
        weights["encoder.fc_mu.bias"] /= deviation
        weights["decoder.model.0.weight"] *= deviation[:, None, None]
        return quick_codec.file_tensors(weights)

    def deviation(self, batches: int = 16) -> Tensor:
        """The deviation of the latents of speech with the averaged weights, for each channel."""
        codec = quick_codec.build(self.config).to(self.device)
        codec.load_state_dict(self.mean)
        with torch.no_grad():
            latents = torch.cat([codec.encode(audio[:, None], RATE) for audio in self.draws(batches)])
        deviation, mean = torch.std_mean(latents, dim=(0, 2))
        low, high, shift = float(deviation.min()), float(deviation.max()), float(mean.abs().max())
        print(f"latents had deviations {low:.2f} to {high:.2f}, means up to {shift:.2f}", flush=True)
        return deviation


def is_matrix(weight: Tensor) -> bool:
    """True for a parameter that mixes channels, and not for a bias, a slope or a filter of one channel."""
    return weight.ndim == 3 and min(weight.shape[:2]) > 1
