"""Train the audio codec of the bundled voice on speech that may still be in the making.

    python -m tools.voice.train_vae SPEECH OUT --seconds 300

Writes OUT/audiovae.safetensors, whose latents have unit deviation in every channel, and OUT/codec.json, its
configuration. OUT/state.pt lets a stopped run go on. Latents carry noise while training, so that the decoder forgives
the errors of the model that will predict them.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.voice import pace, quick_codec
from tools.voice.codec_losses import Discriminators, MelLoss
from tools.voice.dataset import RATE, Speech
from tools.voice.pace import Budget, Graphed, rate
from tools.voice.shapes import codec_config

NOISE = 0.25  # of the deviation of a channel: the noise of the noisiest latents
MEL, ADVERSARY, FEATURES, SPREAD = 15.0, 1.0, 2.0, 0.05  # weights of the losses
EMA = 0.999
WARMUP, DECAY_FROM = 100, 0.4
CONFIG = "codec.json"  # of what a run leaves, the file that is written last
ALONE = 0.15  # of the time before the discriminators join


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


class Trainer:
    def __init__(self, config: dict[str, Any], crops: Crops, device: torch.device, peak: float, half: bool) -> None:
        self.device, self.peak, self.half, self.crops = device, peak, half, crops
        self.codec = quick_codec.build(config).to(device)
        self.judges = Discriminators().to(device)
        self.judges.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.mel = MelLoss().to(device)
        self.mean = {k: v.detach().clone() for k, v in self.codec.state_dict().items()}
        fast = {"fused": True, "capturable": True} if device.type == "cuda" else {}
        self.rate = torch.tensor(0.0, device=device)
        self.weights = [p for name, p in self.codec.named_parameters() if "fc_logvar" not in name]
        self.codec_step = torch.optim.AdamW(self.weights, lr=self.rate, betas=(0.8, 0.99), weight_decay=0.01, **fast)
        self.judge_step = torch.optim.AdamW(
            self.judges.parameters(), lr=self.rate, betas=(0.8, 0.99), weight_decay=0.01, **fast
        )
        self.seen = torch.zeros(4, device=device)  # mel, fooled, features, judges: of the last step
        self.alone = Graphed(lambda: self.step(False), self.reset, device)
        self.against = Graphed(lambda: self.step(True), self.reset, device)
        self.steps = 0

    def reset(self) -> None:
        self.codec_step.zero_grad(set_to_none=True)
        self.judge_step.zero_grad(set_to_none=True)

    def encode(self, audio: Tensor) -> Tensor:
        return self.codec.encoder.fc_mu(self.codec.encoder.block(audio))

    def reconstruct(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Audio through noisy latents, and the loss that keeps latents near mean 0 and deviation 1."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            latents = self.encode(audio).float()
            deviation, mean = torch.std_mean(latents, dim=(0, 2), keepdim=True)
            spread = (mean**2 + (deviation - 1) ** 2).mean()
            loud = NOISE * torch.rand(len(latents), 1, 1, device=self.device)
            noisy = latents + loud * deviation.detach() * torch.randn_like(latents)
            layers = list(self.codec.decoder.model)
            x = noisy
            for layer in layers[:-2]:
                x = layer(x)
        x = layers[-1](layers[-2](x.float()))  # the last convolution makes the samples: full precision
        return x, spread

    def step(self, adversary: bool) -> None:
        real = self.crops.batch[:, 0]
        made, spread = self.reconstruct(self.crops.batch)
        made = made[:, 0]
        mel = self.mel(made, real)
        loss = MEL * mel + SPREAD * spread
        if adversary:
            with torch.autocast(self.device.type, torch.bfloat16):
                judged = self.judges.loss(made.detach(), real)
            judged.backward()
            nn.utils.clip_grad_norm_(self.judges.parameters(), 10.0, foreach=True)
            self.judge_step.step()
            self.judges.requires_grad_(False)
            with torch.autocast(self.device.type, torch.bfloat16):
                fooled, features = self.judges.generator_loss(made, real)
            self.judges.requires_grad_(True)
            loss = loss + ADVERSARY * fooled + FEATURES * features
            self.seen[1:].copy_(torch.stack((fooled, features, judged)).detach())
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.codec_step.step()
        with torch.no_grad():
            names, mine = zip(*self.codec.named_parameters(), strict=True)
            means = [self.mean[name] for name in names]
            torch._foreach_lerp_(means, list[Tensor](mine), 1 - EMA)  # pyright: ignore[reportPrivateImportUsage]
        self.seen[0].copy_(mel.detach())

    def train(self, progress: float) -> None:
        """One step at this point of the run."""
        self.crops.draw()
        self.rate.fill_(rate(progress, self.steps, peak=self.peak, warmup=WARMUP, decay_from=DECAY_FROM))
        (self.alone if progress < ALONE else self.against)()
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "codec": self.codec.state_dict(),
            "mean": self.mean,
            "judges": self.judges.state_dict(),
            "codec_step": self.codec_step.state_dict(),
            "judge_step": self.judge_step.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.codec.load_state_dict(state["codec"])
        self.mean = {k: v.to(self.device) for k, v in state["mean"].items()}
        self.judges.load_state_dict(state["judges"])
        for optimizer, key in ((self.codec_step, "codec_step"), (self.judge_step, "judge_step")):
            optimizer.load_state_dict(state[key])
            for group in optimizer.param_groups:
                group["lr"] = self.rate


def finished(trainer: Trainer, config: dict[str, Any], batches: int = 16) -> dict[str, Tensor]:
    """The averaged weights in half precision, scaled so that latents of speech have unit deviation per channel."""
    codec = quick_codec.build(config).to(trainer.device)
    codec.load_state_dict(trainer.mean)
    trainer.codec = codec  # whose encode() now measures the averaged weights
    with torch.no_grad():
        draws: list[Tensor] = []
        for _ in range(batches):
            trainer.crops.draw()
            draws.append(trainer.encode(trainer.crops.batch))
        deviation, mean = torch.std_mean(torch.cat(draws), dim=(0, 2))
    low, high, shift = float(deviation.min()), float(deviation.max()), float(mean.abs().max())
    print(f"latents had deviations {low:.2f} to {high:.2f}, means up to {shift:.2f}", flush=True)
    tensors = {name: tensor.clone() for name, tensor in codec.state_dict().items() if "fc_logvar" not in name}
    tensors["encoder.fc_mu.weight_g"] /= deviation[:, None, None]
    tensors["encoder.fc_mu.bias"] /= deviation
    tensors["decoder.model.0.weight_g"] *= deviation[:, None, None]
    return {name: tensor.to(torch.float16).cpu().contiguous() for name, tensor in tensors.items()}


def validate(codec: Any, audio: Tensor, mel: MelLoss) -> float:
    """Mel loss of whole speech through noiseless latents."""
    with torch.no_grad():
        audio = F.pad(audio, (0, -audio.shape[-1] % codec.chunk_size))
        return float(mel(codec.decode(codec.encode(audio[None, None], RATE))[0], audio[None]))


def run(trainer: Trainer, budget: Budget, log: Callable[[str], None]) -> None:
    """Train until the budget, or this part of it, is used up."""
    refreshed, shown, steps_then, time_then = time.monotonic(), 0, trainer.steps, time.monotonic()
    while not budget.over:
        trainer.train(budget.progress)
        if trainer.steps % 10 == 0 and trainer.device.type == "cuda":
            torch.cuda.synchronize()  # the clock governs the rate, so the queue must stay short
        now = time.monotonic()
        if now - refreshed > 8 and not trainer.crops.speech.complete:
            trainer.crops.refresh()
            refreshed = time.monotonic()
        if trainer.steps == 20 or budget.spent - shown > 10:
            mel, fooled, features, judged = trainer.seen.tolist()
            if not math.isfinite(mel):
                raise SystemExit("the loss is not finite; train again at a lower --rate")
            took = (time.monotonic() - time_then) / max(1, trainer.steps - steps_then) * 1000
            hours = len(trainer.crops.audio) / RATE / 3600
            log(
                f"codec {budget.spent:.0f} s, step {trainer.steps} ({took:.1f} ms), {hours:.1f} h: mel {mel:.4f}, "
                f"fooled {fooled:.3f}, features {features:.3f}, judges {judged:.3f}"
            )
            shown, steps_then, time_then = budget.spent, trainer.steps, time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder written by tools.voice.speak, complete or not")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="training time, over all parts")
    parser.add_argument("--part", type=float, help="end this process after so many seconds, to be continued")
    parser.add_argument("--batch", type=int, default=24, help="crops of one second")
    parser.add_argument("--rate", type=float, default=6e-4, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full-precision", action="store_true", help="no bfloat16 in the codec's own convolutions")
    parser.add_argument("--plain", action="store_true", help="no kernels of our own")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--toy", action="store_true", help="a small codec, for tests")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    quick_codec.kernels_allowed, pace.graphs_allowed = not args.plain, not args.eager
    args.out.mkdir(parents=True, exist_ok=True)
    config = codec_config(args.toy)
    while not (args.speech / "speech.json").exists():
        time.sleep(0.5)
    crops = Crops(Speech(args.speech), args.batch, RATE, device, args.seed)
    trainer = Trainer(config, crops, device, args.rate, half=gpu and not args.full_precision)
    state, spent = args.out / "state.pt", 0.0
    if state.exists():
        saved = torch.load(state, map_location="cpu", weights_only=True)
        trainer.load(saved)
        spent = saved["spent"]
        print(f"going on after {trainer.steps} steps, {spent:.0f} s", flush=True)
    budget = Budget(args.seconds, spent, args.part)
    run(trainer, budget, lambda line: print(line, flush=True))
    torch.save(trainer.state() | {"spent": budget.spent}, state)

    tensors = finished(trainer, config)
    save_file(tensors, args.out / "audiovae.safetensors")
    (args.out / "codec.tmp").write_text(json.dumps(config, indent=1) + "\n")
    (args.out / "codec.tmp").replace(args.out / CONFIG)
    codec = quick_codec.build(config).to(device)
    codec.load_state_dict({k: v.to(device) for k, v in tensors.items()}, strict=False)
    heard = validate(codec, crops.audio[: 20 * RATE].float() / 32768, trainer.mel)
    size = (args.out / "audiovae.safetensors").stat().st_size
    print(f"codec done: {trainer.steps} steps, mel {heard:.4f} without noise, {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
