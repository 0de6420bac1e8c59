"""Triton and CUDA kernels. `reference` and `conv_reference` define each one in plain PyTorch and need no Triton."""
