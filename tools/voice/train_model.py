"""Train the model of the bundled voice on encoded speech.

    python -m tools.voice.train_model LATENTS OUT --seconds 600

LATENTS is a folder of tools.voice.encode. Every minute and at the end the command writes the averaged weights to
OUT/averaged.safetensors, which tools.voice.export reads, and the state to OUT/state.pt, from which a later call
continues; or from OUT/brief.pt, which is smaller: it holds half precision and no state of the optimizers. `--part` ends
a call early; the learning rate follows --seconds in any case. `--start` starts with the weights of a checkpoint, for a
codec that was trained further.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.voice import pace, tokens
from tools.voice.batches import WIDTHS, Batch, Composer, Layout, Stream, batched, held_out
from tools.voice.encode import INDEX, load
from tools.voice.model import HISTORY_NOISE, Forward, LayerFunctions, VoiceModel, new_reader
from tools.voice.muon import Muon
from tools.voice.pace import Budget, Graphed, add_times, budget, rate
from tools.voice.shapes import LATENT, PATCH, model_config
from tools.voice.start import READER, halved, helper_of

EMA = 0.999
WARMUP, DECAY_FROM = 200, 0.45
RATE_FIRST, RATE_LATER = 2e-3, 1e-3  # highest learning rates of a first training and of a later one
READER_LEAD = 500  # steps in which a new reader learns from a trained model, and the model not from it
DECAY = 0.02  # of weights, per unit of learning rate
HELD = Layout(positions=7680, context=3456, target=6144)  # of a batch for validation
SAVE_EVERY, SHOW_EVERY = 60.0, 10.0  # seconds


class Trainer:
    """The model, its averaged weights and its optimizers. Trains one batch at a time.

    table: all patches. peak: highest learning rate. fast: compiled functions and kernels. adamw: AdamW for matrices
    too.
    """

    def __init__(
        self, config: dict[str, Any], table: Tensor, layout: Layout, device: torch.device, peak: float, fast: bool,
        adamw: bool,
    ) -> None:  # fmt: skip
        self.device, self.layout, self.peak = device, layout, peak
        self.table = table
        self.net = VoiceModel(config).to(device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.reader = reader = new_reader(self.net).to(device)
        functions = LayerFunctions.fast() if fast else LayerFunctions()
        self.forward = Forward(self.net, reader, dtype, device, functions, HISTORY_NOISE)
        self.plain = Forward(self.net, reader, dtype, device, LayerFunctions())
        self.weights = dict(self.net.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.weights.items()}
        self.rate = torch.tensor(0.0, device=device)
        matrices = [p for name, p in self.weights.items() if p.ndim == 2 and ".layers." in name and not adamw]
        mine = {id(p) for p in matrices}
        self.trained = [*self.weights.values(), *reader.parameters()]
        self.others = [p for p in self.trained if id(p) not in mine]
        extra = {"fused": True, "capturable": True} if device.type == "cuda" else {}
        self.adam = torch.optim.AdamW(self.others, lr=self.rate, betas=(0.9, 0.98), weight_decay=DECAY, **extra)
        self.muon = Muon(matrices, self.rate, DECAY)
        self.incoming = torch.zeros(layout.size, dtype=torch.int32, device=device)
        self.sums = torch.zeros(4, device=device)  # of the losses of flow, stop and letters, and of the gradient norm
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.graphs = {
            width: Graphed(lambda width=width: self.step(width), self.reset, device, pool) for width in WIDTHS
        }
        self.steps = self.chunk = self.warmed_up_from = self.lead = 0

    def reset(self) -> None:
        for p in self.trained:
            p.grad = None

    def step(self, width: int) -> None:
        losses = self.forward.losses(self.layout.parts(self.incoming), self.table, width)
        losses.all.backward()
        norm = nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.adam.step()
        self.muon.step()
        with torch.no_grad():
            means, weights = list(self.mean.values()), list[Tensor](self.weights.values())
            torch._foreach_lerp_(means, weights, 1 - EMA)  # pyright: ignore[reportPrivateImportUsage]
            self.sums += torch.cat((losses.each, norm.detach()[None]))

    def feed(self, batch: Batch) -> None:
        array = torch.from_numpy(batch.array)
        if self.device.type == "cuda":
            array = array.pin_memory()
        self.incoming.copy_(array, non_blocking=True)

    def train(self, batch: Batch, progress: float) -> None:
        self.feed(batch)
        steps = self.steps - self.warmed_up_from
        self.rate.fill_(rate(progress, steps, peak=self.peak, warmup=WARMUP, decay_from=DECAY_FROM))
        self.forward.pull.fill_(float(self.steps >= self.lead))
        self.graphs[batch.width]()
        self.steps += 1

    def warm(self) -> None:
        """Compile and capture the step of every width at a learning rate of 0, then reset the optimizers."""
        self.rate.fill_(0.0)
        cuda = self.device.type == "cuda"
        for width in WIDTHS if cuda else WIDTHS[:1]:
            for _ in range(Graphed.WARM + 1 if cuda else 1):
                self.feed(Batch.blank(width, self.layout))
                self.graphs[width]()
        for tensor in self.moments():
            tensor.zero_()
        self.sums.zero_()

    def moments(self) -> list[Tensor]:
        """The state of the optimizers, in place. It is complete after the first step."""
        return [t for p in self.others for t in self.adam.state[p].values()] + self.muon.momenta

    def validate(self, batches: list[Batch]) -> tuple[float, float, float]:
        """The mean losses of flow, stop and letters of the current weights. Every call uses the same random draws."""
        devices = [self.device] if self.device.type == "cuda" else []
        sums = np.zeros(3)
        with torch.no_grad(), torch.random.fork_rng(devices):
            torch.manual_seed(0)
            for batch in batches:
                array = torch.from_numpy(batch.array).to(self.device)
                sums += self.plain.losses(HELD.parts(array), self.table, batch.width).each.tolist()
        flow, stop, letters = sums / len(batches)
        return flow, stop, letters

    def save(self, folder: Path, spent: float) -> None:
        """Write each file, completely or not at all."""
        averaged = {name: tensor.cpu() for name, tensor in self.mean.items()}
        save_file(averaged, folder / "averaged.tmp")
        (folder / "averaged.tmp").replace(folder / "averaged.safetensors")
        done = {"steps": self.steps, "chunk": self.chunk, "spent": spent, "lead": self.lead}
        reader = self.reader.state_dict()
        state = done | {"net": self.net.state_dict(), READER: reader, "moments": self.moments()}
        torch.save(state, folder / "state.tmp")
        (folder / "state.tmp").replace(folder / "state.pt")
        brief = done | {"net": halved(averaged), READER: halved(reader)}
        torch.save(brief, folder / "brief.tmp")
        (folder / "brief.tmp").replace(folder / "brief.pt")

    def begin(self, weights: dict[str, Tensor], reader: dict[str, Tensor] | None = None) -> None:
        """Take the weights of a checkpoint, and the reader's if there are any. A new reader gets READER_LEAD."""
        if reader is None:
            self.lead = READER_LEAD
        else:
            self.reader.load_state_dict(reader)
        with torch.no_grad():
            for name, mine in self.weights.items():
                mine.copy_(weights[name])
                self.mean[name].copy_(weights[name])

    def load(self, folder: Path) -> float:
        """Continue from what `save` wrote, if there is something. Call `warm` first. Returns the seconds spent."""
        path = folder / "state.pt"
        if not path.exists():
            path = folder / "brief.pt"
        if not path.exists():
            return 0.0
        state = torch.load(path, map_location="cpu", weights_only=True)
        mean = load_file(folder / "averaged.safetensors") if "moments" in state else state["net"]
        with torch.no_grad():
            for name, tensor in state["net"].items():
                self.weights[name].copy_(tensor)
            self.reader.load_state_dict(state[READER])
            for name, tensor in mean.items():
                self.mean[name].copy_(tensor)
            for mine, tensor in zip(self.moments(), state.get("moments", self.moments()), strict=True):
                mine.copy_(tensor)
        self.steps, self.chunk, self.lead = state["steps"], state["chunk"] + 1, state.get("lead", 0)
        if "moments" not in state:
            self.warmed_up_from = self.steps
        return state["spent"]


def validation(folder: Path) -> list[Batch]:
    """Batches of utterances that are not in the training data. They do not depend on the training batches."""
    corpus, rng = load(folder), np.random.default_rng(0)
    composer = Composer(corpus)
    rows = [composer.draw(int(i), rng) for _ in range(4) for i in held_out(len(corpus))]
    return batched(rows, HELD, rng)[:4]


class Log:
    """Writes progress to the terminal and to a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, line: str, **numbers: float) -> None:
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(json.dumps(numbers) + "\n")


def run(trainer: Trainer, batches: Any, held: list[Batch], budget: Budget, out: Path) -> None:
    """Train until the budget, or this part of it, is used up."""
    log = Log(out / "log.jsonl")
    shown = saved = budget.spent
    steps_then, time_then = trainer.steps, time.monotonic()
    while not budget.over:
        trainer.chunk, batch = next(batches)
        trainer.train(batch, budget.progress)
        if trainer.steps % 8 == 0 and trainer.device.type == "cuda":
            torch.cuda.synchronize()  # the learning rate follows the clock, so the queue must stay short
        spent = budget.spent
        if spent - shown >= SHOW_EVERY:
            done = trainer.steps - steps_then
            flow, stop, letters, norm = (trainer.sums / done).tolist()
            took = (time.monotonic() - time_then) / done * 1000
            held_flow, held_stop, held_letters = trainer.validate(held)
            log(
                f"{spent:.0f} s, step {trainer.steps} ({took:.1f} ms), rate {float(trainer.rate):.1e}: "
                f"flow {flow:.4f}, stop {stop:.4f}, letters {letters:.3f}, gradient {norm:.2f}; "
                f"held out: flow {held_flow:.4f}, stop {held_stop:.4f}, letters {held_letters:.3f}",
                seconds=spent, step=trainer.steps, ms=took, flow=flow, stop=stop, letters=letters,
                held_flow=held_flow, held_stop=held_stop, held_letters=held_letters,
            )  # fmt: skip
            if not math.isfinite(flow + held_flow):
                raise SystemExit("the loss is not finite; train again at a lower --rate")
            trainer.sums.zero_()
            shown, steps_then, time_then = budget.spent, trainer.steps, time.monotonic()
        if spent - saved >= SAVE_EVERY:
            trainer.save(out, spent)
            saved = budget.spent
    trainer.save(out, budget.spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path, help="folder written by tools.voice.encode")
    parser.add_argument("out", type=Path, help="folder to write")
    add_times(parser, 600)
    parser.add_argument("--start", type=Path, help="checkpoint whose weights to start with")
    parser.add_argument("--positions", type=int, default=15360, help="positions of a batch, a multiple of every width")
    parser.add_argument("--draws", type=float, default=0.4, help="diffusion times per position of a batch")
    parser.add_argument(
        "--rate", type=float, help=f"highest learning rate; default {RATE_FIRST:g}, after --start {RATE_LATER:g}"
    )
    parser.add_argument("--adamw", action="store_true", help="use AdamW for the matrices too, instead of Muon")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--processes",
        type=int,
        default=max(1, min(8, (os.cpu_count() or 2) - 2)),
        help="processes that make batches; 0: none",
    )
    parser.add_argument("--room", type=int, default=4_000_000, help="most patches on the device")
    parser.add_argument("--wait", action="store_true", help="compile, then wait until the latents are complete")
    parser.add_argument("--plain", action="store_true", help="compile nothing and use no kernels of this recipe")
    parser.add_argument("--eager", action="store_true", help="use no CUDA graphs")
    parser.add_argument("--toy", action="store_true", help="train a small model, for tests")
    args = parser.parse_args()

    begun = time.monotonic()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan for every shape
    pace.graphs_allowed = not args.eager
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = Layout(args.positions, round(0.45 * args.positions), round(args.draws * args.positions))
    config = model_config(tokens.VOCABULARY, args.toy)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stream = Stream(args.latents, layout, seed=args.seed, processes=args.processes)
    table = torch.zeros(args.room, PATCH, LATENT, dtype=torch.float16, device=device)
    peak = args.rate or (RATE_LATER if args.start else RATE_FIRST)
    trainer = Trainer(config, table, layout, device, peak, device.type == "cuda" and not args.plain, args.adamw)
    trainer.warm()
    if args.start:
        trainer.begin(load_file(args.start / "model.safetensors"), helper_of(args.start, READER))
    spent = trainer.load(args.out)
    size = sum(p.numel() for p in trainer.weights.values())
    print(f"{size / 1e6:.2f} M parameters, ready after {time.monotonic() - begun:.0f} s", flush=True)
    while args.wait and not (args.latents / INDEX).exists():
        time.sleep(0.1)
    patches = np.load(args.latents / "patches.npy")
    if len(patches) > args.room:
        raise SystemExit(f"there are {len(patches):,} patches and room for {args.room:,}; give a larger --room")
    table[: len(patches)].copy_(torch.from_numpy(patches))
    held = validation(args.latents)[: 1 if args.toy else None]
    if args.start:
        flow, stop, letters = trainer.validate(held)
        print(f"held out: flow {flow:.4f}, stop {stop:.4f}, letters {letters:.3f} at the start", flush=True)
    trainer.save(args.out, spent)  # so that there is a model from now on
    run(trainer, stream.batches(trainer.chunk), held, budget(args, spent), args.out)
    stream.close()


if __name__ == "__main__":
    main()
