"""Triton and CUDA kernels. The file `reference` of each folder defines its own in plain PyTorch."""
