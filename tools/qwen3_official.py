"""Imports the official package `qwen-tts` in an environment of its own, which has no sound tools and no torchaudio:

python3.11 -m venv /tmp/qwen-oracle
/tmp/qwen-oracle/bin/pip install torch==2.13.0
/tmp/qwen-oracle/bin/pip install transformers==4.57.3 soundfile einops librosa "numpy<2.4"
/tmp/qwen-oracle/bin/pip install --no-deps qwen-tts==0.1.1 accelerate==1.12.0
"""

import importlib
import importlib.machinery
import os
import sys
import types
import warnings
from importlib.metadata import version

import torch

PACKAGES = ("qwen-tts", "transformers", "torch", "librosa")


def prepare() -> None:
    """Put empty modules in the place of those that the package imports for its other codec alone.

    Must be called before the first import of `qwen_tts`. Uses one thread from then on: more are slower here.
    """
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in ("torch._dynamo", "transformers.utils.import_utils"):  # look for packages, and must not find these
        importlib.import_module(name)

    names = ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.modules["sox"].Transformer = object  # type: ignore[attr-defined]


def versions() -> dict[str, str]:
    """The versions of what goldens depend on."""
    return {name: version(name) for name in PACKAGES}
