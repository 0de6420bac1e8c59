"""The demo checkpoint, what the official package computes with it, and the smallest thing that can drive a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import voxcpm_grpc
from voxcpm_grpc.attention import PagedKV, PagedRows, select_attention
from voxcpm_grpc.models.base import Frame, LoadOptions, PrefillRows, PromptRows, SlotState, StepRows
from voxcpm_grpc.models.families import load_model
from voxcpm_grpc.models.voxcpm2.model import VoxCPM2
from voxcpm_grpc.request import Sampling

DEMO = Path(voxcpm_grpc.__file__).parent / "demo"
GOLDENS = Path(__file__).parents[2] / "goldens"
CPU = torch.device("cpu")
PAGE = 16

Load = Callable[..., VoxCPM2]


def load(directory: Path = DEMO, **options) -> VoxCPM2:
    defaults = {"device": CPU, "dtype": torch.float32, "attention": select_attention("reference", CPU)}
    model = load_model(directory, LoadOptions(**defaults | options))
    assert isinstance(model, VoxCPM2)
    return model


def tensor32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Driver:
    """One model, a few slots, and pages of its own for each slot."""

    def __init__(self, model: VoxCPM2, slots: int = 3, positions: int = 256) -> None:
        layout, info, pages = model.layout, model.info, positions // PAGE
        shape = (layout.layers, 1 + slots * pages, PAGE, layout.heads, layout.head_dim)
        self.model, self.kv = (
            model,
            PagedKV(torch.zeros(shape, dtype=layout.dtype), torch.zeros(shape, dtype=layout.dtype)),
        )
        zeros = [torch.zeros(slots, dtype=torch.int64) for _ in range(6)]
        self.state = SlotState(
            seed=zeros[0],
            turn=zeros[1],
            segment=zeros[2],
            step=zeros[3],
            cfg=torch.zeros(slots),
            temperature=torch.zeros(slots),
            position=zeros[4],
            patches=zeros[5],
            history=torch.zeros(slots, positions, info.patch_size, info.latent_dim, dtype=layout.dtype),
            block_table=1 + torch.arange(slots * pages, dtype=torch.int32).view(slots, pages),
            model=model.allocate(slots),
        )

    def start(self, slot: int, rows: PromptRows, sampling: Sampling, chunk: int | None = None) -> None:
        """Open a slot and enter a prompt, `chunk` rows at a time."""
        s, patches = self.state, len(rows.patches)
        s.history[slot, :patches] = torch.from_numpy(rows.patches)
        for column, value in (
            (s.seed, sampling.seed),
            (s.cfg, sampling.cfg_value),
            (s.temperature, sampling.temperature),
            (s.position, len(rows)),
            (s.patches, patches),
            (s.step, 0),
        ):
            column[slot] = value
        self.model.open(slot, s, rows.primer)
        self.enter(slot, rows.tokens, rows.audio, chunk or len(rows))

    def enter(self, slot: int, tokens: np.ndarray, audio: np.ndarray, chunk: int) -> None:
        for begin in range(0, len(tokens), chunk):
            end = min(begin + chunk, len(tokens))
            heard, done = np.flatnonzero(audio[begin:end]), int(audio[:begin].sum())
            last = [end - begin - 1] if end == len(tokens) else []
            rows = PrefillRows(
                token=torch.from_numpy(tokens[begin:end]),
                position=torch.arange(begin, end),
                audio=torch.from_numpy(heard),
                audio_slot=torch.full((len(heard),), slot),
                audio_patch=done + torch.arange(len(heard)),
                paged=self.paged([slot], torch.arange(begin, end), end, fresh=begin == 0),
                last=torch.tensor(last, dtype=torch.int64),
                last_slot=torch.tensor([slot for _ in last], dtype=torch.int64),
            )
            self.model.prefill(rows, self.state, self.kv)

    def step(self, *slots: int, timesteps: int = 10) -> Frame:
        slot = torch.tensor(slots)
        return self.model.step(
            StepRows(slot, self.paged(list(slots), self.state.position[slot]), timesteps), self.state, self.kv
        )

    def paged(self, slots: list[int], position: Tensor, context: int = 0, fresh: bool = False) -> PagedRows:
        """A prefill of one slot up to `context`, or one row at the position of each slot."""
        table = self.state.block_table[slots]
        owner = (
            torch.arange(len(slots)) if len(position) == len(slots) else torch.zeros(len(position), dtype=torch.int64)
        )
        return PagedRows(
            cu_seqlens=tensor32(0, context - int(position[0]))
            if context
            else torch.arange(len(slots) + 1, dtype=torch.int32),
            context=tensor32(context) if context else (position + 1).int(),
            block_table=table,
            write=table[owner, position // PAGE].long() * PAGE + position % PAGE,
            max_rows=len(position) if context else 1,
            max_context=int(position.max()) + 1,
            fresh=fresh,
        )

    def made(self, slot: int) -> Tensor:
        """Latents generated so far, [steps, P, D]."""
        s = self.state
        return s.history[slot, int(s.patches[slot] - s.step[slot]) : int(s.patches[slot])]


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
def demo() -> VoxCPM2:
    return load()


@pytest.fixture(scope="session")
def modules() -> dict[str, Tensor]:
    return load_file(GOLDENS / "modules.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the demo that a test may break."""
    directory = tmp_path / "copy"
    shutil.copytree(DEMO, directory)
    return directory


@pytest.fixture(scope="session")
def bfloat16_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo declared as bfloat16; its tensors stay float32 in the files."""
    directory = tmp_path_factory.mktemp("bfloat16") / "demo"
    shutil.copytree(DEMO, directory)
    edit(directory, lambda config: config.update(dtype="bfloat16"))
    return directory


@pytest.fixture(scope="session")
def bfloat16(bfloat16_checkpoint: Path) -> VoxCPM2:
    """A model declared bfloat16 and computed in float32."""
    return load(bfloat16_checkpoint)


def edit(directory: Path, change: Callable[[dict], object]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
