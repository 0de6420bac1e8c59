"""Kernels that only VoxCPM can use, because they know its patches, its flow or its sizes."""
