"""The tiny checkpoint, the results of the official package for it, and a minimal driver of a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import support.engines.interpreter  # noqa: F401, selects it before Triton is imported
import torch
from safetensors.torch import load_file
from support.engines.checkpoints import TINY
from torch import Tensor

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.engine.device.slots import NUMBERS, number_columns
from voxcpm_grpc.models.base import Frame, LoadOptions, Opened, Plan, PrefillRows, SlotState, StepRows
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.request import Sampling

GOLDENS = Path(__file__).parents[2] / "goldens"
CPU = torch.device("cpu")
PAGE = 16

Load = Callable[..., VoxCPM]


def load(directory: Path = TINY, **options) -> VoxCPM:
    defaults = {"device": CPU, "dtype": torch.float32}
    model = load_model(directory, LoadOptions(**defaults | options))
    assert isinstance(model, VoxCPM)
    return model


class Driver:
    """A model, a few slots and the scratch slot, and separate pages for each slot."""

    def __init__(self, model: VoxCPM, slots: int = 3, positions: int = 256) -> None:
        slots += 1
        layout, pages = model.layout, positions // PAGE
        shape = (layout.layers, 1 + slots * pages, PAGE, layout.heads, layout.head_dim)
        self.model, self.device = model, model.backend.device
        self.kv = PagedKV(*(torch.zeros(shape, dtype=layout.dtype, device=self.device) for _ in range(2)))
        table = 1 + torch.arange(slots * pages, dtype=torch.int32, device=self.device).view(slots, pages)
        numbers = torch.zeros(slots, len(NUMBERS) + model.numbers, dtype=torch.int64, device=self.device)
        self.own_numbers = numbers[:, len(NUMBERS) :]
        self.state = SlotState(
            **number_columns(numbers), block_table=table, model=model.allocate(slots, self.own_numbers)
        )
        self.state.adapter.fill_(-1)

    def long(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def start(self, slot: int, plan: Plan, sampling: Sampling, chunk: int | None = None) -> None:
        """Open a slot and prefill a prompt, `chunk` rows at a time."""
        s, sampling = self.state, self.model.info.completed(sampling)
        cfg, temperature, own = sampling.cfg_value, sampling.temperature, s.model
        self.own_numbers[slot] = torch.from_numpy(plan.numbers)
        columns = (s.seed, sampling.seed), (s.position, plan.positions), (s.step, 0), (own.cfg, cfg)
        for column, value in (*columns, (own.temperature, temperature)):
            assert value is not None
            column[slot] = value
        content = torch.from_numpy(self.model.content(plan).copy()).to(self.device)
        self.model.open(self.long([slot]), [Opened(slot, plan, content)], s)
        self.prefill(slot, plan.own.tokens, plan.own.audio, chunk or plan.positions)
        if plan.primes:
            self.model.prime(self.long([slot]), s)

    def prefill(self, slot: int, tokens: np.ndarray, audio: np.ndarray, chunk: int) -> None:
        for begin in range(0, len(tokens), chunk):
            end = min(begin + chunk, len(tokens))
            audio_rows, done = np.flatnonzero(audio[begin:end]), int(audio[:begin].sum())
            position, ends = self.long(range(begin, end)), end == len(tokens)
            rows = PrefillRows(
                columns=torch.stack([self.long(tokens[begin:end]), self.long(audio[begin:end].astype(np.int64))]),
                position=position,
                paged=PagedRows(
                    cu_seqlens=self.long([0, end - begin]).int(),
                    context=self.long([end]).int(),
                    block_table=self.state.block_table[slot : slot + 1],
                    write=self.write(self.long([slot] * (end - begin)), position),
                    max_rows=end - begin,
                    max_context=end,
                    fresh=begin == 0,
                ),
                last=self.long([end - begin - 1] if ends else []),
                last_slot=self.long([slot] if ends else []),
                slot=self.long([slot] * (end - begin)),
            )
            encoded = None
            if len(audio_rows):
                patches = self.long(range(done, done + len(audio_rows)))
                results = self.model.encode(self.long([slot] * len(audio_rows)), patches, self.state)
                encoded = results.new_full((end - begin, *results.shape[1:]), float("nan"))
                encoded[self.long(audio_rows)] = results
            self.model.prefill(rows, encoded, self.state, self.kv)

    def rows(self, *slots: int) -> StepRows:
        slot = self.long(slots)
        position = self.state.position[slot]
        paged = PagedRows(
            cu_seqlens=self.long(range(len(slots) + 1)).int(),
            context=(position + 1).int(),
            block_table=self.state.block_table[slot],
            write=self.write(slot, position),
            max_rows=1,
            max_context=self.state.block_table.shape[1] * PAGE,
            fresh=False,
        )
        return StepRows(slot, position, paged)

    def write(self, slot: Tensor, position: Tensor) -> Tensor:
        return self.state.block_table[slot, position // PAGE].long() * PAGE + position % PAGE

    def step(self, *slots: int, timesteps: int = 10) -> Frame:
        return self.model.step(self.rows(*slots), timesteps, self.state, self.kv)

    def made(self, slot: int) -> Tensor:
        """Latents generated so far, [steps, P, D]."""
        own, start = self.state.model, int(self.state.model.patches[slot])
        return own.history[slot, start : start + int(self.state.step[slot])]


@pytest.fixture(scope="session", name="load")
def _load() -> Load:
    return load


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver


@pytest.fixture(scope="session", name="edit")
def _edit() -> Callable[[Path, Callable[[dict], object]], None]:
    return edit


@pytest.fixture(scope="session")
def goldens() -> Path:
    return GOLDENS


@pytest.fixture(scope="session")
def tiny() -> VoxCPM:
    return load()


@pytest.fixture(scope="session")
def modules() -> dict[str, Tensor]:
    return load_file(GOLDENS / "modules.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may damage."""
    directory = tmp_path / "copy"
    shutil.copytree(TINY, directory)
    return directory


@pytest.fixture(scope="session")
def declared_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Copies a checkpoint and declares the copy as bfloat16. Its files still hold float32 tensors."""

    def copy(source: Path) -> Path:
        directory = tmp_path_factory.mktemp("bfloat16") / source.name
        shutil.copytree(source, directory)
        edit(directory, lambda config: config.update(dtype="bfloat16"))
        return directory

    return copy


@pytest.fixture(scope="session")
def bfloat16_checkpoint(declared_bfloat16: Callable[[Path], Path]) -> Path:
    return declared_bfloat16(TINY)


@pytest.fixture(scope="session")
def bfloat16(bfloat16_checkpoint: Path) -> VoxCPM:
    """A model declared as bfloat16 and computed in float32."""
    return load(bfloat16_checkpoint)


def edit(directory: Path, change: Callable[[dict], object]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
