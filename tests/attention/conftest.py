"""Without a GPU the Triton backend runs in Triton's interpreter, which must be selected before Triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
