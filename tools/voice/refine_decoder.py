"""Train the decoder of a finished codec further on a CPU, while its latents stay what the model has learned.

    python -m tools.voice.refine_decoder SPEECH CODEC OUT --seconds 3600

CODEC is a folder of tools.voice.train_vae or a checkpoint; OUT gets what train_vae leaves, every few minutes. Only the
mel loss is used, and only the matrices move (99 % of the parameters, and a fifth of the gradients' cost on a CPU):
that makes speech clear, if not natural.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.voice import quick_codec
from tools.voice.codec_losses import MelLoss
from tools.voice.dataset import RATE, Speech
from tools.voice.pace import Budget, rate
from tools.voice.quick_codec import TAPS, plain_snake, pointwise, upsampling
from tools.voice.train_vae import CONFIG

NOISE = 0.15  # of the deviation of a channel: the noise of the noisiest latents
FRAMES, UNHEARD = 32, 6  # of a crop, and of its start, where the decoder lacks the past: no loss there
EMA = 0.998
WARMUP, DECAY_FROM = 50, 0.4
SHOW_EVERY, SAVE_EVERY = 30.0, 240.0  # seconds


def shifted(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """The causal depthwise convolution as a sum that a compiler fuses with its neighbours."""
    time, padded = x.shape[-1], F.pad(x, ((TAPS - 1) * dilation, 0))
    out = bias[:, None]
    for tap in range(TAPS):
        out = out + padded[..., tap * dilation : tap * dilation + time] * weight[:, 0, tap, None]
    return out


def folded(tensors: dict[str, Tensor], name: str) -> Tensor:
    """A weight from its magnitude and direction."""
    direction = tensors[f"{name}.weight_v"].float()
    norm = direction.flatten(1).norm(dim=1).view(-1, 1, 1)
    return tensors[f"{name}.weight_g"].float() * direction / norm


class Decoder(nn.Module):
    """The decoder of the official codec over folded weights. Names are those of the file without `decoder.`"""

    def __init__(self, tensors: dict[str, Tensor], rates: list[int]) -> None:
        super().__init__()
        self.rates = rates
        inner = {name.removeprefix("decoder."): t for name, t in tensors.items() if name.startswith("decoder.")}
        folds = {name.removesuffix("_v"): folded(inner, name[:-9]) for name in inner if name.endswith(".weight_v")}
        others = {name: t.float() for name, t in inner.items() if ".weight_" not in name}
        self.names = [*folds, *others]
        self.held = nn.ParameterDict({self.key(name): nn.Parameter(t) for name, t in (folds | others).items()})
        for name in self.names:
            weight = self[name]
            depthwise = weight.ndim == 3 and weight.shape[1:] == (1, TAPS)
            weight.requires_grad_(name in folds and not depthwise)

    @staticmethod
    def key(name: str) -> str:
        return name.replace(".", "_")

    def __getitem__(self, name: str) -> nn.Parameter:
        return self.held[self.key(name)]

    def conv(self, name: str) -> tuple[nn.Parameter, nn.Parameter]:
        return self[f"{name}.weight"], self[f"{name}.bias"]

    def forward(self, latents: Tensor) -> Tensor:
        """[batch, latent, frames] to [batch, samples]."""
        x = pointwise(shifted(latents, *self.conv("model.0"), 1), *self.conv("model.1"))
        for i, stride in enumerate(self.rates):
            block = f"model.{2 + i}.block"
            x = upsampling(plain_snake(x, self[f"{block}.0.alpha"]), *self.conv(f"{block}.1"), stride)
            for j, dilation in ((2, 1), (3, 3), (4, 9)):
                unit = f"{block}.{j}.block"
                y = shifted(plain_snake(x, self[f"{unit}.0.alpha"]), *self.conv(f"{unit}.1"), dilation)
                x = x + pointwise(plain_snake(y, self[f"{unit}.2.alpha"]), *self.conv(f"{unit}.3"))
        last = 2 + len(self.rates)
        x = plain_snake(x, self[f"model.{last}.alpha"])
        weight, bias = self.conv(f"model.{last + 1}")
        time, padded = x.shape[-1], F.pad(x, (TAPS - 1, 0))
        out = bias[:, None]
        for tap in range(TAPS):
            out = out + (padded[..., tap : tap + time] * weight[0, :, tap, None]).sum(1, keepdim=True)
        return torch.tanh(out)[:, 0]


def save(out: Path, config: dict[str, Any], tensors: dict[str, Tensor], mean: dict[str, Tensor]) -> None:
    """`mean`: the weights of a Decoder by name."""
    refined = dict(tensors)
    for name, tensor in mean.items():
        if name.endswith(".weight"):
            refined[f"decoder.{name}_v"] = tensor.half()
            refined[f"decoder.{name}_g"] = tensor.half().float().flatten(1).norm(dim=1).view(-1, 1, 1).half()
        else:
            refined[f"decoder.{name}"] = tensor.half()
    save_file({name: tensor.contiguous() for name, tensor in refined.items()}, out / "audiovae.tmp")
    (out / "audiovae.tmp").replace(out / "audiovae.safetensors")
    (out / CONFIG).write_text(json.dumps(config, indent=1) + "\n")


def encoded(speech: Speech, codec: Any) -> tuple[Tensor, Tensor]:
    """Latents [frames, latent] of all utterances, and their samples [frames * hop]."""
    latents, waves = [], []
    with torch.inference_mode():
        for spoken in speech:
            wave = torch.from_numpy(spoken.samples.astype(np.float32)) / 32768
            wave = F.pad(wave, (0, -len(wave) % codec.chunk_size))
            latents.append(codec.encode(wave[None, None], RATE)[0].t())
            waves.append(wave)
    return torch.cat(latents).clone(), torch.cat(waves).clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path, help="folder written by tools.voice.speak")
    parser.add_argument("codec", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--batch", type=int, default=4, help="crops of 1.28 seconds")
    parser.add_argument("--rate", type=float, default=6e-4, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    checkpoint = (args.codec / "config.json").exists()
    config = json.loads((args.codec / ("config.json" if checkpoint else CONFIG)).read_text())
    config = config["audio_vae_config"] if checkpoint else config
    tensors = load_file(args.codec / "audiovae.safetensors")
    codec = quick_codec.build(config)
    codec.load_state_dict(tensors, strict=False)  # without its unused deviation
    latents, waves = encoded(Speech(args.speech), codec)
    hop = codec.chunk_size
    print(f"{len(waves) / RATE / 3600:.2f} h of speech encoded", flush=True)

    decoder, mel = Decoder(tensors, config["decoder_rates"]), MelLoss()
    decode = torch.compile(decoder, dynamic=False)
    weights = [p for p in decoder.parameters() if p.requires_grad]
    mean = {name: decoder[name].detach().clone() for name in decoder.names}
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.8, 0.99), weight_decay=0.0)
    args.out.mkdir(parents=True, exist_ok=True)
    decode(torch.zeros(args.batch, latents.shape[1], FRAMES)).sum().backward()  # compile
    budget, step, shown, saved, total, since = Budget(args.seconds), 0, 0.0, 0.0, 0.0, 0
    while not budget.over:
        optimizer.param_groups[0]["lr"] = rate(
            budget.progress, step, peak=args.rate, warmup=WARMUP, decay_from=DECAY_FROM
        )
        start = torch.randint(len(latents) - FRAMES, (args.batch, 1))
        given = latents[start + torch.arange(FRAMES)].transpose(1, 2)
        wanted = waves[start * hop + torch.arange(FRAMES * hop)]
        noisy = given + NOISE * torch.rand(args.batch, 1, 1) * torch.randn_like(given)
        loss = mel(decode(noisy)[:, UNHEARD * hop :], wanted[:, UNHEARD * hop :])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.3)
        optimizer.step()
        step, total, since = step + 1, total + float(loss), since + 1
        with torch.no_grad():
            for name, tensor in mean.items():
                tensor.lerp_(decoder[name], 1 - min(EMA, step / (step + 10)))
        if budget.spent - shown > SHOW_EVERY:
            print(f"{budget.spent:.0f} s, step {step}: mel {total / since:.4f}", flush=True)
            shown, total, since = budget.spent, 0.0, 0
        if budget.spent - saved > SAVE_EVERY:
            save(args.out, config, tensors, mean)
            saved = budget.spent
    save(args.out, config, tensors, mean)
    print(f"decoder done: {step} steps", flush=True)


if __name__ == "__main__":
    main()
