"""Triton kernels, and in `reference` the plain PyTorch each must agree with; only `reference` needs no Triton."""
