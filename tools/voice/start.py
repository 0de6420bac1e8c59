"""The checkpoint with which a training starts.

It is a folder of the official layout. A backup of tools.voice.lease also has the networks that only a training needs:
the reader of letters and the discriminators. Without them these start with random weights.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tools.voice.quick_codec import CONFIG, WEIGHTS

READER, DISCRIMINATORS = "reader", "discriminators"  # as in the states of the trainings
HELPERS = "helpers.pt"  # {READER: tensors, DISCRIMINATORS: tensors}, either may be missing


def halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in half precision."""
    return {name: tensor.to(torch.float16) for name, tensor in tensors.items()}


def codec_of(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a finished codec, or of a checkpoint's codec."""
    if (folder / CONFIG).exists():
        config = json.loads((folder / CONFIG).read_text())
    else:
        config = json.loads((folder / "config.json").read_text())["audio_vae_config"]
    return config, load_file(folder / WEIGHTS)


def helper_of(folder: Path, name: str) -> dict[str, Tensor] | None:
    """The tensors of READER or DISCRIMINATORS in the folder of a checkpoint, if it has them."""
    path = folder / HELPERS
    return torch.load(path, map_location="cpu", weights_only=True).get(name) if path.exists() else None


def save_helpers(states: dict[str, Path], start: Path | None, out: Path) -> bool:
    """Write the helpers to the file `out`, and return True if there are any.

    states: the folder of a training for each name. A helper that is not there is that of the checkpoint `start`.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, folder in states.items():
        if (path := folder / "brief.pt").exists():
            found[name] = torch.load(path, map_location="cpu", weights_only=True)[name]
        elif start is not None and (helper := helper_of(start, name)) is not None:
            found[name] = helper
    torch.save(found, out)
    return bool(found)
