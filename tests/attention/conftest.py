"""Without a GPU the Triton backend runs in Triton's interpreter, which must be asked for before the import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
