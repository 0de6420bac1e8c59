"""VoxCPM speech over gRPC, and without it: `load` gives Python programs the engines of this host.

Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from voxcpm_grpc.embedded.async_model import AsyncModel
    from voxcpm_grpc.embedded.model import Model

__version__ = "0.1.0"


def load(
    model: str | Path = "demo",
    devices: Sequence[int | str] = ("auto",),
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Model:
    """Load a model and start an engine on each device, without a server. Returns when all of them are ready.

        with voxcpm_grpc.load("openbmb/VoxCPM2", devices=[0, 1]) as model:
            for samples in model.generate("Hello."):
                play(samples, model.info.output_sample_rate)

    Engines are processes that import the main module again: a script needs `if __name__ == "__main__":`.

    Args:
        model: demo, the bundled voice; a directory; or a Hugging Face repository id.
        devices: Numbers of GPUs, "cpu" or "cpu:2", or "auto": a GPU if there is one, else the CPU.
        revision: Branch, tag or commit of the repository. Default: its main branch.
        cache_dir: Directory for downloads. Default: that of Hugging Face.
        settings: Settings of the server by dotted key, such as {"engine.max_slots": 8}; see docs/settings.md.

    Raises:
        StartupError: An engine cannot start; the message has the remedy.
    """
    return _library().Model.load(model, devices, revision=revision, cache_dir=cache_dir, settings=settings or {})


async def load_async(
    model: str | Path = "demo",
    devices: Sequence[int | str] = ("auto",),
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncModel:
    """Load a model for code with asyncio. Arguments and errors are those of `load`.

    async with await voxcpm_grpc.load_async("openbmb/VoxCPM2", devices=[0, 1]) as model:
        async for samples in model.generate("Hello."):
            ...
    """
    loading = _library().AsyncModel.load(
        model, devices, revision=revision, cache_dir=cache_dir, settings=settings or {}
    )
    return await loading


def _library() -> ModuleType:
    try:
        from voxcpm_grpc.embedded import model
    except ImportError as error:
        from voxcpm_grpc.errors import StartupError

        raise StartupError(
            f"an engine needs the packages of the server ({error}); pip install 'voxcpm-grpc[server]' installs them"
        ) from error
    return model
