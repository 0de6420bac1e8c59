"""Compiles parts of a model for later starts, in a process of its own beside an engine.

    python -m voxcpm_grpc.models.voxcpm.compile_parts DIRECTORY THREADS FOLDER MERGED PART...

MERGED is the directory of a LoRA adapter, or empty; `compiled.parts` names each PART. The process ends when its
standard input does, which is when the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.voxcpm.codec.codec import VoxCPMCodec
from voxcpm_grpc.models.voxcpm.codec.vae import StreamingDecoder
from voxcpm_grpc.models.voxcpm.compiled import decoder, evaluation
from voxcpm_grpc.models.voxcpm.compiled.files import CompiledFiles, delete_unused
from voxcpm_grpc.models.voxcpm.compiled.parts import DECODERS, EVALUATIONS, loaders
from voxcpm_grpc.models.voxcpm.family import architecture_of
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import CpuNetwork, Evaluation
from voxcpm_grpc.models.voxcpm.load import load_voxcpm
from voxcpm_grpc.models.voxcpm.model import VoxCPM

OPTIONS = {"freezing": True}  # the weights become constants, packed for the products


class _Evaluation(torch.nn.Module):
    """An evaluation as a module, which is what PyTorch exports."""

    def __init__(self, evaluate: Evaluation) -> None:
        super().__init__()
        self.evaluate = evaluate

    def forward(self, x: Tensor, rows: Tensor, projected: Tensor, cfg: Tensor, size: Tensor) -> Tensor:
        return self.evaluate(x, rows, projected, cfg, size)


class _Decoder(torch.nn.Module):
    """A decoder as a module."""

    def __init__(self, decode: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.decode = decode

    def forward(self, patches: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.decode(patches, memory)


@torch.no_grad()
def compile_part(model: VoxCPM, files: CompiledFiles, part: str, scratch: Path) -> None:
    """Compile a part into its file. The model must have plain operations."""
    net, patch = _decoder(model), (model.config.patch_size, model.config.feat_dim)
    compiler: Any = torch._inductor
    made = compiler.aoti_compile_and_package(
        _exported(model, net, part, patch), package_path=str(scratch / "part.pt2"), inductor_configs=OPTIONS
    )
    with zipfile.ZipFile(made) as package:
        library = next(name for name in package.namelist() if name.endswith(".so"))
        path = Path(package.extract(library, scratch))
    if loaders(model.networks.dit, net, patch)[part](path) is None:
        raise RuntimeError(f"the compiled {part} differs from the plain one")
    path.replace(files.path(part))


def _decoder(model: VoxCPM) -> StreamingDecoder:
    codec = model.codec
    assert isinstance(codec, VoxCPMCodec) and isinstance(codec.decoder, StreamingDecoder)
    return codec.decoder


def _exported(model: VoxCPM, net: StreamingDecoder, part: str, patch: tuple[int, int]) -> torch.export.ExportedProgram:
    dit = model.networks.dit
    if part in EVALUATIONS:
        arguments = evaluation.arguments(dit, evaluation.example(dit, patch, EVALUATIONS[part]))
        return torch.export.export(_Evaluation(CpuNetwork(dit, packed=False)), arguments)
    streams = DECODERS[part]
    dynamic = None if streams == 1 else 2 * ({0: torch.export.Dim("streams", min=2)},)
    return torch.export.export(
        _Decoder(decoder.compilable_decoder(net)), decoder.example(net, patch, streams), dynamic_shapes=dynamic
    )


def load_plain(directory: Path, merged: Path | None) -> VoxCPM:
    """The model of a checkpoint on the CPU, with plain operations."""
    content = json.loads((directory / "config.json").read_bytes())
    content["architecture"] = architecture_of(content)
    options = LoadOptions(device=torch.device("cpu"), dtype=torch.float32, fused=False, merge_lora=merged, max_slots=1)
    return load_voxcpm(directory, content, options)


def main(directory: str, threads: str, folder: str, merged: str, *parts: str) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    with _alone(Path(folder)) as alone:
        if not alone:
            return  # another engine compiles
        torch.set_num_threads(int(threads))
        path = Path(merged) if merged else None
        model = load_plain(Path(directory), path)
        files = CompiledFiles.of(Path(folder), model.info.fingerprint, path)
        scratch = files.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # a process that was ended may have left it
        scratch.mkdir()
        with _one_compiler(scratch):
            for part in parts:
                compile_part(model, files, part, scratch)
        shutil.rmtree(scratch)
        delete_unused(files.folder)


@contextmanager
def _one_compiler(scratch: Path) -> Iterator[None]:
    """PyTorch's compiler runs in this process alone, with all its files in `scratch`."""
    import torch._inductor.config as config
    from torch._inductor.utils import fresh_cache

    parallel: Any = config
    with parallel.patch(compile_threads=1), fresh_cache(dir=str(scratch)):
        yield


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """True within the block if this is the only process that compiles into the folder."""
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
