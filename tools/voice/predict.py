"""Predict the latents of encoded speech with a trained model, as training data of the codec's decoder.

    python -m tools.voice.predict LATENTS MODEL OUT

The model predicts each patch of an utterance from the true patches before it, so that the prediction belongs to known
speech. Text, description, diffusion steps, guidance and the deviation of the noise are those of inference. OUT has the
files of tools.voice.predicted. With several GPUs, run one process for each, with --share 1/2 and --share 2/2 and
CUDA_VISIBLE_DEVICES.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.voice import tokens
from tools.voice.batches import AUDIO, WIDTHS, Batch, Composer, Layout, Sequence, batched, lay_out, run
from tools.voice.encode import Corpus, load
from tools.voice.model import Forward, LayerFunctions, VoiceModel, new_reader, trained_weights
from tools.voice.predicted import save_predicted
from tools.voice.shapes import LATENT, PATCH, model_config
from tools.voice.shares import share
from voxcpm_grpc.models.voxcpm.config.generation import RANGES, read_generation
from voxcpm_grpc.models.voxcpm.flow.matching import Schedule, build_schedule, euler

SHOW_EVERY = 10.0  # seconds


def load_model(folder: Path) -> VoiceModel:
    """The model in a folder of tools.voice.train_model or a checkpoint; of full size if there is no config.json."""
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.exists() else model_config(tokens.VOCABULARY)
    net, weights = VoiceModel(config), trained_weights(folder)
    with torch.no_grad():
        for name, mine in net.named_parameters():
            mine.copy_(weights[name])
    return net


def row(composer: Composer, i: int) -> Sequence:
    """Utterance i after its text and the description of its voice, as inference lays it out."""
    corpus = composer.corpus
    text = np.concatenate((composer.tags[corpus.voice[i]], corpus.text(i)))
    target, nothing = run(corpus.right, corpus.count, i), np.zeros(0, np.int64)
    return lay_out(text, nothing, nothing, target, nothing, np.full(len(target), -1))


def sample(forward: Forward, mu: Tensor, before: Tensor, noise: Tensor, schedule: Schedule, guidance: float) -> Tensor:
    """Patches of noise, float32 [n, PATCH, LATENT], as inference makes them. mu, before: see `Forward.velocity`."""
    conditions, before = torch.cat((mu, torch.zeros_like(mu))), torch.cat((before, before))

    def velocity(x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        at = schedule.time[i].expand(len(conditions))
        conditional, unconditional = forward.velocity(torch.cat((x, x)), conditions, at, before).chunk(2)
        return conditional, unconditional

    return euler(noise, schedule, velocity, noise.new_full((len(noise),), guidance))


class Predictor:
    """Predicts the patches of batches.

    table: all true patches, on the device. timesteps, guidance, temperature: diffusion steps, strength of the guidance
    and deviation of the noise, as in a request.
    """

    def __init__(
        self, net: VoiceModel, table: Tensor, layout: Layout, timesteps: int, guidance: float, temperature: float
    ) -> None:
        self.table, self.layout, self.guidance, self.temperature = table, layout, guidance, temperature
        device = table.device
        net = net.to(device)
        functions, dtype = LayerFunctions(), torch.float32
        if device.type == "cuda":
            from tools.voice.tiny_attention import Attention  # Triton is not always installed

            functions, dtype = LayerFunctions(within=Attention.apply), torch.bfloat16
        self.forward = Forward(net, new_reader(net), dtype, device, functions)
        schedule = build_schedule(timesteps, torch.float32)
        self.schedule = Schedule(schedule.time.to(device), schedule.size)

    def __call__(self, batch: Batch, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """The indices of the targets, [n], and their predictions, float32 [n, PATCH, LATENT]."""
        count = int((self.layout.parts(batch.array)["marks"] > AUDIO).sum())  # targets; more are repeated ones
        array = torch.from_numpy(batch.array).to(self.table.device).long()
        parts = self.layout.parts(array)
        audio, context = parts["marks"] >= AUDIO, self.table[parts["context"]]
        y, z = self.forward.hidden(parts["ids"], audio, context, parts["context_at"], batch.width)
        mu = self.forward.conditions(y, z, parts["target_at"][:count])
        before = self.table[parts["previous"][:count]]
        noise = self.temperature * torch.randn(count, PATCH, LATENT, device=array.device, generator=random)
        return parts["target"][:count], sample(self.forward, mu, before, noise, self.schedule, self.guidance)


def predict(predictor: Predictor, corpus: Corpus, part: tuple[int, int], seed: int, every: int = 1) -> np.ndarray:
    """The predicted patches of a share of the corpus, float16, with zeros at others.

    every: predict one utterance of so many

    Raises ValueError if one is not finite in half precision.
    """
    number, count = part
    cuts = np.searchsorted(corpus.right, len(corpus.patches) * np.arange(count + 1) // count)
    members = range(cuts[number - 1], cuts[number], every)
    ends = np.append(corpus.right, len(corpus.patches))[cuts]
    first, end = int(ends[number - 1]) if number > 1 else 0, int(ends[number])

    composer, begun = Composer(corpus), time.monotonic()
    rows = [row(composer, i) for i in members]
    batches = batched(rows, predictor.layout, np.random.default_rng((seed, number)))
    device = predictor.table.device
    made = torch.zeros(end - first, PATCH, LATENT, dtype=torch.float16, device=device)
    distance, targets, shown = torch.zeros((), device=device), 0, begun
    random = torch.Generator(device).manual_seed(seed * 1_000_003 + number)
    with torch.inference_mode():
        for done, batch in enumerate(batches, 1):
            target, patches = predictor(batch, random)
            made[target - first] = patches.half()
            distance += (patches - predictor.table[target].float()).square().mean((1, 2)).sum()
            targets += len(target)
            if time.monotonic() - shown >= SHOW_EVERY:
                shown = time.monotonic()
                print(f"{done}/{len(batches)} batches in {shown - begun:.0f} s", flush=True)
    if not made.isfinite().all():
        raise ValueError("a predicted latent is not finite in half precision; the model is not trained well")
    long = sum(len(one.ids) > WIDTHS[-1] for one in rows)
    apart = float(distance / max(1, targets)) ** 0.5
    found = made.cpu().numpy()
    print(
        f"{found.any((1, 2)).sum()} patches of {len(rows) - long} utterances in {time.monotonic() - begun:.0f} s, "
        f"{apart:.2f} from the true ones; {long} utterances are longer than {WIDTHS[-1]} positions",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path, help="folder written by tools.voice.encode")
    parser.add_argument("model", type=Path, help="folder written by tools.voice.train_model, or a checkpoint")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--guidance", type=float, default=2.0, help="strength of the guidance, as in a request")
    parser.add_argument("--timesteps", type=int, default=10, help="diffusion steps, as in a request")
    parser.add_argument(
        "--temperature", type=float,
        help="deviation of the noise, as in a request; default that of MODEL's generation_config.json, or 1",
    )  # fmt: skip
    parser.add_argument("--positions", type=int, default=30720, help="positions of a batch, a multiple of 3840")
    parser.add_argument("--every", type=int, default=1, help="predict one utterance of so many; the others stay zeros")
    parser.add_argument("--share", type=share, default=(1, 1), help="part of the utterances, as 1/2")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.positions % (multiple := math.lcm(*WIDTHS)):
        parser.error(f"--positions {args.positions} is no multiple of {multiple}, which every width divides")
    temperature = read_generation(args.model).temperature if args.temperature is None else args.temperature
    if not (low := RANGES["temperature"][0]) <= temperature <= (high := RANGES["temperature"][1]):
        parser.error(f"--temperature {temperature} is not from {low} to {high}, as in a request")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan for every shape
    corpus = load(args.latents)
    table = torch.from_numpy(np.array(corpus.patches)).to(device)
    layout = Layout(args.positions, args.positions, args.positions)  # so that every row of a batch fits
    predictor = Predictor(load_model(args.model), table, layout, args.timesteps, args.guidance, temperature)
    save_predicted(args.out, args.share, predict(predictor, corpus, args.share, args.seed, args.every))


if __name__ == "__main__":
    main()
