"""Steps that a GPU captures as a CUDA graph neither copy from the host nor wait for the device.

Such a step fails on a GPU alone. Here an operation that would copy or wait is refused in each step but the first one,
which may be without a graph. The optimizers are left out: on a GPU they are other ones, which PyTorch makes for graphs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tools.voice import batches, tokens
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.pace import Graphed
from tools.voice.shapes import LATENT, PATCH, codec_config, model_config
from tools.voice.voices import VOICES

COPIES = {"aten::lift_fresh", "aten::_local_scalar_dense"}  # torch.tensor and the like; item and float
WAITS = {"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2"}  # their shapes depend on values


class Captured(TorchDispatchMode):
    """Refuses the operations that a capture refuses."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        picked = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in COPIES | WAITS or picked:
            raise AssertionError(f"a captured step calls {func.name()}")
        return func(*args, **(kwargs or {}))


@contextmanager
def captures() -> Iterator[None]:
    """Steps run as if they were captured."""

    def call(self: Graphed) -> None:
        self.reset()
        with Captured(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "from_numpy", from_numpy)
            self.step()

    def from_numpy(array: np.ndarray) -> None:  # not an operation
        raise AssertionError("a captured step calls from_numpy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphed, "__call__", call)
        patch.setattr(torch.optim.AdamW, "step", lambda self: None)
        yield


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + torch.tensor((1.0, 2.0)),
        lambda x: x + torch.as_tensor([1.0, 2.0]),
        lambda x: x * float(x[0]),
        lambda x: x[x > 0],
        lambda x: x * x.max().item(),
        lambda x: x + torch.from_numpy(np.ones(2)),
    ],
    ids=["tensor", "as_tensor", "float", "mask", "item", "from_numpy"],
)
def test_what_a_capture_refuses_is_refused(operation: Callable[[torch.Tensor], Any]) -> None:
    step = Graphed(lambda: operation(torch.ones(2)), lambda: None, torch.device("cpu"))
    step()
    with captures(), pytest.raises(AssertionError, match="a captured step calls"):
        step()


def test_a_step_of_the_model_can_be_captured() -> None:
    from tools.voice.train_model import Trainer

    layout = batches.Layout(positions=384, context=200, target=100)
    table = torch.zeros(10, PATCH, LATENT, dtype=torch.float16)
    config = model_config(tokens.VOCABULARY, toy=True)
    trainer = Trainer(config, table, layout, torch.device("cpu"), 1e-3, fast=False, adamw=False)
    batch = batches.Batch.blank(128, layout)
    trainer.train(batch, 0.0)
    with captures():
        trainer.train(batch, 0.0)


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Crops:
    """Crops of two seconds of noise."""
    folder = tmp_path_factory.mktemp("speech")
    noise = np.random.default_rng(0).integers(-9000, 9000, 2 * RATE).astype(np.int16)
    write_plan(folder, Plan(1, 1, "noise"))
    write_shard(folder, 0, [Utterance(VOICES[0].name, "Hello.", noise)])
    return Crops(Speech(folder), 2, 9600, torch.device("cpu"), 1)


@pytest.mark.parametrize("later", [False, True], ids=["whole", "decoder of predicted latents"])
def test_the_steps_of_the_codec_can_be_captured(crops: Crops, later: bool) -> None:
    from tools.voice import encode, quick_codec
    from tools.voice.codec_trainer import Trainer
    from tools.voice.predicted import PredictedCrops

    config, start, pairs = codec_config(toy=True), None, None
    if later:
        codec = quick_codec.build(config)
        start = quick_codec.file_tensors(dict(codec.named_parameters()))
        corpus = encode.encode_all(crops.speech, *encode.upload(crops.speech, crops.device), codec, 3840)
        pairs = PredictedCrops(crops, corpus, corpus.patches, 1, 960, context=2)
    trainer = Trainer(
        config, crops, crops.device, start=start, predicted=pairs, context=1920 * later, peak=1e-3, alone=0.5, lead=2,
        toy=True,
    )  # fmt: skip
    for progress in (0.0, 1.0, 1.0):  # without discriminators, with them alone, and with all
        trainer.train(progress)
        with captures():
            trainer.train(progress)
