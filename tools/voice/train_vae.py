"""Train the audio codec of the bundled voice on speech, which may still be incomplete.

    python -m tools.voice.train_vae SPEECH OUT --seconds 300
    python -m tools.voice.train_vae SPEECH OUT --seconds 300 --start CODEC
    python -m tools.voice.train_vae SPEECH OUT --seconds 600 --start CODEC --predicted PREDICTED --latents LATENTS

The second command trains the decoder of a finished codec, or of a checkpoint's, further. The encoder, and so the
latents that a model has learned, do not change. With --whole it trains the encoder too, for a model that is trained
further as well. The third command trains the decoder also on latents that the model predicted for known speech.

A command writes OUT/audiovae.safetensors, whose latents have unit deviation in every channel, and OUT/codec.json, its
configuration. A later call continues from OUT/state.pt, or from OUT/brief.pt, which is smaller: it holds half precision
and no state of the optimizers. Training adds noise to the latents, so that the decoder tolerates the errors of the
model that predicts them.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.voice import pace, quick_codec
from tools.voice.codec_losses import ComponentLoss, Discriminators, MelLoss
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Speech
from tools.voice.encode import load
from tools.voice.muon import Muon
from tools.voice.pace import Budget, Graphed, add_times, budget, rate
from tools.voice.predicted import PredictedCrops, load_predicted
from tools.voice.quick_codec import CONFIG, WEIGHTS
from tools.voice.shapes import codec_config
from tools.voice.start import DISCRIMINATORS, codec_of, halved, helper_of

NOISE = 0.25  # highest noise of latents, over the deviation of a channel
MEL, COMPONENTS, ADVERSARIAL, FEATURES, SPREAD = 15.0, 15.0, 1.0, 2.0, 0.05  # weights of the losses
PREDICTED_MEL = 0.3  # weight of the mel loss of audio from predicted latents, over MEL: its details differ
FIT_BATCHES = 64  # batches of speech from which the principal components are computed
EMA = 0.999
WARMUP, DECAY_FROM = 100, 0.4
LEAD = 300  # steps in which new discriminators learn alone beside a trained decoder
RATE_FIRST, RATE_LATER = 1e-3, 5e-4  # highest learning rates of a first training and of a later one
DECAY = 0.01  # of weights, per unit of learning rate
SAVE_EVERY = 60.0  # seconds


class Trainer:
    """The codec, its discriminators, its averaged weights and its optimizers.

    start: the tensors of a finished codec, of which only the decoder is trained unless `whole` is set. predicted: crops
    whose latents the decoder gets besides those of the encoder. peak: highest learning rate. alone: share of the time
    before the discriminators join. lead: steps after it in which they learn and the codec does not. half: bfloat16 in
    the convolutions. lean: for a CPU: compiled, and only matrices are trained, which have 99 % of the parameters and
    need a fifth of the time for gradients. toy: small discriminators.
    """

    def __init__(
        self, config: dict[str, Any], crops: Crops, device: torch.device, *, start: dict[str, Tensor] | None = None,
        whole: bool = False, predicted: PredictedCrops | None = None, peak: float, alone: float, lead: int = 0,
        half: bool = False, adamw: bool = False, lean: bool = False, toy: bool = False,
    ) -> None:  # fmt: skip
        self.config, self.crops, self.predicted, self.device = config, crops, predicted, device
        self.kept = None if whole else start  # tensors whose encoder does not change
        self.peak, self.alone, self.lead, self.half = peak, alone, lead, half
        self.codec = quick_codec.build(config, start).to(device)
        self.discriminators = Discriminators(toy).to(device)
        self.discriminators.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.mel = MelLoss().to(device)
        rows = 0 if predicted is None else len(predicted.audio)
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
        self.last[4].copy_(self.judge(made[:, 0], self.real()))

    def step(self, adversarial_losses: bool) -> None:
        made, latents, spread = self.reconstruct(self.crops.batch)
        made, real = made[:, 0], self.real()
        mel = self.mel(made, real)
        loss = MEL * (mel * self.mel_weight).mean() + SPREAD * spread
        if self.kept is None:
            components = self.components(latents, real)
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


def save(trainer: Trainer, spent: float, out: Path) -> None:
    """Write each file, completely or not at all. A codec whose encoder does not change is a finished one each time."""
    torch.save(trainer.state() | {"spent": spent}, out / "state.tmp")
    (out / "state.tmp").replace(out / "state.pt")
    torch.save(trainer.brief() | {"spent": spent}, out / "brief.tmp")
    (out / "brief.tmp").replace(out / "brief.pt")
    save_file(trainer.finished(), out / "audiovae.tmp")
    (out / "audiovae.tmp").replace(out / WEIGHTS)
    if trainer.kept is not None:
        save_config(trainer.config, out)


def save_config(config: dict[str, Any], out: Path) -> None:
    (out / "codec.tmp").write_text(json.dumps(config, indent=1) + "\n")
    (out / "codec.tmp").replace(out / CONFIG)


def validate(codec: Any, audio: Tensor, mel: MelLoss) -> float:
    """The mel loss of speech through latents without noise."""
    with torch.no_grad():
        audio = F.pad(audio, (0, -audio.shape[-1] % codec.chunk_size))
        return float(mel(codec.decode(codec.encode(audio[None, None], RATE))[0], audio[None]).mean())


def run(trainer: Trainer, budget: Budget, out: Path, log: Callable[[str], None]) -> None:
    """Train until the budget, or this part of it, is used up."""
    refreshed, shown, steps_then, time_then = time.monotonic(), 0, trainer.steps, time.monotonic()
    saved = budget.spent
    while not budget.over:
        trainer.train(budget.progress)
        if trainer.steps % 10 == 0 and trainer.device.type == "cuda":
            torch.cuda.synchronize()  # the learning rate follows the clock, so the queue must stay short
        now = time.monotonic()
        if now - refreshed > 8 and not trainer.crops.speech.complete:
            trainer.crops.refresh()
            refreshed = time.monotonic()
        if trainer.steps == 20 or budget.spent - shown > 10:
            mel, components, adversarial, features, discriminators, predicted_mel = trainer.last.tolist()
            if not math.isfinite(mel + predicted_mel):
                raise SystemExit("the loss is not finite; train again at a lower --rate")
            took = (time.monotonic() - time_then) / max(1, trainer.steps - steps_then) * 1000
            hours = len(trainer.crops.audio) / RATE / 3600
            log(
                f"codec {budget.spent:.0f} s, step {trainer.steps} ({took:.1f} ms), {hours:.1f} h: mel {mel:.4f}, "
                f"of predicted {predicted_mel:.4f}, components {components:.4f}, adversarial {adversarial:.3f}, "
                f"features {features:.3f}, discriminators {discriminators:.3f}"
            )
            shown, steps_then, time_then = budget.spent, trainer.steps, time.monotonic()
        if budget.spent - saved > SAVE_EVERY:
            save(trainer, budget.spent, out)
            saved = budget.spent
    save(trainer, budget.spent, out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder written by tools.voice.speak, complete or not")
    parser.add_argument("out", type=Path, help="folder to write")
    add_times(parser, 300)
    parser.add_argument("--start", type=Path, help="finished codec or checkpoint whose decoder to train")
    parser.add_argument("--whole", action="store_true", help="with --start, train the encoder too")
    parser.add_argument("--predicted", type=Path, help="with --start, folder written by tools.voice.predict")
    parser.add_argument("--latents", type=Path, help="with --predicted, folder written by tools.voice.encode")
    parser.add_argument("--predicted-share", type=float, default=0.5, help="share of the crops from predicted latents")
    parser.add_argument(
        "--alone", type=float, default=0.75, help="share of the time before discriminators join; 1: never"
    )
    parser.add_argument(
        "--lead", type=int,
        help=f"then steps of the discriminators alone; default {LEAD} after --start, unless it has discriminators",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=24, help="crops in a batch")
    parser.add_argument("--crop", type=float, default=1.0, help="seconds of a crop, rounded to whole latents")
    parser.add_argument("--adamw", action="store_true", help="use AdamW for the matrices too, instead of Muon")
    parser.add_argument(
        "--rate", type=float, help=f"highest learning rate; default {RATE_FIRST:g}, after --start {RATE_LATER:g}"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--full-precision", action="store_true", help="use no bfloat16 in the convolutions of the codec"
    )
    parser.add_argument("--plain", action="store_true", help="use no kernels of this recipe")
    parser.add_argument("--eager", action="store_true", help="use no CUDA graphs")
    parser.add_argument("--lean", action="store_true", help="for a CPU: compile, and train matrices only")
    parser.add_argument("--toy", action="store_true", help="train a small codec with small discriminators, for tests")
    args = parser.parse_args()
    if args.predicted and (not (args.start and args.latents) or args.whole or args.batch < 2):
        parser.error("--predicted needs --start without --whole, --latents, and a --batch of at least 2")
    return args


def pairs_of(args: argparse.Namespace, crops: Crops, rows: int, samples: int) -> PredictedCrops | None:
    """The crops of --predicted, if it is given. rows: of a batch. samples: of a latent."""
    if not args.predicted:
        return None
    return PredictedCrops(crops, load(args.latents), load_predicted(args.predicted), rows, samples)


def new_trainer(args: argparse.Namespace, device: torch.device) -> Trainer:
    """The trainer of the arguments, before the first step. Waits for the first speech."""
    config, start = codec_of(args.start) if args.start else (codec_config(args.toy), None)
    while not (args.speech / "speech.json").exists():
        time.sleep(0.5)
    samples = math.prod(config["encoder_rates"])  # of a latent
    crop = max(1, round(args.crop * RATE / samples)) * samples
    rows = min(max(1, round(args.predicted_share * args.batch)), args.batch - 1) if args.predicted else 0
    crops = Crops(Speech(args.speech), args.batch - rows, crop, device, args.seed)
    discriminators = helper_of(args.start, DISCRIMINATORS) if args.start else None
    trainer = Trainer(
        config,
        crops,
        device,
        start=start,
        whole=args.whole,
        predicted=pairs_of(args, crops, rows, samples),
        peak=args.rate or (RATE_LATER if args.start else RATE_FIRST),
        alone=args.alone,
        lead=args.lead if args.lead is not None else LEAD * (start is not None and discriminators is None),
        half=device.type == "cuda" and not args.full_precision,
        adamw=args.adamw,
        lean=args.lean,
        toy=args.toy,
    )
    if discriminators is not None:
        trainer.discriminators.load_state_dict(discriminators)
    return trainer


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    quick_codec.kernels_allowed, pace.graphs_allowed = not args.plain, not args.eager
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = new_trainer(args, device)
    state, spent = args.out / "state.pt", 0.0
    if not state.exists():
        state = args.out / "brief.pt"
    some = trainer.crops.audio[: 20 * RATE].float() / 32768
    if state.exists():
        saved = torch.load(state, map_location="cpu", weights_only=True)
        trainer.load(saved)
        spent = saved["spent"]
        print(f"continuing after {trainer.steps} steps, {spent:.0f} s", flush=True)
    elif args.start:
        print(f"{args.start}: mel {validate(trainer.codec, some, trainer.mel):.4f} without noise", flush=True)
    run(trainer, budget(args, spent), args.out, lambda line: print(line, flush=True))
    save_config(trainer.config, args.out)
    codec = quick_codec.build(trainer.config, load_file(args.out / WEIGHTS)).to(device)
    loss = validate(codec, some, trainer.mel)
    size = (args.out / WEIGHTS).stat().st_size
    print(f"codec done: {trainer.steps} steps, mel {loss:.4f} without noise, {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
