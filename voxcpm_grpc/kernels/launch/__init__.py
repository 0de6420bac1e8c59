"""Launches of kernels: graphs, overlap, counters, compilation before the first launch. Nothing here computes."""
