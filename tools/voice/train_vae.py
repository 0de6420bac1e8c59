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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.voice import pace, quick_codec
from tools.voice.codec_losses import MelLoss
from tools.voice.codec_trainer import Trainer
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Speech
from tools.voice.encode import load
from tools.voice.pace import Budget, add_times, budget
from tools.voice.predicted import PredictedCrops, load_predicted
from tools.voice.quick_codec import CONFIG, WEIGHTS
from tools.voice.shapes import codec_config
from tools.voice.start import DISCRIMINATORS, codec_of, helper_of

LEAD = 300  # steps in which new discriminators learn alone beside a trained decoder
RATE_FIRST, RATE_LATER = 1e-3, 5e-4  # highest learning rates of a first training and of a later one
SAVE_EVERY = 60.0  # seconds


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
    parser.add_argument("--context", type=int, default=0, help="latents before a crop, whose audio no loss judges")
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
    return PredictedCrops(crops, load(args.latents), load_predicted(args.predicted), rows, samples, args.context)


def new_trainer(args: argparse.Namespace, device: torch.device) -> Trainer:
    """The trainer of the arguments, before the first step. Waits for the first speech."""
    config, start = codec_of(args.start) if args.start else (codec_config(args.toy), None)
    while not (args.speech / "speech.json").exists():
        time.sleep(0.5)
    samples = math.prod(config["encoder_rates"])  # of a latent
    crop = (args.context + max(1, round(args.crop * RATE / samples))) * samples
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
        context=args.context * samples,
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
